"""Triton's interpreter runs kernels on a CPU, but counts bfloat16 wrongly; here that is mended.

Triton 3.8 keeps bfloat16 as the bits of it, multiplies those bits in `dot`, and cuts instead of rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def wide(bits: np.ndarray) -> np.ndarray:
    """bfloat16 as bits → float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: np.ndarray) -> np.ndarray:
    """float32 → the bits of the nearest bfloat16."""
    narrow = torch.from_numpy(np.ascontiguousarray(values)).bfloat16()
    return narrow.view(torch.int16).numpy().view(np.uint16)


def mend() -> None:
    builder, convert = interpreter.InterpreterBuilder, interpreter._convert_float
    dot = builder.create_dot

    def mended_convert(data: np.ndarray, before: Any, after: Any, rounding: Any) -> np.ndarray:
        if (before, after) == (tl.float32, tl.bfloat16):
            return rounded(data)
        if (before, after) == (tl.bfloat16, tl.float32):
            return wide(data).view(np.uint32)
        return convert(data, before, after, rounding)

    def mended_dot(self: Any, left: Any, right: Any, *others: Any) -> Any:
        if left.dtype.scalar == tl.bfloat16:
            left, right = (interpreter.TensorHandle(wide(x.data), tl.float32) for x in (left, right))
        return dot(self, left, right, *others)

    interpreter._convert_float = mended_convert
    builder.create_dot = mended_dot
