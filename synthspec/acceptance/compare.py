"""Acceptance lengths with their uncertainty: one drafter alone, and two on the same requests.

Counts come per request: `accepted` draft tokens and verification `steps`. A request is what is resampled,
never a token: the tokens of one answer are not independent of each other.

All intervals are percentile bootstraps: the requests are drawn again with replacement, the statistic is
computed on each draw, and the interval runs between the quantiles of the draws (Efron and Tibshirani, An
Introduction to the Bootstrap, chapter 13). It is a little narrow for few requests: with 20 of them somewhat
fewer than 95% of the intervals hold the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number and its interval, in tokens a verification step."""

    value: float
    low: float
    high: float
    requests: int  # requests that the number rests on: those with at least one verification step


def accept_len(accepted: npt.ArrayLike, steps: npt.ArrayLike) -> float:
    """Acceptance length of a set: `τ = 1 + Σ accepted / Σ steps`.

    Sums come first, so a long answer weighs as much as its steps do, and a request that ended before any
    verification step cannot move the result.

    Args:
        accepted: [requests] accepted draft tokens of each request.
        steps: [requests] verification steps of each request.

    Raises:
        ValueError: the arrays differ in length, hold a negative count, accept tokens without a step, or
            there is no step at all.
    """
    a, s = _counts(accepted, steps)
    if not s.sum():
        raise ValueError("no request has a verification step, so there is no acceptance length")
    return float(1 + a.sum() / s.sum())


def bootstrap(
    accepted: npt.ArrayLike,
    steps: npt.ArrayLike,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Estimate:
    """Acceptance length with its percentile bootstrap interval over requests.

    Draw b takes n of the n requests with replacement, which is a count `w_bi` for each request i, and gives
    `τ_b = 1 + Σ_i w_bi · accepted_i / Σ_i w_bi · steps_i`; the interval is the `(1 ∓ level) / 2` quantiles.

    Args:
        accepted: [requests] accepted draft tokens of each request.
        steps: [requests] verification steps of each request.
        resamples: draws; memory is `8 · resamples · requests` bytes.
        level: share of draws inside the interval.
        seed: the same seed and counts give the same interval.

    Raises:
        ValueError: as in `accept_len`.
    """
    a, s = _counts(accepted, steps)
    value = accept_len(a, s)
    drafted = s > 0
    a, s = a[drafted], s[drafted]
    weights = _weights(len(s), resamples, seed)  # [resamples, requests]
    low, high = _ends(1 + (weights @ a) / (weights @ s), level)
    return Estimate(value, low, high, len(s))


def paired_bootstrap(
    start_accepted: npt.ArrayLike,
    start_steps: npt.ArrayLike,
    trained_accepted: npt.ArrayLike,
    trained_steps: npt.ArrayLike,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Estimate:
    """Difference `τ_trained − τ_start` on the same requests, with its percentile bootstrap interval.

    Row i of all four arrays is the same request. Each draw takes the same requests for both drafters, so
    what makes a request easy or hard for both of them cancels, and the interval is narrower than that of
    two sets drawn apart.

    Args:
        start_accepted, start_steps: [requests] counts of the starting drafter.
        trained_accepted, trained_steps: [requests] counts of the trained drafter.
        resamples, level, seed: as in `bootstrap`.

    Raises:
        ValueError: as in `accept_len`, or the two drafters have different numbers of requests.
    """
    a0, s0 = _counts(start_accepted, start_steps)
    a1, s1 = _counts(trained_accepted, trained_steps)
    if len(s0) != len(s1):
        raise ValueError(f"not the same requests: {len(s0)} at the start, {len(s1)} trained")
    value = accept_len(a1, s1) - accept_len(a0, s0)
    # A request that neither drafter took a step on says nothing about either. One that only one of them
    # took a step on (answers of two servers may differ) stays, in that drafter's sums.
    drafted = (s0 > 0) | (s1 > 0)
    a0, s0, a1, s1 = a0[drafted], s0[drafted], a1[drafted], s1[drafted]
    weights = _weights(len(s0), resamples, seed)  # [resamples, requests]
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = (weights @ a1) / (weights @ s1) - (weights @ a0) / (weights @ s0)
    low, high = _ends(draws, level)
    return Estimate(value, low, high, len(s0))


def requests_to_settle(estimate: Estimate, limit: float) -> int | None:
    """Requests at which the lower end would reach `limit`, if the mean stayed where it is; else None.

    The width of an interval falls with the root of the number of requests, so
    `n' = n · ((value − low) / (value − limit))²`.
    """
    room = estimate.value - limit
    if not room > 0 or not math.isfinite(estimate.low):
        return None
    return math.ceil(estimate.requests * ((estimate.value - estimate.low) / room) ** 2)


def _counts(accepted: npt.ArrayLike, steps: npt.ArrayLike) -> tuple[Array, Array]:
    a, s = np.asarray(accepted, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    if a.shape != s.shape or a.ndim != 1:
        raise ValueError(f"accepted {a.shape} and steps {s.shape} must hold one number a request")
    if not (np.isfinite(a).all() and np.isfinite(s).all()) or (a < 0).any() or (s < 0).any():
        raise ValueError("accepted tokens and steps are counts: none may be negative or missing")
    if (a[s == 0] > 0).any():
        raise ValueError("a request has accepted draft tokens without a verification step")
    return a, s


def _weights(requests: int, resamples: int, seed: int) -> Array:
    """[resamples, requests] float64: how often each draw holds each request; a row sums to `requests`."""
    chances = np.full(requests, 1 / requests)
    return np.random.default_rng(seed).multinomial(requests, chances, size=resamples).astype(np.float64)


def _ends(draws: Array, level: float) -> tuple[float, float]:
    """Both ends of the interval; a draw without a single step has no acceptance length and is left out."""
    low, high = np.nanquantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
