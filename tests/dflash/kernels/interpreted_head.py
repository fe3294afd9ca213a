"""Run by test_kernels.py in a process of its own, where Triton interprets its kernels on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synthspec.dflash import kernels, loss
from synthspec.dflash.kernels import head as tiled
from synthspec.dflash.kernels.head import Tiles, head_cross_entropy
from tests.dflash.kernels.interpreter import mend

mend()
NEAR = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}

# M, H, V
SHAPES = [
    (1, 16, 16),
    (32, 32, 64),  # whole tiles
    (35, 24, 100),
    (7, 70, 33),
    (280, 16, 20),  # more than sixteen tiles of rows, so two bands of them
]


@pytest.fixture
def small(monkeypatch) -> None:
    """Tiles of 16 columns and strips of 2 tiles at the most, so that small inputs have many of both."""
    monkeypatch.setattr(tiled, "HALF", Tiles(rows=16, columns=16, depth=16, warps=4, stages=1))
    monkeypatch.setattr(tiled, "FULL", Tiles(rows=16, columns=16, depth=16, warps=4, stages=1))
    monkeypatch.setattr(tiled, "STRIP", 35 * 32)


def inputs(rows: int, width: int, vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    hidden = torch.randn(rows, width).to(dtype).requires_grad_()
    head = (2 * torch.randn(vocabulary, width) / width**0.5).to(dtype)
    labels, weights = torch.randint(0, vocabulary, (rows,)), torch.rand(rows)
    labels[0] = vocabulary - 1
    return hidden, head, labels, weights


def near(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    scale = max(1.0, wanted.abs().max().item())
    torch.testing.assert_close(got.double(), wanted, rtol=NEAR[dtype], atol=NEAR[dtype] * scale)


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize(("rows", "width", "vocabulary"), SHAPES)
def test_equals_cross_entropy_written_out(rows, width, vocabulary, dtype, small, fresh):
    hidden, head, labels, weights = inputs(rows, width, vocabulary, dtype)
    total, odds = head_cross_entropy(hidden, head, labels, weights)
    assert total.dtype == odds.dtype == torch.float32
    assert not odds.requires_grad
    (3 * total).backward()
    assert hidden.grad.dtype == dtype
    exact = hidden.detach().double().requires_grad_()
    logits = exact @ head.double().T
    probabilities = logits.exp() / logits.exp().sum(-1, keepdim=True)
    hit = probabilities[torch.arange(rows), labels]
    wanted = -(hit.log() * weights.double()).sum()
    (3 * wanted).backward()
    near(total, wanted, torch.float32)
    near(odds, hit, torch.float32)
    near(hidden.grad, exact.grad, dtype)


@pytest.mark.parametrize("dtype", NEAR)
def test_a_distribution_is_learned_as_written_out(dtype, small, fresh):
    hidden, head, labels, weights = inputs(35, 24, 70, dtype)
    q = torch.randn(35, 70).softmax(-1).double()
    total, odds = head_cross_entropy(hidden, head, labels, weights, (q @ head.double()).float())
    (3 * total).backward()
    exact = hidden.detach().double().requires_grad_()
    logits = (exact @ head.double().T).log_softmax(-1)
    wanted = -((q * logits).sum(-1) * weights).sum()
    (3 * wanted).backward()
    near(total, wanted, dtype)
    near(odds, logits[torch.arange(35), labels].exp(), torch.float32)
    near(hidden.grad, exact.grad, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_as_on_a_gpu(dtype, fresh):
    hidden, head, labels, weights = inputs(130, 72, 260, dtype)
    total, _ = head_cross_entropy(hidden, head, labels, weights)
    total.backward()
    exact = hidden.detach().double().requires_grad_()
    logits = (exact @ head.double().T).log_softmax(-1)
    wanted = -(logits[torch.arange(130), labels] * weights).sum()
    wanted.backward()
    near(total, wanted, torch.float32)
    near(hidden.grad, exact.grad, dtype)


def test_large_logits_neither_overflow_nor_lose_the_label(small, fresh):
    hidden, head, labels, weights = inputs(20, 24, 100, torch.float32)
    total, _ = head_cross_entropy(200 * hidden, head, labels, weights)
    logits = (200 * hidden.double() @ head.double().T).log_softmax(-1)
    assert logits.min() < -200
    near(total, -(logits[torch.arange(20), labels] * weights).sum(), torch.float32)
    total.backward()
    assert hidden.grad.isfinite().all()


def test_a_sure_label_keeps_its_small_slope_in_bfloat16(small, fresh):
    """Its share is within a rounding of 1, and what is missing to 1 is the slope."""
    head = torch.eye(16, dtype=torch.bfloat16)
    hidden = (8.0 * torch.eye(16))[:4].bfloat16().requires_grad_()
    total, _ = head_cross_entropy(hidden, head, torch.arange(4), torch.ones(4))
    total.backward()
    missing = 1 - 1 / (1 + 15 * torch.tensor(-8.0, dtype=torch.float64).exp())
    wanted = (torch.full((4, 16), missing / 15) - torch.eye(16)[:4] * missing * 16 / 15).double()
    torch.testing.assert_close(hidden.grad.double(), wanted, rtol=1e-2, atol=0)


def test_a_label_outside_the_vocabulary_is_no_number(small, fresh):
    hidden, head, labels, weights = inputs(3, 16, 40, torch.float32)
    labels[1] = 40
    total, _ = head_cross_entropy(hidden, head, labels, weights)
    assert total.isnan()


def test_no_rows_are_no_loss(small):
    hidden = torch.zeros(0, 16, requires_grad=True)
    total, odds = head_cross_entropy(hidden, torch.randn(40, 16), torch.zeros(0).long(), torch.zeros(0))
    total.backward()
    assert total == 0
    assert odds.shape == (0,)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_is_that_of_the_torch_path(dtype, soft, small, fresh, monkeypatch):
    hidden, head, labels, weights = inputs(35, 24, 70, dtype)
    hidden = hidden.detach().float().requires_grad_()  # as under autocast, wider than the head
    wanted = head[labels].float() + torch.randn(35, 24) / 8 if soft else None
    found = []
    for use in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda x, use=use: use)
        total, odds = loss.head_cross_entropy(hidden, head, labels, weights, wanted)
        (slope,) = torch.autograd.grad(total, hidden)
        found.append((total, odds, slope))
    for other, one in zip(*found, strict=True):
        near(one, other.double(), dtype)
    assert not torch.equal(found[0][2], found[1][2])  # they are two computations
