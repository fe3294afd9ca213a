"""Prefect flows: produce, train, check, and run, which joins them.

They only join stages: what a stage does, and whether it is done already, is `synthspec.stages`' business.
"""

import os

# Before Prefect is imported: it reads these once.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
# On a busy machine its temporary server needs longer than Prefect's own 20 seconds.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
