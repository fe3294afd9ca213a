from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from synthspec.dflash import loss
from synthspec.dflash.loss import (
    Among,
    decay,
    divergence,
    draw_among,
    head_cross_entropy,
    measured,
    overlap,
    softmax_of_head,
)


# float32 goes through slices of the vocabulary, float64 through slices of rows
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_equals_plain_cross_entropy_in_value_and_slope(rows, dtype, monkeypatch):
    monkeypatch.setattr(loss, "ROWS_AT_ONCE", 16)
    monkeypatch.setattr(loss, "TOKENS_AT_ONCE", 64)
    torch.manual_seed(rows)
    head = torch.randn(300, 24, dtype=dtype)
    hidden = torch.randn(rows, 24, dtype=dtype, requires_grad=True)
    labels, weights = torch.randint(0, 300, (rows,)), torch.rand(rows)
    total, odds = head_cross_entropy(hidden, head, labels, weights)
    (3 * total).backward()
    ours, hidden.grad = hidden.grad, None
    logits = hidden @ head.T
    plain = (cross_entropy(logits, labels, reduction="none") * weights).sum()
    (3 * plain).backward()
    torch.testing.assert_close(total.double(), plain.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, hidden.grad, rtol=1e-4, atol=1e-5)
    expected = logits.softmax(-1)[range(rows), labels]
    torch.testing.assert_close(odds, expected, rtol=1e-4, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize("units", [True, False])
def test_bfloat16_keeps_to_float32(units, monkeypatch):
    monkeypatch.setattr(loss, "multiplies_bfloat16", lambda device: units)
    torch.manual_seed(0)
    head, hidden = torch.randn(3000, 64) / 8, torch.randn(50, 64)
    labels, weights = torch.randint(0, 3000, (50,)), torch.rand(50)
    exact, _ = head_cross_entropy(hidden, head, labels, weights)
    near, odds = head_cross_entropy(hidden.bfloat16(), head.bfloat16(), labels, weights)
    torch.testing.assert_close(near, exact, rtol=1e-2, atol=1e-2)
    assert ((odds > 0) & (odds < 1)).all()


def test_logits_that_grow_or_fall_far_along_the_vocabulary_are_summed_up_right(monkeypatch):
    monkeypatch.setattr(loss, "TOKENS_AT_ONCE", 64)
    torch.manual_seed(0)
    head, hidden = torch.randn(300, 24), torch.randn(8, 24)
    raised = torch.linspace(-500, 500, 300)
    for up in (raised, -raised):
        out, mass = softmax_of_head(hidden, head, up)
        logits = hidden.double() @ head.double().T + up
        torch.testing.assert_close(mass.double(), logits.logsumexp(-1))
        torch.testing.assert_close(out.double(), logits.softmax(-1) @ head.double(), rtol=1e-4, atol=1e-5)


def test_decay_is_one_at_the_first_guess_and_falls_by_gamma():
    weights = decay(8, 4.0)
    assert weights.shape == (7,)
    assert weights[0] == 1
    torch.testing.assert_close(weights[4], torch.tensor(1.0).exp().reciprocal())


def test_a_distribution_is_learned_from_its_expected_row_alone():
    torch.manual_seed(0)
    head = torch.randn(300, 24, dtype=torch.float64)
    hidden = torch.randn(40, 24, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(40, 24, dtype=torch.float64)
    labels, weights = torch.randint(0, 300, (40,)), torch.rand(40)
    total, _ = head_cross_entropy(hidden, head, labels, weights, softmax_of_head(teacher, head)[0])
    total.backward()
    ours, hidden.grad = hidden.grad, None
    q = (teacher @ head.T).softmax(-1)
    plain = (-(q * (hidden @ head.T).log_softmax(-1)).sum(-1) * weights).sum()
    plain.backward()
    torch.testing.assert_close(total.double(), plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, hidden.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_softmax_among_some_tokens_is_right_in_expectation(dtype):
    """Σ exp(logits) over all draws of a small vocabulary has the mean of the true one; labels are exact."""
    torch.manual_seed(0)
    head, hidden = torch.randn(60, 24, dtype=dtype) / 4, torch.randn(7, 24, dtype=dtype)
    sure = torch.tensor([3, 8, 20, 41])
    dice = torch.Generator().manual_seed(0)
    masses = []
    for _ in range(3000):
        among = draw_among(sure, 60, 10, dice)
        assert among.tokens[:4].tolist() == sure.tolist()
        assert len(among.tokens.unique()) == 14
        masses.append(softmax_of_head(hidden, head[among.tokens], among.raised)[1].exp())
    true = (hidden @ head.T).exp().sum(-1).float()
    torch.testing.assert_close(torch.stack(masses).mean(0).float(), true, rtol=0.02, atol=0)


def test_among_all_tokens_is_no_softmax_of_some():
    assert draw_among(torch.tensor([1, 5]), 10, 8, torch.Generator()) is None
    torch.manual_seed(0)
    head, hidden = torch.randn(10, 24), torch.randn(3, 24, requires_grad=True)
    labels, weights = torch.tensor([1, 5, 1]), torch.rand(3)
    among = Among(torch.randperm(10), torch.zeros(10))
    some, odds = head_cross_entropy(hidden, head, labels, weights, among=among)
    every, truly = head_cross_entropy(hidden, head, labels, weights)
    torch.testing.assert_close(some, every)
    torch.testing.assert_close(odds, truly)


def test_a_target_is_measured_by_the_logits_that_it_caps():
    torch.manual_seed(0)
    head, hidden, told = (torch.randn(rows, 24, dtype=torch.float64) for rows in (60, 7, 7))
    labels = torch.randint(0, 60, (7,))
    p = (2 * torch.tanh(told @ head.T / 2)).softmax(-1)
    q = (hidden @ head.T).softmax(-1)
    found = measured(hidden, head, labels, told, (overlap, divergence), 2.0)
    torch.testing.assert_close(found[0], torch.minimum(p, q).sum(-1))
    torch.testing.assert_close(found[1], (p * (p / q).log()).sum(-1))
