"""Attention of blocks over the context before each, and over themselves.

Letters in the shapes as in `model`; Q = (A / G) · S are the queries of a block that share a key head: query
heads that share one become further queries of it, so that no key is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Pair = tuple[Tensor, Tensor]  # keys and values

BLOCKS_AT_ONCE = 16  # neighbours in a document, so that early blocks do not read the context of late ones


def attend(queries: Tensor, context: Pair, own: Pair, visible: Tensor, within: Tensor) -> Tensor:
    """softmax(q · [k_context, k_own]ᵀ / √D) · [v_context, v_own], without comparing block with block on a CPU.

    Args:
        queries: [B, G, N, Q, D].
        context: keys and values [B, G, T, D].
        own: keys and values of the blocks [B, G, N, S, D].
        visible: bool [B, N, S or 1, T], the context that each token of a block looks at; may be none.
        within: bool [S, S], which tokens of a block look at which; each at itself.

    Returns:
        [B, G, N, Q, D].
    """
    if queries.device.type != "cpu" or queries.shape[2] == 1:
        return attend_densely(queries, context, own, visible, within)
    out: Tensor = _Apart.apply(queries, *context, *own, visible, within)
    return out


def attend_densely(queries: Tensor, context: Pair, own: Pair, visible: Tensor, within: Tensor) -> Tensor:
    """The same on any device, as one attention over all keys under one mask."""
    rows, _, blocks, asked, _ = queries.shape
    size = len(within)
    keys, values = (torch.cat([left, right.flatten(2, 3)], 2) for left, right in zip(context, own, strict=True))
    same = torch.eye(blocks, dtype=torch.bool, device=within.device)
    block = (same[:, None, :, None] & within[:, None]).flatten(2)  # [N, S, N·S]
    visible = visible.expand(-1, -1, size, -1)
    mask = torch.cat([visible, block.expand(rows, -1, -1, -1)], -1)  # [B, N, S, T + N·S]
    mask = mask.repeat(1, 1, asked // size, 1).flatten(1, 2)[:, None]
    out = scaled_dot_product_attention(queries.flatten(2, 3), keys, values, attn_mask=mask)
    return out.view(queries.shape)


class _Apart(torch.autograd.Function):
    """Context and own block each by themselves, put together by the log-sum-exp of their scores.

    With m = log(exp(m_context) + exp(m_own)) the whole is exp(m_context − m) · context + exp(m_own − m) · own
    (Milakov and Gimelshein, arXiv 1805.02867).
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        own_keys: Tensor,
        own_values: Tensor,
        visible: Tensor,
        within: Tensor,
    ) -> Tensor:
        scores = _own_scores(queries, own_keys, within)
        mass = scores.logsumexp(-1)  # [B, G, N, Q], of the own block; then of all
        out = torch.exp(scores - mass[..., None]).to(queries.dtype) @ own_values
        for blocks, tokens, bias, blind in _parts(queries, visible):
            asked = queries[:, :, blocks]
            read, seen = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                asked.flatten(2, 3), keys[:, :, tokens], values[:, :, tokens], attn_mask=bias
            )
            # Where a query sees nothing the kernel gives 0, for the log of nothing too.
            seen = seen.view(asked.shape[:-1]).masked_fill(blind, -torch.inf)
            both = torch.logaddexp(mass[:, :, blocks], seen)
            out[:, :, blocks] = torch.lerp(
                out[:, :, blocks], read.view(asked.shape), torch.exp(seen - both)[..., None].to(out.dtype)
            )
            mass[:, :, blocks] = both
        ctx.save_for_backward(queries, keys, values, own_keys, own_values, visible, within, out, mass)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """With p = exp(score − m) and δ = Σ gradient · out, a score's gradient is p · (gradient · v − δ).

        p and δ of the whole softmax are all that a part needs, so the kernel's own backward pass is given
        the whole's `out` and `mass` in place of its part's.
        """
        queries, keys, values, own_keys, own_values, visible, within, out, mass = ctx.saved_tensors
        (grad,) = grads
        to_queries, to_keys, to_values = (torch.zeros_like(part) for part in (queries, keys, values))
        for blocks, tokens, bias, _ in _parts(queries, visible):
            q, k, v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad[:, :, blocks].flatten(2, 3),
                queries[:, :, blocks].flatten(2, 3),
                keys[:, :, tokens],
                values[:, :, tokens],
                out[:, :, blocks].flatten(2, 3),
                mass[:, :, blocks].flatten(2, 3),
                0.0,
                False,
                attn_mask=bias,
            )
            to_queries[:, :, blocks] = q.view(queries[:, :, blocks].shape)
            to_keys[:, :, tokens] += k
            to_values[:, :, tokens] += v
        share = torch.exp(_own_scores(queries, own_keys, within) - mass[..., None])
        delta = (grad * out).sum(-1, keepdim=True, dtype=share.dtype)
        slope = (share * (grad @ own_values.mT - delta) * queries.shape[-1] ** -0.5).to(grad.dtype)
        to_queries += slope @ own_keys
        to_own_values = share.to(grad.dtype).mT @ grad
        return to_queries, to_keys, to_values, slope.mT @ queries, to_own_values, None, None


def _own_scores(queries: Tensor, own_keys: Tensor, within: Tensor) -> Tensor:
    """[B, G, N, Q, S] in at least float32."""
    scores = queries @ own_keys.mT * queries.shape[-1] ** -0.5
    hidden = ~within.repeat(queries.shape[-2] // len(within), 1)
    wide: Tensor = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return wide.masked_fill(hidden, -torch.inf)


def _parts(queries: Tensor, visible: Tensor) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Walk over neighbouring blocks and the stretch of context that they see.

    Yields:
        The n blocks, the t tokens, what is added to their scores [B, 1, n·Q, t], and which queries see nothing
        of it, bool [B, 1, n, Q].
    """
    asked = queries.shape[3]
    for first in range(0, queries.shape[2], BLOCKS_AT_ONCE):
        blocks = slice(first, first + BLOCKS_AT_ONCE)
        some = visible[:, blocks]
        seen = some.any(2).any(1).any(0).nonzero()[:, 0]
        if not len(seen):
            continue
        tokens = slice(int(seen[0]), int(seen[-1]) + 1)
        some = some[..., tokens]
        bias = torch.zeros(some.shape, dtype=queries.dtype).masked_fill_(~some, -torch.inf)
        # Q runs over the heads that share a key, and within them over the tokens of the block.
        again = asked // some.shape[2]
        bias = bias[:, :, None].expand(-1, -1, again, -1, -1).flatten(1, 3)
        yield blocks, tokens, bias[:, None], ~some.any(-1).repeat(1, 1, again)[:, None]
