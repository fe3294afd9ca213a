"""Prefect flows: produce, train, check, and run, which joins them.

They only join stages: what a stage does, and whether it is done already, is `synthspec.stages`' business.
"""

import os

# Before Prefect is imported, which reads it once: on a busy machine its temporary server needs longer than
# Prefect's own 20 seconds.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
