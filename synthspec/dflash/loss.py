"""What objectives are made of: a frozen head, its softmax and the gradients through both, without ever
storing all logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synthspec.dflash import kernels

ROWS_AT_ONCE = 128
TOKENS_AT_ONCE = 1024  # slices of logits that a CPU's caches hold

# From log q [m, V], p [m, V] and the labels, int64 [m], of some places to a number for each, [m]: q is what the
# drafter gives, p what the target gives.
Measure = Callable[[Tensor, Tensor, Tensor], Tensor]


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 products are fast there; a CPU without units for them takes eight times as long as for
    float32."""
    if device.type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def decay(block_size: int, gamma: float) -> Tensor:
    """Weights w_k = exp(−(k − 1) / γ) of the guesses k = 1 … block_size − 1, float32 (DFlash, eq. 4).

    An early mistake ends the accepted prefix, so early guesses weigh more.
    """
    k = torch.arange(1, block_size, dtype=torch.float32)
    return torch.exp(-(k - 1) / gamma)


def usual_gamma(block_size: int) -> float:
    """The decay γ for a block size: 4, 5 and 7 at 8, 10 and 16 (DFlash, section 4), linear between them."""
    return float(np.interp(block_size, [8, 10, 16], [4.0, 5.0, 7.0]))


@dataclass(frozen=True)
class Among:
    """The tokens that a softmax runs over: some for sure, and some that stand for all others.

    The logits of the others are raised by log(others / drawn), which makes Σ exp(logits) right in
    expectation (sampled softmax: Jean et al., "On Using Very Large Target Vocabulary for Neural Machine
    Translation", 2015).

    Args:
        tokens: int64 [n].
        raised: [n], what is added to the logit of each.
    """

    tokens: Tensor
    raised: Tensor


def draw_among(sure: Tensor, vocabulary: int, count: int, dice: torch.Generator) -> Among | None:
    """The tokens of one step: all of `sure` (int64, sorted) and `count` others; None if those are all."""
    rest = torch.ones(vocabulary, dtype=torch.bool)
    rest[sure] = False
    others = rest.nonzero()[:, 0]
    if count >= len(others):
        return None
    drawn = others[torch.randperm(len(others), generator=dice)[:count]]
    raised = torch.zeros(len(sure) + count)
    raised[len(sure) :] = math.log(len(others) / count)
    return Among(torch.cat([sure, drawn]), raised)


def softmax_of_head(hidden: Tensor, head: Tensor, raised: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """softmax(hidden · headᵀ) · head, and log Σ exp(hidden · headᵀ), without ever holding all logits.

    A CPU takes slices of the vocabulary, so that all its cores share every product. In bfloat16, where it has
    units for that, torch's attention with the head as keys and as values sums up in float32; elsewhere such
    kernels stop at 256 dimensions, so slices of rows take their place.

    Args:
        hidden: [M, H] in the head's dtype.
        head: [V, H].
        raised: [V], added to the logits.

    Returns:
        [M, H] in the head's dtype, and float32 [M] (float64 under a head of float64); in slices of bfloat16 the
        second rests on rounded logits.
    """
    cpu, narrow = head.device.type == "cpu", head.dtype == torch.bfloat16
    if cpu and (head.dtype == torch.float32 or (narrow and not multiplies_bfloat16(head.device))):
        found = [_in_slices(part, head, raised) for part in hidden.float().split(16 * ROWS_AT_ONCE)]
        outs, masses = zip(*found, strict=True)
        return torch.cat(outs).to(head.dtype), torch.cat(masses)
    if cpu and narrow:
        rows, keys = hidden[None, None], head[None, None]
        mask = None if raised is None else raised.to(head.dtype).expand(1, 1, len(hidden), -1)
        out, mass = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            rows, keys, keys, attn_mask=mask, scale=1.0
        )
        return out[0, 0], mass[0, 0].float()
    parts = []
    for part in hidden.split(ROWS_AT_ONCE):
        logits = _wide(part @ head.T) + (0 if raised is None else raised)
        mass = logits.logsumexp(-1)
        parts.append((torch.exp(logits - mass[:, None]).to(head.dtype) @ head, mass))
    outs, masses = zip(*parts, strict=True)
    return torch.cat(outs), torch.cat(masses)


def _in_slices(hidden: Tensor, head: Tensor, raised: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same in float32, a slice of the vocabulary after the other; what is summed so far is scaled down
    whenever a larger logit comes (Milakov and Gimelshein, arXiv 1805.02867)."""
    out = torch.zeros_like(hidden)
    most = hidden.new_full((len(hidden), 1), -torch.inf)
    mass = torch.zeros_like(most)
    for first in range(0, len(head), TOKENS_AT_ONCE):
        part = head[first : first + TOKENS_AT_ONCE].float()
        odds = hidden @ part.T
        if raised is not None:
            odds += raised[first : first + TOKENS_AT_ONCE]
        before, most = most, torch.maximum(most, odds.amax(-1, keepdim=True))
        kept = torch.exp(before - most)
        odds.sub_(most).exp_()
        mass = mass * kept + odds.sum(-1, keepdim=True)
        out.mul_(kept).addmm_(odds, part)
    return out.div_(mass), (most + mass.log())[:, 0]


def _wide(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x if x.dtype == torch.float64 else x.float()


def _among(hidden: Tensor, head: Tensor, among: Among | None) -> tuple[Tensor, Tensor]:
    """`softmax_of_head` over all tokens or some."""
    if among is None:
        return softmax_of_head(hidden, head)
    return softmax_of_head(hidden, head[among.tokens], among.raised.to(head.device))


class _HeadCrossEntropy(torch.autograd.Function):
    """Head, softmax and cross entropy at once.

    The head is frozen, so the only gradient is the one to the hidden states, and it is known as soon as
    the softmax is: d = weight · (softmax · head − wanted).  It is taken in the forward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        labels: Tensor,
        weights: Tensor,
        wanted: Tensor | None,
        among: Among | None,
    ) -> tuple[Tensor, Tensor]:
        hidden = hidden.to(head.dtype)
        expected, mass = _among(hidden, head, among)
        truth = head[labels]
        aim = truth if wanted is None else wanted.to(head.dtype)
        wide = _wide(hidden)
        total = ((mass - (wide * aim).sum(-1)) * weights).sum()
        odds = ((wide * truth).sum(-1) - mass).exp()
        ctx.save_for_backward(weights[:, None] * (expected - aim))
        ctx.mark_non_differentiable(odds)
        return total, odds

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * grads[0], None, None, None, None, None


def head_cross_entropy(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    weights: Tensor,
    wanted: Tensor | None = None,
    among: Among | None = None,
) -> tuple[Tensor, Tensor]:
    """Weighted sum of cross entropies under a frozen head, and the probability of every label.

    Args:
        hidden: [M, H]; the product with the head is taken in the head's dtype, the softmax in float32.
        head: [V, H], frozen.
        labels: int64 [M].
        weights: float32 [M].
        wanted: [M, H], q · head for the distribution q [M, V] to learn; without it q is all on the label.
            The cross entropy with q needs no more of it than this: −Σ q log p = log Σ exp(logits) −
            hidden · wanted.
        among: the tokens that the softmax runs over, every label among them; by default all.

    Returns:
        Σ weightsᵢ · cross entropy(qᵢ, softmax(hiddenᵢ · headᵀ)), a float32 scalar, and float32 [M].
    """
    if among is None and kernels.usable(head):
        from synthspec.dflash.kernels import head as tiled

        return tiled.head_cross_entropy(hidden, head, labels, weights, wanted)
    total, odds = _HeadCrossEntropy.apply(hidden, head, labels, weights, wanted, among)
    return total, odds


class _LabelLogOdds(torch.autograd.Function):
    """log q(label), whose gradient to the hidden state is head[label] − softmax · head."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, among: Among | None) -> Tensor:
        hidden = hidden.to(head.dtype)
        expected, mass = _among(hidden, head, among)
        truth = head[labels]
        ctx.save_for_backward(truth - expected)
        return (_wide(hidden) * truth).sum(-1) - mass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return grads[0][:, None] * slope, None, None, None


def label_log_odds(hidden: Tensor, head: Tensor, labels: Tensor, among: Among | None = None) -> Tensor:
    """log q(label) of every row under a frozen head, q = softmax(hidden · headᵀ).

    Args:
        hidden: [M, H].
        head: [V, H], frozen.
        labels: int64 [M].
        among: the tokens that the softmax runs over, every label among them; by default all.

    Returns:
        float32 [M] (float64 under a head of float64), at most 0 but for rounding.
    """
    found: Tensor = _LabelLogOdds.apply(hidden, head, labels, among)
    return found


class _Measured(torch.autograd.Function):
    """Measures of q against p, a few rows at a time; their gradients are taken in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        labels: Tensor,
        told: Tensor,
        measures: Sequence[Measure],
        cap: float | None,
    ) -> Tensor:
        if not multiplies_bfloat16(head.device):
            head = _wide(head)
        hidden, told = hidden.to(head.dtype), told.to(head.dtype)
        values: list[Tensor] = []
        slopes: list[Tensor] = []
        parts = (x.split(ROWS_AT_ONCE) for x in (hidden, told, labels))
        for part, target, truth in zip(*parts, strict=True):
            wanted = _wide(target @ head.T)
            p = (cap * torch.tanh(wanted / cap) if cap else wanted).softmax(-1)
            with torch.enable_grad():
                logits = _wide(part @ head.T).detach().requires_grad_()
                log_q = logits.log_softmax(-1)
                found = [measure(log_q, p, truth) for measure in measures]
                turns = [torch.autograd.grad(one.sum(), logits, retain_graph=True)[0] for one in found]
            values.append(torch.stack([one.detach() for one in found]))
            slopes.append(torch.stack([turn.to(head.dtype) @ head for turn in turns]))
        ctx.save_for_backward(torch.cat(slopes, 1))
        return torch.cat(values, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return (grads[0][:, :, None] * slopes).sum(0), None, None, None, None, None


def measured(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    told: Tensor,
    measures: Sequence[Measure],
    cap: float | None = None,
) -> Tensor:
    """Measures of what the drafter gives against what the target gives, under the head that both have.

    `ROWS_AT_ONCE` rows of logits are in memory at a time.

    Args:
        hidden: [M, H], the drafter's.
        head: [V, H], frozen.
        labels: int64 [M].
        told: [M, H], the target's last hidden state, after its norm, that speaks of the same places.
        measures: each gives a number a row and may be differentiated by log q.
        cap: bounds the target's logits, cap · tanh(logit / cap); by default nothing does.

    Returns:
        float32 [measures, M] (float64 under a head of float64).
    """
    found: Tensor = _Measured.apply(hidden, head, labels, told, measures, cap)
    return found


def overlap(log_q: Tensor, p: Tensor, labels: Tensor) -> Tensor:
    """Σ min(p, q): how likely a draft drawn from q is accepted by a target of p (Leviathan et al. 2023)."""
    return torch.minimum(p, log_q.exp()).sum(-1)


def divergence(log_q: Tensor, p: Tensor, labels: Tensor) -> Tensor:
    """KL(p ‖ q) = Σ p (log p − log q), in nats."""
    return (torch.xlogy(p, p) - p * log_q).sum(-1)
