"""`python -m synthspec` is `synthspec`."""

from synthspec.cli import main

main()
