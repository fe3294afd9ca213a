"""Acceptance lengths and their intervals, against answers known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthspec.acceptance.compare import (
    Estimate,
    accept_len,
    bootstrap,
    paired_bootstrap,
    requests_to_settle,
)

counts = st.lists(
    st.integers(1, 50).flatmap(lambda steps: st.tuples(st.integers(0, 7 * steps), st.just(steps))),
    min_size=1,
    max_size=12,
)


def test_sums_come_before_the_quotient() -> None:
    # Two requests of 4/1 and 0/9: their mean would be 3, the set's acceptance length is 1.4.
    assert accept_len([4, 0], [1, 9]) == pytest.approx(1.4)


def test_a_request_without_a_step_moves_nothing() -> None:
    alone, beside = bootstrap([3, 8, 2], [2, 3, 4]), bootstrap([3, 0, 8, 2, 0], [2, 0, 3, 4, 0])
    assert alone == beside
    assert alone.requests == 3
    pair = ([1, 2, 3], [3, 3, 3], [4, 5, 6], [2, 2, 2])
    assert paired_bootstrap(*pair) == paired_bootstrap(*([*counts, 0] for counts in pair))


@given(counts)
def test_value_lies_in_its_interval_and_between_the_extremes(rows: list[tuple[int, int]]) -> None:
    accepted, steps = zip(*rows, strict=True)
    estimate = bootstrap(accepted, steps, resamples=200)
    each = 1 + np.array(accepted) / np.array(steps)
    slack = 1e-9
    assert each.min() - slack <= estimate.low <= estimate.high <= each.max() + slack
    assert each.min() - slack <= estimate.value <= each.max() + slack
    assert estimate.value == pytest.approx(accept_len(accepted, steps))


def test_same_seed_same_interval() -> None:
    rng = np.random.default_rng(1)
    steps = rng.integers(5, 50, 30)
    accepted = rng.binomial(7 * steps, 0.3)
    assert bootstrap(accepted, steps) == bootstrap(accepted, steps)
    assert bootstrap(accepted, steps) != bootstrap(accepted, steps, seed=1)


def test_identical_requests_have_no_width() -> None:
    estimate = bootstrap([6] * 10, [4] * 10)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((2.5, 2.5, 2.5))


def test_interval_matches_the_closed_form() -> None:
    # With equal steps the acceptance length is a mean, so its standard error is known: sd / sqrt(n).
    rng = np.random.default_rng(2)
    accepted = rng.normal(60, 12, 400).round()
    steps = np.full(400, 20)
    estimate = bootstrap(accepted, steps, resamples=4000)
    expected = 2 * 1.96 * (accepted / 20).std() / 400**0.5
    assert estimate.high - estimate.low == pytest.approx(expected, rel=0.06)


def test_coverage_is_near_the_level() -> None:
    # 300 worlds of 40 requests whose true acceptance length is 1 + 0.8.
    rng = np.random.default_rng(3)
    hits = 0
    for world in range(300):
        steps = rng.integers(10, 40, 40)
        ease = rng.normal(0.8, 0.15, 40)  # requests differ, and so do steps
        accepted = rng.poisson(np.clip(ease, 0, None) * steps)
        estimate = bootstrap(accepted, steps, resamples=400, seed=world)
        hits += estimate.low <= 1.8 <= estimate.high
    assert 0.90 <= hits / 300 <= 0.98


def test_paired_beats_unpaired() -> None:
    # Requests differ much from each other, the drafters by 0.1 on each of them.
    rng = np.random.default_rng(4)
    steps = np.full(60, 100)
    start = rng.normal(80, 30, 60).round().clip(0)
    trained = start + rng.normal(10, 4, 60).round()
    paired = paired_bootstrap(start, steps, trained, steps)
    alone = [bootstrap(trained, steps, seed=1), bootstrap(start, steps, seed=2)]
    apart = np.hypot(*(estimate.high - estimate.low for estimate in alone))  # variances add
    assert paired.value == pytest.approx(accept_len(trained, steps) - accept_len(start, steps))
    assert 0.05 < paired.low < 0.1 < paired.high + 0.02
    assert paired.high - paired.low < 0.2 * apart


def test_a_drafter_does_not_differ_from_itself() -> None:
    rng = np.random.default_rng(5)
    steps = rng.integers(5, 50, 30)
    accepted = rng.binomial(7 * steps, 0.3)
    assert paired_bootstrap(accepted, steps, accepted, steps) == Estimate(0.0, 0.0, 0.0, 30)


def test_order_of_the_pairs_matters_and_the_sign_is_trained_minus_start() -> None:
    worse = paired_bootstrap([10, 12, 11], [5, 5, 5], [5, 6, 5], [5, 5, 5])
    assert worse.value < 0
    assert worse.high < 0


@pytest.mark.parametrize(
    ("accepted", "steps"),
    [
        ([1, 2], [1]),
        ([[1]], [[1]]),
        ([-1], [1]),
        ([float("nan")], [1]),
        ([1], [0]),
        ([0], [0]),
        ([], []),
    ],
)
def test_impossible_counts_are_refused(accepted: list[float], steps: list[float]) -> None:
    with pytest.raises(ValueError, match=r"accept|step"):
        bootstrap(accepted, steps)


def test_pairs_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="not the same requests"):
        paired_bootstrap([1, 2], [1, 1], [1], [1])


def test_requests_to_settle() -> None:
    # A half-width of 0.2 must shrink to 0.1, which takes four times the requests.
    assert requests_to_settle(Estimate(0.0, -0.2, 0.2, 40), -0.1) == 160
    assert requests_to_settle(Estimate(-0.2, -0.4, 0.0, 40), -0.1) is None
    assert requests_to_settle(Estimate(-0.1, -0.4, 0.0, 40), -0.1) is None
