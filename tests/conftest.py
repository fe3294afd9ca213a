"""What several tests need."""

from __future__ import annotations

from typing import Any

import pytest

from synthspec.spec import Target
from synthspec.targets.load import load_tokenizer


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    """The embedded default target's tokenizer; the model is converted into the cache the first time."""
    return load_tokenizer(Target())
