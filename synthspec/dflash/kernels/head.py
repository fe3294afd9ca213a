"""Cross entropy under a frozen head, tile by tile: the logits of all tokens are never in memory.

Letters: M rows, H hidden size, V vocabulary.  The forward pass keeps one number of every tile of logits, the
logarithm of its Σ exp, and the label's logit.  The backward pass computes the tiles again, a strip of the
vocabulary at a time, and multiplies what the softmax makes of them with the head.  All sums are taken in an
order that depends on the shapes alone, so the same inputs give the same bytes on one kind of GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

STRIP = 1 << 26  # elements of the softmax that are in memory at once


@dataclass(frozen=True)
class Tiles:
    """Rows and columns of the tile that one program makes, how deep it reads at once, and how it runs."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


# Three stages of two operands in 16 bits are 96 KiB of shared memory, which every GPU from Ampere on has.
HALF = Tiles(rows=128, columns=128, depth=64, warps=8, stages=3)
FULL = Tiles(rows=64, columns=64, depth=32, warps=4, stages=2)


def tiles(dtype: torch.dtype) -> Tiles:
    return FULL if dtype == torch.float32 else HALF


def head_cross_entropy(
    hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, wanted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As `loss.head_cross_entropy`, over all tokens; a label outside the vocabulary makes the loss NaN.

    Args:
        hidden: [M, H]; the only input that gets a gradient.
        head: [V, H] in bfloat16, float16 or float32: the dtype of the products, whose sums are float32.
        labels: int64 [M].
        weights: float32 [M].
        wanted: [M, H] or None.

    Returns:
        A float32 scalar, and the probabilities of the labels, float32 [M].
    """
    total, odds = _HeadCrossEntropy.apply(hidden, head, labels, weights, wanted)
    return total, odds


class _HeadCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, wanted: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.dtype = hidden.dtype
        hidden, head, labels = hidden.to(head.dtype).contiguous(), head.contiguous(), labels.contiguous()
        mass, truth = mass_and_truth(hidden, head, labels)
        aim = truth
        if wanted is not None:
            wanted = wanted.to(head.dtype)
            aim = (hidden.float() * wanted.float()).sum(-1)
        ctx.save_for_backward(hidden, head, labels, weights, wanted, mass)
        odds = (truth - mass).exp()
        ctx.mark_non_differentiable(odds)
        return ((mass - aim) * weights).sum(), odds

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, labels, weights, wanted, mass = ctx.saved_tensors
        scale = (weights * grads[0]).float()
        out = slope(hidden, head, labels, mass, scale, wanted)
        return out.to(ctx.dtype), None, None, None, None


def mass_and_truth(hidden: Tensor, head: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """log Σ exp(hidden · headᵀ) and the logits of the labels, float32 [M] each."""
    count, width = hidden.shape
    size = tiles(head.dtype)
    across = triton.cdiv(len(head), size.columns)
    masses = hidden.new_empty(across, count, dtype=torch.float32)
    truth = hidden.new_full((count,), torch.nan, dtype=torch.float32)
    with torch.cuda.device_of(hidden):
        head_mass[(triton.cdiv(count, size.rows) * across,)](
            hidden, head, labels, masses, truth, count, len(head), width,
            row_tile=size.rows, column_tile=size.columns, depth=size.depth,
            num_warps=size.warps, num_stages=size.stages,
        )  # fmt: skip
    return masses.logsumexp(0), truth


def slope(
    hidden: Tensor, head: Tensor, labels: Tensor, mass: Tensor, scale: Tensor, wanted: Tensor | None
) -> Tensor:
    """scale · (softmax(hidden · headᵀ) · head − aim), float32 [M, H]; aim is head[labels] or `wanted`.

    Args:
        mass: float32 [M], as `mass_and_truth` gives it.
        scale: float32 [M].
    """
    count, width = hidden.shape
    size = tiles(head.dtype)
    down = triton.cdiv(count, size.rows)
    out = hidden.new_zeros(count, width, dtype=torch.float32)
    if wanted is not None:
        out.sub_(wanted)
    most = max(1, STRIP // max(1, count) // size.columns)
    strip = min(triton.cdiv(len(head), size.columns), most) * size.columns
    shares = hidden.new_empty(count, strip)
    run = {"num_warps": size.warps, "num_stages": size.stages}
    with torch.cuda.device_of(hidden):
        for first in range(0, len(head), strip):
            end = min(first + strip, len(head))
            head_share[(down * triton.cdiv(end - first, size.columns),)](
                hidden, head, labels, mass, shares, count, width, first, end, strip,
                hard=wanted is None, row_tile=size.rows, column_tile=size.columns, depth=size.depth, **run,
            )  # fmt: skip
            head_gather[(down * triton.cdiv(width, size.columns),)](
                shares, head, out, count, width, first, end, strip,
                row_tile=size.rows, column_tile=size.columns, depth=size.depth, **run,
            )  # fmt: skip
    return out.mul_(scale[:, None])


@triton.jit
def tile_of(rows, columns, row_tile: tl.constexpr, column_tile: tl.constexpr):
    """Which tile of rows and which tile of columns a program makes, int64.

    Sixteen tiles of rows are walked along all columns before the next sixteen: what runs at the same time reads
    few rows and few columns, which then stay in the cache.
    """
    down, across = (rows + row_tile - 1) // row_tile, (columns + column_tile - 1) // column_tile
    program = tl.program_id(0)
    band = program // (16 * across) * 16
    high = tl.minimum(down - band, 16)
    within = program % (16 * across)
    return (band + within % high).to(tl.int64), (within // high).to(tl.int64)


@triton.jit
def logits_of(
    hidden, head, rows, columns, width,
    row_tile: tl.constexpr, column_tile: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    """A tile of hidden · headᵀ, float32; what lies behind the last of its rows and columns repeats that one."""
    row = tl.minimum(tl.arange(0, row_tile), rows - 1)
    column = tl.minimum(tl.arange(0, column_tile), columns - 1)
    deep = tl.arange(0, depth)
    left = hidden + row[:, None] * width + deep[None, :]
    right = head + column[None, :] * width + deep[:, None]
    tile = tl.full((row_tile, column_tile), 0.0, tl.float32)
    for start in range(0, width, depth):
        inside = start + deep < width
        x = tl.load(left + start, mask=inside[None, :], other=0.0)
        y = tl.load(right + start, mask=inside[:, None], other=0.0)
        tile = tl.dot(x, y, tile, input_precision="ieee")
    return tile


@triton.jit
def head_mass(
    hidden, head, labels, masses, truth, rows, columns, width,
    row_tile: tl.constexpr, column_tile: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    """log Σ exp of every row of a tile, into masses [tiles across, M], and the label's logit if it is there."""
    down, across = tile_of(rows, columns, row_tile, column_tile)
    top, side = down * row_tile, across * column_tile
    tile = logits_of(
        hidden + top * width, head + side * width, (rows - top).to(tl.int32), (columns - side).to(tl.int32),
        width, row_tile, column_tile, depth,
    )  # fmt: skip
    row, column = top + tl.arange(0, row_tile), side + tl.arange(0, column_tile)
    tile = tl.where((column < columns)[None, :], tile, float("-inf"))
    peak = tl.max(tile, 1)
    mass = peak + tl.log(tl.sum(tl.exp(tile - peak[:, None]), 1))
    tl.store(masses + across * rows + row, mass, mask=row < rows)
    label = tl.load(labels + row, mask=row < rows, other=-1)
    here = (label >= side) & (label < tl.minimum(side + column_tile, columns))
    tl.store(truth + row, tl.sum(tl.where(column[None, :] == label[:, None], tile, 0.0), 1), mask=here)


@triton.jit
def head_share(
    hidden, head, labels, mass, shares, rows, width, first, end, strip, hard: tl.constexpr,
    row_tile: tl.constexpr, column_tile: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    """Softmax of a tile of the columns first … end − 1, into shares [M, strip].

    A tile's columns behind the last are written too, as some number, so that `head_gather` may read them.
    With `hard` the label's share is one less: the difference is rounded, not its two terms.
    """
    down, across = tile_of(rows, end - first, row_tile, column_tile)
    top, side = down * row_tile, first + across * column_tile
    tile = logits_of(
        hidden + top * width, head + side * width, (rows - top).to(tl.int32), (end - side).to(tl.int32),
        width, row_tile, column_tile, depth,
    )  # fmt: skip
    row, column = top + tl.arange(0, row_tile), side + tl.arange(0, column_tile)
    real = row < rows
    share = tl.exp(tile - tl.load(mass + row, mask=real, other=float("inf"))[:, None])
    if hard:
        label = tl.load(labels + row, mask=real, other=-1)
        share = tl.where(column[None, :] == label[:, None], share - 1.0, share)
    to = shares + row[:, None] * strip + (column - first)[None, :]
    tl.store(to, share.to(shares.dtype.element_ty), mask=real[:, None])


@triton.jit
def head_gather(
    shares, head, out, rows, width, first, end, strip,
    row_tile: tl.constexpr, column_tile: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    """Add shares · head[first … end − 1] to a tile of out [M, H]; depth divides the tile of `head_share`."""
    down, across = tile_of(rows, width, row_tile, column_tile)
    top, side = down * row_tile, across * column_tile
    row, column, deep = tl.arange(0, row_tile), tl.arange(0, column_tile), tl.arange(0, depth)
    known = side + column < width
    inside = (top + row < rows)[:, None] & known[None, :]
    to = out + top * width + side + row[:, None] * width + column[None, :]
    tile = tl.load(to, mask=inside, other=0.0)
    last = (rows - top).to(tl.int32) - 1
    left = shares + top * strip + tl.minimum(row, last)[:, None] * strip + deep[None, :]
    right = head + tl.cast(first, tl.int64) * width + side + deep[:, None] * width + column[None, :]
    for start in range(0, end - first, depth):
        x = tl.load(left)
        y = tl.load(right, mask=(start + deep < end - first)[:, None] & known[None, :], other=0.0)
        tile = tl.dot(x, y, tile, input_precision="ieee")
        left += depth
        right += depth * width
    tl.store(to, tile, mask=inside)
