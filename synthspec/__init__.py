"""synthspec: train a fast drafter for production traffic without looking at it."""

__version__ = "0.1.0"
