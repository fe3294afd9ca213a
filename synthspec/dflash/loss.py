"""The training loss: cross entropy over a block, decayed by position, without ever storing all logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

ROWS_AT_ONCE = 128


def decay(block_size: int, gamma: float) -> Tensor:
    """Weights w_k = exp(−(k − 1) / γ) of the guesses k = 1 … block_size − 1, float32 (DFlash, eq. 4).

    An early mistake ends the accepted prefix, so early guesses weigh more.
    """
    k = torch.arange(1, block_size, dtype=torch.float32)
    return torch.exp(-(k - 1) / gamma)


def usual_gamma(block_size: int) -> float:
    """The decay γ for a block size: 4, 5 and 7 at 8, 10 and 16 (DFlash, section 4), linear between them."""
    return float(np.interp(block_size, [8, 10, 16], [4.0, 5.0, 7.0]))


class _HeadCrossEntropy(torch.autograd.Function):
    """Head, softmax and cross entropy in one pass over slices of rows.

    The head is frozen, so the only gradient is the one to the hidden states, and it is known as soon as
    the slice's softmax is: d = weight · (softmax · head − wanted).  It is taken in the forward pass and
    the logits of a slice are dropped before the next begins.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, wanted: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        total = hidden.new_zeros((), dtype=torch.float32)
        hits = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
        slope = torch.empty_like(hidden)
        # Fresh memory for every slice would cost as much as the softmax; two buffers serve them all.
        raw = torch.empty(ROWS_AT_ONCE, len(head), dtype=head.dtype, device=head.device)
        wide = torch.empty(ROWS_AT_ONCE, len(head), dtype=torch.float32, device=head.device)
        for start in range(0, len(hidden), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            truth, weight = labels[part, None], weights[part, None]
            narrow, odds = raw[: len(truth)], wide[: len(truth)]
            torch.mm(hidden[part].to(head.dtype), head.T, out=narrow)  # [rows, vocabulary]
            top = narrow.amax(-1, keepdim=True)
            right = narrow.gather(1, truth).float()
            hits[part] = (right == top)[:, 0]
            torch.sub(narrow, top.float(), out=odds).exp_()
            mass = odds.sum(-1, keepdim=True)
            if wanted is None:
                aim = head[labels[part]]
            else:
                aim = wanted[part]
                right = (hidden[part].float() * aim.float()).sum(-1, keepdim=True)
            total += ((mass.log() + top - right) * weight).sum()
            torch.mul(odds, weight / mass, out=narrow)
            slope[part] = narrow @ head - weight * aim
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * grads[0].to(slope.dtype), None, None, None, None


def head_cross_entropy(
    hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, wanted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weighted sum of cross entropies under a frozen head, and which guesses were right.

    Args:
        hidden: [M, H]; the product with the head is taken in the head's dtype, the softmax in float32.
        head: [V, H], frozen.
        labels: int64 [M].
        weights: float32 [M].
        wanted: [M, H], q · head for the distribution q [M, V] to learn; without it q is all on the label.
            The cross entropy with q needs no more of it than this: −Σ q log p = log Σ exp(logits) −
            hidden · wanted.

    Returns:
        Σ weightsᵢ · cross entropy(qᵢ, softmax(hiddenᵢ · headᵀ)), a float32 scalar, and bool [M].
    """
    total, hits = _HeadCrossEntropy.apply(hidden, head, labels, weights, wanted)
    return total, hits


@torch.no_grad()
def expected_rows(hidden: Tensor, head: Tensor) -> Tensor:
    """softmax(hidden · headᵀ) · head: the head's row of the next token as the target expects it.

    Args:
        hidden: [M, H], the target's final hidden states.
        head: [V, H].

    Returns:
        [M, H] in the head's dtype.
    """
    rows = [
        torch.softmax(part.to(head.dtype) @ head.T, -1, dtype=torch.float32).to(head.dtype) @ head
        for part in hidden.split(ROWS_AT_ONCE)
    ]
    return torch.cat(rows)
