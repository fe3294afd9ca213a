"""synthspec: train a fast drafter for production traffic without looking at it."""

import os

__version__ = "0.1.0"

# Read once by libraries that are imported later; what the person has set stays.  Nothing calls home, and
# threads that wait soon sleep: on shared cores, ones that spin on slow each other down several times.
for _name, _value in {
    "GOMP_SPINCOUNT": "20000",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}.items():
    os.environ.setdefault(_name, _value)
