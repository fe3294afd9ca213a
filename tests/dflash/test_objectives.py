"""Every objective against its formula, written out plainly in float64 with all logits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from synthspec.dflash import loss
from synthspec.dflash.loss import decay, softmax_of_head
from synthspec.dflash.objectives import (
    OBJECTIVES,
    Guesses,
    alphas,
    cross_entropy_share,
    divisor,
    expected_acceptance,
    foreseen_as,
    lk_alpha,
    position_weights,
    total_variation,
)
from synthspec.spec import Objective, Train

BLOCKS, SIZE, HIDDEN, VOCABULARY = 6, 5, 12, 40


def some(name: str, seed: int, dtype: torch.dtype = torch.float64, soft: bool = True) -> tuple[Guesses, Tensor]:
    """Random guesses, and the target's last hidden states at their places."""
    torch.manual_seed(seed)
    real = torch.ones(2, BLOCKS // 2, SIZE - 1, dtype=torch.bool)
    real[0, 1, 2:] = False  # hangs over the end
    real[1, 0, 1] = False  # a gap: another turn stands there
    real[1, 2] = False  # fills the batch
    places = int(real.sum())
    head = torch.randn(VOCABULARY, HIDDEN, dtype=dtype) / 2
    told = torch.randn(places, HIDDEN, dtype=dtype)
    known = (torch.arange(2) == 0)[:, None, None].expand_as(real)[real] & soft
    kept = softmax_of_head(told, head)[0] if foreseen_as(name) == "expected" else told
    guesses = Guesses(
        hidden=torch.randn(places, HIDDEN, dtype=dtype, requires_grad=True),
        head=head,
        labels=torch.randint(0, VOCABULARY, (places,)),
        real=real,
        weights=torch.rand(real.shape) * real,
        foreseen=kept * known[:, None],
        soft=known,
    )
    return guesses, told


def plainly(name: str, guesses: Guesses, told: Tensor, share: float) -> Tensor:
    """The objective, one block and guess after the other."""
    head = guesses.head.double()
    log_q = (guesses.hidden.double() @ head.T).log_softmax(-1)
    p = torch.nn.functional.one_hot(guesses.labels, VOCABULARY).double()
    p[guesses.soft] = (told.double() @ head.T).softmax(-1)[guesses.soft]
    log_a = log_q[range(len(log_q)), guesses.labels]
    alpha = torch.minimum(p, log_q.exp()).sum(-1)
    kl = torch.stack(
        [
            sum(v * (v.log() - w) for v, w in zip(*row, strict=True) if v > 0)
            for row in zip(p, log_q, strict=True)
        ]
    )
    weights = guesses.weights.double()
    where = {tuple(place): number for number, place in enumerate(guesses.real.nonzero().tolist())}
    blocks = [(b, n) for b in range(2) for n in range(BLOCKS // 2) if guesses.real[b, n, 0]]

    def mean(values: Tensor) -> Tensor:
        return sum(weights[place] * values[i] for place, i in where.items()) / weights.sum()

    if name in ("cross_entropy", "forward_kl"):
        soft = (0.5 if name == "cross_entropy" else 1.0) * guesses.soft[:, None]
        hard = torch.nn.functional.one_hot(guesses.labels, VOCABULARY)
        return mean(-((1 - soft) * hard * log_q + soft * p * log_q).sum(-1))
    if name == "lk_alpha":
        return mean(-alpha.log())
    if name == "total_variation":
        return mean(share * -log_a + (1 - share) * (p - log_q.exp()).abs().sum(-1) / 2)
    if name == "lk_lambda":
        total = 0.0
        for k in range(SIZE - 1):
            here = {place: i for place, i in where.items() if place[2] == k}
            rate = sum(float(alpha[i].detach()) for i in here.values()) / len(here)
            for place, i in here.items():
                total += weights[place] * (
                    math.exp(-3 * rate) * kl[i] + (1 - math.exp(-3 * rate)) * (1 - alpha[i])
                )
        return total / weights.sum()
    total = 0.0
    for block in blocks:
        length = next((k for k in range(SIZE - 1) if not guesses.real[(*block, k)]), SIZE - 1)
        odds = [log_a[where[(*block, k)]].exp() for k in range(length)]
        if name == "dpace":
            smooth = [float(a.detach()) / 2 + 0.5 for a in odds]
            for k in range(length):
                value = sum(math.prod(smooth[: m + 1]) for m in range(k, length))
                total -= weights[(*block, k)] * value * odds[k].log()
        else:
            total -= sum(
                weights[(*block, k)] * (1 - share) * math.prod(odds[: k + 1], start=torch.ones(()))
                for k in range(length)
            )
    if name == "expected_acceptance":
        total += share * sum(weights[place] * -log_a[i] for place, i in where.items())
    return total / len(blocks)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_equals_its_formula_in_value_and_slope(name, dtype, seed, monkeypatch):
    monkeypatch.setattr(loss, "ROWS_AT_ONCE", 4)
    guesses, told = some(name, seed, dtype)
    share = 0.25 if name in ("total_variation", "expected_acceptance") else 0.0
    ours, odds = OBJECTIVES[name](guesses, share)
    (slope,) = torch.autograd.grad(3 * ours, guesses.hidden)
    plain = plainly(name, guesses, told, share)
    (expected,) = torch.autograd.grad(3 * plain, guesses.hidden)
    # What the target foresaw passes through float32 on its way into the cross entropies.
    close = 1e-4 if dtype == torch.float32 else 1e-6
    torch.testing.assert_close(ours.double(), plain.double(), rtol=close, atol=close)
    torch.testing.assert_close(slope, expected, rtol=10 * close, atol=close)
    assert slope.abs().max() > 1e-3
    true = (guesses.hidden @ guesses.head.T).softmax(-1)[range(len(odds)), guesses.labels]
    torch.testing.assert_close(odds.double(), true.double(), rtol=1e-4, atol=1e-6)
    assert not odds.requires_grad


# dpace and lk_lambda hold a factor constant: their slope is not that of their value; it is checked above.
@pytest.mark.parametrize("name", sorted({*OBJECTIVES} - {"dpace", "lk_lambda"}))
def test_the_slope_is_that_of_the_value(name, monkeypatch):
    monkeypatch.setattr(loss, "ROWS_AT_ONCE", 4)
    guesses, _ = some(name, 7)
    share = 0.25 if name in ("total_variation", "expected_acceptance") else 0.0
    given = guesses.hidden.detach().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda hidden: OBJECTIVES[name](replace(guesses, hidden=hidden), share)[0], (given,), fast_mode=True
    )


@pytest.mark.parametrize("name", ["dpace", "lk_lambda"])
def test_a_factor_that_is_held_constant_has_no_slope(name):
    """Along the slope the whole value changes otherwise than the slope says."""
    guesses, _ = some(name, 3)
    value, _ = OBJECTIVES[name](guesses, 0.0)
    (slope,) = torch.autograd.grad(value, guesses.hidden)
    step = 1e-6 * slope / slope.norm()

    def at(moved: Tensor) -> Tensor:
        return OBJECTIVES[name](replace(guesses, hidden=moved), 0.0)[0]

    change = (at(guesses.hidden.detach() + step) - at(guesses.hidden.detach() - step)) / 2e-6
    assert abs(float(change / slope.norm()) - 1) > 0.01


def test_without_the_targets_distribution_all_are_about_the_written_token():
    share = 0.0
    values = {}
    for name in OBJECTIVES:
        guesses, _ = some(name, 4, soft=False)
        values[name] = float(OBJECTIVES[name](guesses, share)[0].detach())
    assert values["lk_alpha"] == pytest.approx(values["cross_entropy"])
    assert values["forward_kl"] == pytest.approx(values["cross_entropy"])
    guesses, told = some("total_variation", 4, soft=False)
    odds = (guesses.hidden @ guesses.head.T).detach().softmax(-1)[range(len(told)), guesses.labels]
    weights = guesses.weights[guesses.real]
    assert values["total_variation"] == pytest.approx(float((weights * (1 - odds)).sum() / weights.sum()))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_batches_weighed_by_their_divisor_make_up_the_whole(name):
    guesses, _ = some(name, 10)
    whole, _ = OBJECTIVES[name](guesses, 0.25)
    rows = []
    for row in (0, 1):
        of_row = (torch.arange(2) == row)[:, None, None].expand_as(guesses.real)[guesses.real]
        picked = {key: getattr(guesses, key)[of_row] for key in ("hidden", "labels", "foreseen", "soft")}
        rows.append(replace(guesses, real=guesses.real[[row]], weights=guesses.weights[[row]], **picked))
    means = None
    if name == "lk_lambda":
        sums, counts = (sum(both) for both in zip(*map(alphas, rows), strict=True))
        means = sums / counts
    total = weight = 0.0
    for part in rows:
        by = divisor(name, part)
        total, weight = total + by * OBJECTIVES[name](replace(part, means=means), 0.25)[0], weight + by
    torch.testing.assert_close(total / weight, whole)


def test_expected_acceptance_is_the_mean_of_what_verification_accepts():
    """Drafts drawn from q, verified against the written tokens, as often as it takes to know the mean."""
    guesses, _ = some("expected_acceptance", 5)
    logits = (guesses.hidden @ guesses.head.T).detach()
    logits[range(len(logits)), guesses.labels] += 6  # so that something is accepted
    # A head of one-hot rows makes any logits.
    sure = replace(
        guesses,
        hidden=logits,
        head=torch.eye(VOCABULARY, dtype=torch.float64),
        weights=guesses.real.float(),
    )
    value, _ = expected_acceptance(sure, 0.0)
    dice = torch.Generator().manual_seed(0)
    drafts = torch.multinomial(logits.softmax(-1), 4000, replacement=True, generator=dice)
    right = torch.zeros(4000, *guesses.real.shape, dtype=torch.long)
    right[:, guesses.real] = (drafts == guesses.labels[:, None]).long().T
    accepted = right.cumprod(-1).sum(-1).float()  # [draws, B, N]
    blocks = guesses.real[..., 0]
    assert float(accepted[:, blocks].mean()) == pytest.approx(-value.item(), rel=0.02)
    assert -value.item() > 1


def test_a_guess_without_weight_still_stands_in_the_way_of_later_ones():
    guesses, _ = some("expected_acceptance", 6)
    weights = guesses.real.float()
    weights[..., 0] = 0
    value, _ = expected_acceptance(replace(guesses, weights=weights), 0.0)
    (slope,) = torch.autograd.grad(value, guesses.hidden)
    first = guesses.placed(torch.arange(float(len(slope))))[0, 0, 0]
    assert slope[int(first)].abs().max() > 0


def test_where_nothing_weighs_anything_the_loss_is_nothing():
    for name, objective in OBJECTIVES.items():
        guesses, _ = some(name, 8)
        value, _ = objective(replace(guesses, weights=torch.zeros_like(guesses.weights)), 0.0)
        (slope,) = torch.autograd.grad(value, guesses.hidden)
        assert value.item() == 0, name
        assert not slope.any(), name


def test_acceptance_that_vanishes_has_a_finite_slope():
    guesses, _ = some("lk_alpha", 9)
    far = (guesses.hidden * 1e4).detach().requires_grad_()
    for objective in (lk_alpha, total_variation):
        value, _ = objective(replace(guesses, hidden=far), 0.0)
        (slope,) = torch.autograd.grad(value, far)
        assert value.isfinite()
        assert slope.isfinite().all()


def test_positions_weigh_by_the_decay_unless_the_objective_weighs_them():
    torch.testing.assert_close(position_weights(Train(), 8), decay(8, 4.0))
    torch.testing.assert_close(position_weights(Train(objective="lk_alpha", loss_gamma=2.0), 8), decay(8, 2.0))
    for name in ("dpace", "expected_acceptance"):
        assert position_weights(Train(objective=name), 8).tolist() == [1.0] * 7


def test_total_variation_has_a_tenth_of_cross_entropy_unless_told():
    assert cross_entropy_share(Train(objective="total_variation")) == 0.1
    assert cross_entropy_share(Train(objective="total_variation", cross_entropy_share=0)) == 0
    assert cross_entropy_share(Train(objective="expected_acceptance")) == 0


def test_every_objective_of_the_spec_is_there():
    assert get_args(Objective) == tuple(OBJECTIVES)
