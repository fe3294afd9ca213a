"""Triton kernels for the two places of training that torch would spend on memory traffic.

`inject` turns the projections of all drafter layers into context keys and values; `head` is the block loss
under the target's head.  Each computes what the torch code beside it does (`model.Drafter.inject`,
`loss.head_cross_entropy`), which stays the path for every other device.  Triton is imported with those modules
only, so `usable` is to be asked first.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def usable(x: Tensor) -> bool:
    """Whether work on x is done by the kernels: on an NVIDIA GPU of Ampere or later, with Triton installed."""
    return x.device.type == "cuda" and x.dtype in DTYPES and _able(x.device)


@cache
def _able(device: torch.device) -> bool:
    found = find_spec("triton") is not None
    return found and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
