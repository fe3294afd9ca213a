"""Context keys and values of all drafter layers: key norm, rotary embedding and cache layout in one pass.

Letters as in `model`: B rows, T context tokens, H hidden size, G key/value heads, D head size, R turned
dimensions, and L layers.  Every projection is read once and every key and value written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

if TYPE_CHECKING:
    from synthspec.dflash.model import Attention, KeysValues

TOKENS_AT_ONCE = 8


def inject(context: Tensor, attentions: Sequence[Attention], cos: Tensor, sin: Tensor) -> list[KeysValues]:
    """`Attention.keys_values` of all layers at once.

    Args:
        context: [B, T, H], bfloat16, float16 or float32.
        attentions: of the same shape; one product with their stacked key and value projections is taken.
        cos, sin: float32 [B, T, R], the angles of the positions.

    Returns:
        For every layer keys and values [B, G, T, D]: views of one tensor, in the context's dtype.
    """
    parts = [part for one in attentions for part in (one.k_proj, one.v_proj)]
    stacked = torch.cat([part.weight.to(context.dtype) for part in parts])  # [L·2·G·D, H]
    biases = [part.bias.to(context.dtype) for part in parts if part.bias is not None]
    gains = torch.stack([one.k_norm.weight for one in attentions])  # [L, D]
    first = attentions[0]
    projected = linear(context, stacked, torch.cat(biases) if biases else None)
    out = keys_values(projected, gains, cos, sin, first.kv_heads, first.k_norm.eps)
    # One unbind: its backward pass gathers the gradients of all layers in one copy.
    found = out.flatten(0, 1).unbind()
    return list(zip(found[::2], found[1::2], strict=True))


def keys_values(projected: Tensor, gains: Tensor, cos: Tensor, sin: Tensor, heads: int, eps: float) -> Tensor:
    """Norm and turn the keys, and lay keys and values out as attention reads them.

    Args:
        projected: [B, T, L·2·G·D], for each layer its keys and then its values.
        gains: [L, D], the weights of the key norms.
        cos, sin: float32 [B, T, R], R even and at most D.
        heads: G.
        eps: of the norms.

    Returns:
        [L, 2, B, G, T, D] in the dtype of `projected`.  Gradients flow to `projected` and `gains`.
    """
    out: Tensor = _KeysValues.apply(projected, gains, cos, sin, heads, eps)
    return out


class _KeysValues(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, gains: Tensor, cos: Tensor, sin: Tensor, heads: int, eps: float
    ) -> Tensor:
        projected, gains, cos, sin = (x.contiguous() for x in (projected, gains, cos, sin))
        rows, tokens, _ = projected.shape
        layers, width = gains.shape
        out = projected.new_empty(layers, 2, rows, heads, tokens, width)
        ctx.save_for_backward(projected, gains, cos, sin)
        ctx.heads, ctx.eps = heads, eps
        with torch.cuda.device_of(projected):
            inject_forward[_grid(projected, gains)](
                projected, gains, cos, sin, out, rows, tokens, eps, **_sizes(gains, cos, heads)
            )
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        projected, gains, cos, sin = ctx.saved_tensors
        rows, tokens, _ = projected.shape
        slopes = torch.empty_like(projected)
        grid = _grid(projected, gains)
        gain_slopes = gains.new_empty(grid[0], *gains.shape, dtype=torch.float32)  # a part of each program
        with torch.cuda.device_of(projected):
            inject_backward[grid](
                projected, gains, cos, sin, grads[0].contiguous(), slopes, gain_slopes, rows, tokens, ctx.eps,
                **_sizes(gains, cos, ctx.heads),
            )  # fmt: skip
        return slopes, gain_slopes.sum(0).to(gains.dtype), None, None, None, None


def _grid(projected: Tensor, gains: Tensor) -> tuple[int, int]:
    """A program for some tokens of one layer: it walks over the heads with the angles at hand."""
    return triton.cdiv(projected.shape[0] * projected.shape[1], TOKENS_AT_ONCE), len(gains)


def _sizes(gains: Tensor, cos: Tensor, heads: int) -> dict[str, int]:
    width = gains.shape[1]
    return {
        "heads": heads,
        "width": width,
        "turned": cos.shape[-1],
        "at_once": TOKENS_AT_ONCE,
        "padded": triton.next_power_of_2(width),
    }


# In both kernels `other` is the dimension that a dimension is turned with, i ↔ i + R/2, and `sign` is the sign
# it comes with: (x, y) → (x cos − y sin, y cos + x sin).  Behind R the angle is 0.


@triton.jit
def inject_forward(
    projected, gains, cos, sin, out, rows, tokens, eps,
    heads: tl.constexpr, width: tl.constexpr, turned: tl.constexpr, at_once: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    layer, layers = tl.program_id(1), tl.num_programs(1)
    place = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)
    dim = tl.arange(0, padded)
    other = tl.where(dim < turned // 2, dim + turned // 2, tl.where(dim < turned, dim - turned // 2, dim))
    sign = tl.where(dim < turned // 2, -1.0, 1.0)
    real = place < rows * tokens
    inside = real[:, None] & (dim < width)[None, :]
    angle = place[:, None] * turned + dim[None, :]
    turns = real[:, None] & (dim < turned)[None, :]
    c = tl.load(cos + angle, mask=turns, other=1.0)
    s = tl.load(sin + angle, mask=turns, other=0.0)
    gain = tl.load(gains + layer * width + dim, mask=dim < width, other=0.0).to(tl.float32)
    other_gain = tl.load(gains + layer * width + other, mask=dim < width, other=0.0).to(tl.float32)
    row, token = place // tokens, place % tokens
    for head in range(heads):
        key = projected + ((place * layers + layer) * 2 * heads + head)[:, None] * width
        value = key + heads * width
        x = tl.load(key + dim[None, :], mask=inside, other=0.0)
        y = tl.load(key + other[None, :], mask=inside, other=0.0).to(tl.float32)
        wide = x.to(tl.float32)
        shrink = tl.rsqrt(tl.sum(wide * wide, 1) / width + eps)[:, None]
        # As in torch, what the norm gives is rounded before it is turned.
        wide = (gain[None, :] * (wide * shrink)).to(x.dtype).to(tl.float32)
        y = (other_gain[None, :] * (y * shrink)).to(x.dtype).to(tl.float32)
        to = out + dim[None, :]
        key_to = (((layer * 2 * rows + row) * heads + head) * tokens + token)[:, None] * width
        value_to = (((layer * 2 * rows + rows + row) * heads + head) * tokens + token)[:, None] * width
        tl.store(to + key_to, (wide * c + sign[None, :] * y * s).to(x.dtype), mask=inside)
        tl.store(to + value_to, tl.load(value + dim[None, :], mask=inside, other=0.0), mask=inside)


@triton.jit
def inject_backward(
    projected, gains, cos, sin, grads, slopes, gain_slopes, rows, tokens, eps,
    heads: tl.constexpr, width: tl.constexpr, turned: tl.constexpr, at_once: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    layer, layers = tl.program_id(1), tl.num_programs(1)
    place = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)
    dim = tl.arange(0, padded)
    other = tl.where(dim < turned // 2, dim + turned // 2, tl.where(dim < turned, dim - turned // 2, dim))
    sign = tl.where(dim < turned // 2, -1.0, 1.0)
    real = place < rows * tokens
    inside = real[:, None] & (dim < width)[None, :]
    turns = real[:, None] & (dim < turned)[None, :]
    c = tl.load(cos + place[:, None] * turned + dim[None, :], mask=turns, other=1.0)
    # The turn is undone: what came out at `other` was turned by the angle there.
    s = tl.load(sin + place[:, None] * turned + other[None, :], mask=turns, other=0.0)
    gain = tl.load(gains + layer * width + dim, mask=dim < width, other=0.0).to(tl.float32)
    gain_slope = tl.full((padded,), 0.0, tl.float32)
    row, token = place // tokens, place % tokens
    for head in range(heads):
        key = ((place * layers + layer) * 2 * heads + head)[:, None] * width + dim[None, :]
        value = key + heads * width
        key_from = (((layer * 2 * rows + row) * heads + head) * tokens + token)[:, None] * width
        value_from = (((layer * 2 * rows + rows + row) * heads + head) * tokens + token)[:, None] * width
        x = tl.load(projected + key, mask=inside, other=0.0)
        wide = x.to(tl.float32)
        shrink = tl.rsqrt(tl.sum(wide * wide, 1) / width + eps)[:, None]
        unit = wide * shrink
        out = tl.load(grads + key_from + dim[None, :], mask=inside, other=0.0).to(tl.float32)
        across = tl.load(grads + key_from + other[None, :], mask=inside, other=0.0).to(tl.float32)
        normed = out * c - sign[None, :] * across * s
        gain_slope += tl.sum(normed * unit, 0)
        normed = normed * gain[None, :]
        mean = (tl.sum(normed * unit, 1) / width)[:, None]
        tl.store(slopes + key, (shrink * (normed - unit * mean)).to(x.dtype), mask=inside)
        passed = tl.load(grads + value_from + dim[None, :], mask=inside, other=0.0)
        tl.store(slopes + value, passed, mask=inside)
    part = (tl.program_id(0).to(tl.int64) * layers + layer) * width
    tl.store(gain_slopes + part + dim, gain_slope, mask=dim < width)
