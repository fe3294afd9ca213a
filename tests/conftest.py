"""What several tests need."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from synthspec.spec import Target
from synthspec.targets.load import load_tokenizer

# A busy machine is slow: no test may fail by its time.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    """The embedded default target's tokenizer; the model is converted into the cache the first time."""
    return load_tokenizer(Target())
