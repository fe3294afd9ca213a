from __future__ import annotations

import copy
import math
from itertools import pairwise

import pytest
import torch

from synthspec.dflash.optimize import follow, learning_rate, optimizers, set_learning_rate
from synthspec.spec import Train


def curve(**changes):
    settings = Train(learning_rate=1.0, **changes)
    return [learning_rate(step, settings) for step in range(settings.steps)]


def test_cosine_rises_and_falls_to_a_twentieth():
    rates = curve(steps=1000, warmup=0.1)
    assert rates[:100] == pytest.approx([(step + 1) / 100 for step in range(100)])
    assert rates[100] == 1.0
    assert rates[550] == pytest.approx(0.05 + 0.95 / 2, abs=1e-3)
    assert rates[-1] == pytest.approx(0.05, abs=1e-3)


def test_wsd_rises_stays_and_falls():
    rates = curve(steps=100, schedule="wsd", warmup=0.1, cooldown=0.3)
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10:70] == [1.0] * 60
    assert rates[70:] == pytest.approx([1 - math.sqrt(n / 31) for n in range(1, 31)])
    assert all(one > other > 0 for one, other in pairwise(rates[69:]))
    assert curve(steps=10, schedule="wsd", warmup=0, cooldown=0)[-2:] == pytest.approx(
        [1.0, 1 - math.sqrt(0.5)]
    )


def test_muon_moves_the_matrices_of_the_layers_and_adamw_the_rest(drafter):
    muon, adamw = optimizers(drafter, Train(optimizer="muon"))
    names = {id(weight): name for name, weight in drafter.named_parameters()}
    moved = {names[id(weight)] for group in muon.param_groups for weight in group["params"]}
    rest = {names[id(weight)] for group in adamw.param_groups for weight in group["params"]}
    assert moved | rest == set(names.values())
    assert moved & rest == set()
    assert {name.split(".")[-2] for name in moved} == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }
    assert "fc.weight" in rest
    set_learning_rate([muon, adamw], 0.25)
    assert [group["lr"] for one in (muon, adamw) for group in one.param_groups] == [0.25, 0.25]


def test_an_update_of_muon_is_nearly_orthogonal_and_of_the_size_of_one_of_adamw(drafter):
    before = copy.deepcopy(drafter)
    moved_by = optimizers(drafter, Train(optimizer="muon", learning_rate=1e-2))
    dice = torch.Generator().manual_seed(0)
    for weight in drafter.parameters():
        weight.grad = torch.randn(weight.shape, generator=dice)
    for one in moved_by:
        one.step()
    for (name, weight), old in zip(drafter.named_parameters(), before.parameters(), strict=True):
        update = (weight - old).detach()
        if name.startswith("layers.") and weight.ndim == 2:
            sizes = torch.linalg.svdvals(update)
            assert sizes.max() < 2.5 * sizes.min(), name
            assert update.square().mean().sqrt() == pytest.approx(0.2 * 1e-2, rel=0.4)
        else:
            torch.testing.assert_close(update.abs(), torch.full_like(update, 1e-2), rtol=1e-3, atol=1e-6)


def test_the_mean_follows_the_weights(drafter):
    mean = {name: torch.zeros_like(weight) for name, weight in drafter.named_parameters()}
    weights = {name: torch.ones_like(weight) for name, weight in mean.items()}
    expected = 0.0
    for step in range(200):
        follow(mean, weights.items(), step, 0.9)
        decay = min(0.9, (2 + step) / (11 + step))
        expected = decay * expected + 1 - decay
        if step == 0:
            assert expected == pytest.approx(9 / 11)
    for one in mean.values():
        torch.testing.assert_close(one, torch.full_like(one, expected))
