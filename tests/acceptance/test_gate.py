"""The gate at its boundaries, and the words in which it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from synthspec.acceptance.gate import decide
from synthspec.errors import UserError
from synthspec.spec import Gate

RULES = Gate(in_domain_gain=0.2, heldout_grammar_drop=0.05, ood_drop=0.1, min_requests=20)


def one(
    kind: str,
    low: float,
    *,
    mean: float | None = None,
    requests: int = 40,
    start: float = 1.5,
    name: str = "",
) -> dict[str, Any]:
    mean = low + 0.1 if mean is None else mean
    return {
        "name": name or kind,
        "kind": kind,
        "requests": requests,
        "start": {"accept_len": start},
        "difference": {"mean": mean, "ci95": [low, 2 * mean - low]},
    }


def gate(*sets: dict[str, Any]) -> dict[str, Any]:
    return decide({"sets": list(sets)}, RULES)


GOOD = one("heldout_prompts", 1.7)


@pytest.mark.parametrize(
    ("kind", "limit"), [("heldout_prompts", 0.2), ("heldout_grammar", -0.05), ("ood", -0.1)]
)
def test_the_lower_end_decides_at_its_limit(kind: str, limit: float) -> None:
    others = [] if kind == "heldout_prompts" else [GOOD]
    assert gate(*others, one(kind, limit))["passed"]
    assert not gate(*others, one(kind, math.nextafter(limit, -9)))["passed"]


def test_a_good_mean_does_not_help_a_low_end() -> None:
    decision = gate(GOOD, one("ood", -0.3, mean=0.05))
    assert not decision["passed"]
    # Half-width 0.35 must shrink to 0.15.
    assert "about 218 requests would settle it" in decision["failed"][0]


def test_all_good() -> None:
    decision = gate(GOOD, one("heldout_grammar", 0.0), one("ood", -0.02, name="general_chat"))
    assert decision["passed"]
    assert decision["failed"] == []
    assert decision["sets"] == {"heldout_prompts": True, "heldout_grammar": True, "general_chat": True}
    assert len(decision["reasons"]) == 3
    assert decision["reasons"][0] == (
        "heldout_prompts passed: difference +1.800 (+1.700 to +1.900, 40 requests), "
        "lower end at least +0.200 (in_domain_gain 0.2)."
    )
    assert decision["rules"]["ood_drop"] == 0.1


@pytest.mark.parametrize("requests", [19, 20])
def test_fewest_requests(requests: int) -> None:
    decision = gate(GOOD, one("ood", 0.0, requests=requests, name="maths"))
    assert decision["passed"] == (requests >= 20)
    assert decision["sets"]["maths"] == (requests >= 20)
    if requests < 20:
        (reason,) = decision["failed"]
        assert reason.startswith("maths failed: 19 requests are fewer than 20 (min_requests); raise")


def test_without_held_out_prompts_nothing_ships() -> None:
    decision = gate(one("ood", 0.5), one("heldout_grammar", 0.5))
    assert not decision["passed"]
    assert decision["failed"][0].startswith("heldout_prompts failed: no held-out prompts")
    assert not decide({"sets": []}, RULES)["passed"]


def test_a_refusal_says_which_set_by_how_much_and_what_to_try() -> None:
    decision = gate(
        one("heldout_prompts", 0.05, mean=0.1), one("ood", -0.4, name="general_chat"), one("ood", 0.0)
    )
    assert not decision["passed"]
    assert [reason.split(" failed")[0] for reason in decision["failed"]] == [
        "heldout_prompts",
        "general_chat",
    ]
    chat = decision["failed"][1]
    assert "-0.300 (-0.400 to -0.200, 40 requests)" in chat
    assert "lower end below -0.100 (ood_drop 0.1)" in chat
    for advice in ("replay.share", "train.steps", "train.learning_rate"):
        assert advice in chat
    assert set(decision["failed"]) < set(decision["reasons"])
    assert all(reason.endswith(".") and "\n" not in reason for reason in decision["reasons"])


def test_a_second_set_of_held_out_prompts_must_pass_too() -> None:
    assert not gate(GOOD, one("heldout_prompts", 0.1, name="other"))["passed"]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_a_number_never_passes(broken: float) -> None:
    assert not gate(GOOD, one("ood", broken, mean=0.0))["passed"]


def test_a_set_that_cannot_fall_says_so() -> None:
    low_start = gate(GOOD, one("ood", -0.01, mean=0.0, start=1.02))
    assert low_start["passed"]
    assert "it started at 1.02 and cannot fall below 1" in low_start["reasons"][1]
    assert "cannot fall" not in gate(GOOD, one("ood", -0.01, mean=0.0, start=1.6))["reasons"][1]
    assert "cannot fall" not in gate(GOOD, one("ood", 0.2, start=1.02))["reasons"][1]


def test_no_other_set_is_remarked_but_does_not_refuse() -> None:
    decision = gate(GOOD)
    assert decision["passed"]
    assert decision["reasons"][-1].startswith("No out-of-distribution set was measured")


def test_unknown_kind() -> None:
    with pytest.raises(UserError, match="'traffic'"):
        gate(GOOD, one("traffic", 0.0))
