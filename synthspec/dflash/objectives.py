"""What training makes small: one function an objective, over the guesses of a batch of blocks.

Letters: a block has guesses k = 1 … S − 1; q is what the drafter gives at a place and p what the target
gives; x is the token that the target wrote there, and a = q(x).  α = Σ min(p, q) is how likely a draft drawn
from q is accepted, and 1 − α the total variation between p and q (Leviathan et al., "Fast Inference from
Transformers via Speculative Decoding", 2023).  s is the weight of the span that a token lies in
(`train.span_weights`), d the decay of `loss.decay`, and w = d · s.

Where p comes from: of an answer that was not held to a grammar, from the target's last hidden state at the
token before, at temperature 1.  Under a grammar the target chooses among the allowed tokens only, and what it
would have weighed among them is not kept: there p is all on x, which is a draw from it.  Then α = a, and both
KL(p ‖ q) and −log α are the plain cross entropy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from synthspec.dflash.batches import Batch
from synthspec.dflash.features import Form
from synthspec.dflash.loss import (
    Among,
    Measure,
    decay,
    divergence,
    head_cross_entropy,
    label_log_odds,
    measured,
    overlap,
    usual_gamma,
)
from synthspec.spec import Train

SOFT = 0.5  # share of the target's own distribution in what `cross_entropy` learns, where it was kept
SMOOTHING = 0.5  # of D-PACE: its authors' value
BLEND = 3.0  # η of LK: its authors' best
CROSS_ENTROPY_SHARE = 0.1  # of `total_variation`, as in DSpark


@dataclass(frozen=True)
class Guesses:
    """The guesses of a batch at M places that hold a supervised token.

    Args:
        hidden: [M, H], the drafter's outputs.
        head: [V, H], the target's, frozen.
        labels: int64 [M], the tokens that the target wrote.
        real: bool [B, N, S − 1], which guesses the M are, in order.
        weights: float32 [B, N, S − 1], 0 where there is nothing to guess.
        foreseen: [M, H], what `Features.expected` holds of each place; H is 0 where no document has it.
        soft: bool [M], whether it does of this place.
        among: the tokens that a softmax runs over; all by default.
        cap: what bounds the target's own logits, cap · tanh(logit / cap), where something does; the drafter's
            are not bounded, as in the engines.
        means: [S − 1], the mean of α over the k-th guesses of the whole step; by default over those here.
    """

    hidden: Tensor
    head: Tensor
    labels: Tensor
    real: Tensor
    weights: Tensor
    foreseen: Tensor
    soft: Tensor
    among: Among | None = None
    cap: float | None = None
    means: Tensor | None = None

    def log_odds(self) -> Tensor:
        """log a, float32 [M]."""
        return label_log_odds(self.hidden, self.head, self.labels, self.among)

    def placed(self, values: Tensor) -> Tensor:
        """[M] → [B, N, S − 1], zeros elsewhere."""
        return values.new_zeros(self.real.shape).masked_scatter(self.real, values)

    def mean(self, values: Tensor) -> Tensor:
        """Σ w · values / Σ w, values [M]; 0 where all weigh nothing."""
        return (self.weights[self.real] * values).sum() / _some(self.weights.sum())

    def blocks(self) -> Tensor:
        """How many blocks there are; others only fill the batch."""
        return self.real[..., 0].sum().clamp(min=1)


def _some(total: Tensor) -> Tensor:
    """A divisor that is not 0: what it divides is 0 then."""
    return total.clamp(min=torch.finfo(torch.float32).tiny)


Loss = tuple[Tensor, Tensor]  # the scalar to make small, and a of every place, [M]


def cross_entropy(guesses: Guesses, share: float) -> Loss:
    """L = Σ w · (−Σ r log q) / Σ w (DFlash, arXiv 2602.06036, eq. 4).

    r is all on x or, where the target's own distribution was kept, half of it is, and half is p: of few samples
    that says more.
    """
    return _toward(guesses, SOFT)


def forward_kl(guesses: Guesses, share: float) -> Loss:
    """L = Σ w · (−Σ p log q) / Σ w: forward KL to the target and the target's own entropy, which no drafter can
    change (Hinton et al., "Distilling the Knowledge in a Neural Network", 2015, at temperature 1)."""
    return _toward(guesses, 1.0)


def _toward(guesses: Guesses, share: float) -> Loss:
    """Weighted cross entropy with x, of which `share` gives way to p where that is known."""
    wanted = None
    if guesses.soft.any():
        known = share * guesses.soft[:, None]
        wanted = torch.lerp(guesses.head[guesses.labels].float(), guesses.foreseen.float(), known)
    total, odds = head_cross_entropy(
        guesses.hidden,
        guesses.head,
        guesses.labels,
        guesses.weights[guesses.real],
        wanted,
        guesses.among,
    )
    return total / _some(guesses.weights.sum()), odds


def dpace(guesses: Guesses, share: float) -> Loss:
    """L = Σ_blocks Σ_k s_k · v_k · (−log a_k) / blocks, with v_k = Σ_{m ≥ k} Π_{i ≤ m} ã_i, ã = a / 2 + 1 / 2.

    D-PACE (arXiv 2605.18810, eq. 7 to 9): v is a constant to the gradient, and in place of a fixed decay
    follows the guess that ends the prefix now.  The formula is taken from its implementers' accounts, not from
    the paper's own text; that one divides by blocks, since the sum of the v says how much there is to gain, is
    its author's word (sgl-project/SpecForge issue 828).
    """
    log_odds = guesses.log_odds()
    odds = log_odds.detach().exp()
    reach = guesses.placed((1 - SMOOTHING) * odds + SMOOTHING).cumprod(-1)
    values = reach.flip(-1).cumsum(-1).flip(-1)
    return (guesses.weights * values * guesses.placed(-log_odds)).sum() / guesses.blocks(), odds


def lk_lambda(guesses: Guesses, share: float) -> Loss:
    """L = Σ w · (λ KL(p ‖ q) + (1 − λ) (1 − α)) / Σ w, λ_k = exp(−3 · mean of α over the step's k-th guesses).

    The adaptive one of the LK losses (Samarin et al., arXiv 2602.23881, sections 4.2 and 4.4): λ is a
    constant to the gradient; while little is accepted the divergence leads, whose gradient does not vanish,
    and then acceptance itself.  The formula is taken from its implementers' accounts, not from the paper's own
    text; they differ in whether λ is one a token or, as here, one a position.
    """
    alpha, kl, log_odds = _compared(guesses, (overlap, divergence))
    means = guesses.means
    if means is None:
        sums, counts = _by_position(guesses, alpha.detach())
        means = sums / counts.clamp(min=1)
    blend = torch.exp(-BLEND * means).expand_as(guesses.real)[guesses.real]
    return guesses.mean(blend * kl + (1 - blend) * (1 - alpha)), log_odds.detach().exp()


def _by_position(guesses: Guesses, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the k-th guesses, and how many there are, both [S − 1]."""
    return guesses.placed(values).flatten(0, -2).sum(0), guesses.real.flatten(0, -2).sum(0)


def alphas(guesses: Guesses) -> tuple[Tensor, Tensor]:
    """Σ α over the k-th guesses, and how many there are, both [S − 1]: of several batches, what
    `Guesses.means` is made of."""
    return _by_position(guesses, _compared(guesses, (overlap,))[0].detach())


def lk_alpha(guesses: Guesses, share: float) -> Loss:
    """L = Σ w · (−log α) / Σ w: the LK loss without a constant (arXiv 2602.23881, as `lk_lambda`)."""
    alpha, _, log_odds = _compared(guesses, (overlap,))
    return guesses.mean(-alpha.clamp(min=torch.finfo(torch.float32).tiny).log()), log_odds.detach().exp()


def total_variation(guesses: Guesses, share: float) -> Loss:
    """L = Σ w · (c (−log a) + (1 − c) (1 − α)) / Σ w, with c = `share`, by default 0.1.

    The mix of DSpark (arXiv 2607.05147), which takes Σ |p − q|, twice the total variation; taken from NVIDIA's
    description (Megatron-Bridge, dspark.loss), not from the paper's own text.  Alone, total variation hardly
    begins to learn: its gradient vanishes where p and q hardly overlap.
    """
    alpha, _, log_odds = _compared(guesses, (overlap,))
    return guesses.mean(share * -log_odds + (1 - share) * (1 - alpha)), log_odds.detach().exp()


def expected_acceptance(guesses: Guesses, share: float) -> Loss:
    """L = Σ_blocks Σ_k s_k · (c (−log a_k) − (1 − c) Π_{i ≤ k} a_i) / blocks, with c = `share`.

    The mean number of drafted tokens that are accepted, E = Σ_k P(the first k are), made large; without span
    weights 1 − L is the acceptance length (c = 0).  Derived here; DeepSpec's pull request 58 makes the same sum
    of α large, and D-PACE starts from it.

    a_i is the probability that draft i is accepted, given that those before it were, for a draft that is
    drawn from q.  Verified greedily, x_i is the target's choice, and such a draft is x_i with probability
    q(x_i). Verified by sampling as for a point mass (the draft is accepted with its probability under the
    target), it is accepted with Σ p q, of which q(x_i) is an unbiased estimate, since x_i was drawn from p.
    A drafter's guesses do not depend on each other, so that the product is exact.  An engine drafts the
    likeliest token instead of drawing, for which there is no gradient; the two agree where q is sure.

    The gradient of a product vanishes where its first factors are small: begin with a drafter that works, or
    give cross entropy a share.
    """
    log_odds = guesses.log_odds()
    reach = guesses.placed(log_odds.exp()).cumprod(-1)
    gain = (1 - share) * reach
    if share:
        gain = gain + share * guesses.placed(log_odds)
    return -(guesses.weights * gain).sum() / guesses.blocks(), log_odds.detach().exp()


def _compared(guesses: Guesses, measures: tuple[Measure, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """α and, where it is asked for, KL(p ‖ q) of every place; and log a.

    Only places of which p is known cost the products that compare them.
    """
    log_odds = guesses.log_odds()
    alpha, kl = log_odds.exp(), -log_odds
    if guesses.soft.any():
        known = guesses.soft
        found = measured(
            guesses.hidden[known],
            guesses.head,
            guesses.labels[known],
            guesses.foreseen[known],
            measures,
            guesses.cap,
        )
        alpha = alpha.masked_scatter(known, found[0])
        if len(measures) > 1:
            kl = kl.masked_scatter(known, found[1])
    return alpha, kl, log_odds


OBJECTIVES: dict[str, Callable[[Guesses, float], Loss]] = {
    "cross_entropy": cross_entropy,
    "forward_kl": forward_kl,
    "dpace": dpace,
    "lk_lambda": lk_lambda,
    "lk_alpha": lk_alpha,
    "total_variation": total_variation,
    "expected_acceptance": expected_acceptance,
}


def position_weights(settings: Train, block_size: int) -> Tensor:
    """d of the guesses k = 1 … block_size − 1, float32; ones where the objective weighs positions itself."""
    if settings.objective in ("dpace", "expected_acceptance"):
        return torch.ones(block_size - 1)
    return decay(block_size, settings.loss_gamma or usual_gamma(block_size))


def divisor(objective: str, batch: Batch) -> Tensor:
    """What an objective divides its sum over a batch by: the weights of all guesses, or the number of blocks.

    The mean of several batches' objectives, each weighed by it, is that of all their guesses together
    (`lk_lambda` must be told their common `means`).
    """
    if objective in ("dpace", "expected_acceptance"):
        return batch.real[..., 0].sum()
    return batch.weights.sum()


def cross_entropy_share(settings: Train) -> float:
    """c of the objectives that mix cross entropy in."""
    usual = CROSS_ENTROPY_SHARE if settings.objective == "total_variation" else 0.0
    return usual if settings.cross_entropy_share is None else settings.cross_entropy_share


def foreseen_as(objective: str) -> Form | None:
    """What an objective needs of the target at places that were not held to a grammar: softmax · head, the last
    hidden state, or nothing."""
    if objective in ("cross_entropy", "forward_kl"):
        return "expected"
    return "hidden" if objective in ("lk_lambda", "lk_alpha", "total_variation") else None
