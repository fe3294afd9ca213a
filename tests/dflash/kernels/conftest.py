from __future__ import annotations

import secrets

import pytest
import torch


@pytest.fixture
def fresh() -> None:
    """New random inputs at every run; pytest shows the seed when a test fails."""
    seed = secrets.randbelow(1 << 31)
    print(f"torch.manual_seed({seed})")
    torch.manual_seed(seed)
