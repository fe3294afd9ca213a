"""The gate: may the trained drafter ship? Decided on the ends of 95% intervals, never on means."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from synthspec.acceptance.compare import Estimate, requests_to_settle
from synthspec.errors import UserError
from synthspec.spec import Gate

IN_DOMAIN, HELDOUT_GRAMMAR, OOD = "heldout_prompts", "heldout_grammar", "ood"
KINDS = (IN_DOMAIN, HELDOUT_GRAMMAR, OOD)

# Below this a drafter had nearly nothing to lose: acceptance length cannot fall under 1.
NEAR_ONE = 1.1

ADVICE = {
    IN_DOMAIN: "more rows (rows_per_grammar), more steps (train.steps) or less replay (replay.share)",
    HELDOUT_GRAMMAR: "more varied grammars, fewer steps (train.steps) or a lower train.learning_rate",
    OOD: "more replay (replay.share), fewer steps (train.steps) or a lower train.learning_rate",
}


def decide(acceptance: dict[str, Any], rules: Gate, wanted: Collection[str] = ()) -> dict[str, Any]:
    """Apply the rules of the spec to the measured sets.

    Differences are acceptance lengths, trained minus start, in tokens a verification step. A set passes
    when the lower end of its interval is at least `in_domain_gain` (held-out prompts),
    `-heldout_grammar_drop` (held-out grammars) or `-ood_drop` (everything else), and it has at least
    `min_requests` requests. There must be a set of held-out prompts. What is not finite never passes.

    Args:
        acceptance: `acceptance.json`; only `name`, `kind`, `requests`, `start` and `difference` of its sets
            are read.
        rules: the `gate` part of the spec.
        wanted: names of sets that must have been measured; one that is missing refuses.

    Returns:
        `passed`; `reasons`, sentences in the order of the sets; `failed`, those of them that refuse;
        `sets`, whether each set passed, by name; `rules`, as they were applied.

    Raises:
        UserError: a set has a kind that no rule covers.
    """
    reasons: list[str] = []
    failed: list[str] = []
    verdicts: dict[str, bool] = {}

    def refuse(sentence: str) -> None:
        reasons.append(sentence)
        failed.append(sentence)

    kinds = [measured["kind"] for measured in acceptance["sets"]]
    if IN_DOMAIN not in kinds:
        refuse(
            f"{IN_DOMAIN} failed: no held-out prompts of the trained grammars were measured, so nothing "
            "shows that training helped; set holdout.prompts above 0 and run again."
        )
    missing = set(wanted) - {measured["name"] for measured in acceptance["sets"]} - {IN_DOMAIN}
    for name in sorted(missing):
        verdicts[name] = False
        refuse(
            f"{name} failed: none of its requests has a valid answer, so nothing shows whether it got worse; "
            "look at ledger.json, or take the set out of the spec."
        )
    for measured in acceptance["sets"]:
        before = len(failed)
        if measured["requests"] < rules.min_requests:
            refuse(_too_few(measured, rules))
        passed, sentence = _difference(measured, rules)
        if passed:
            reasons.append(sentence)
        else:
            refuse(sentence)
        verdicts[measured["name"]] = len(failed) == before
    if OOD not in kinds:
        reasons.append(
            "No out-of-distribution set was measured, so nothing shows whether it got worse elsewhere."
        )
    return {
        "passed": not failed,
        "reasons": reasons,
        "failed": failed,
        "sets": verdicts,
        "rules": rules.model_dump(mode="json"),
    }


def _too_few(measured: dict[str, Any], rules: Gate) -> str:
    raised = "its requests in ood" if measured["kind"] == OOD else "holdout.requests or holdout.prompts"
    return (
        f"{measured['name']} failed: {measured['requests']:,} requests are fewer than "
        f"{rules.min_requests:,} (min_requests); raise {raised}, or give a prompt source with more rows."
    )


def _difference(measured: dict[str, Any], rules: Gate) -> tuple[bool, str]:
    name, kind, requests = measured["name"], measured["kind"], measured["requests"]
    mean, (low, high) = measured["difference"]["mean"], measured["difference"]["ci95"]
    start = measured["start"]["accept_len"]
    if kind == IN_DOMAIN:
        limit, rule = rules.in_domain_gain, f"in_domain_gain {rules.in_domain_gain:g}"
    elif kind == HELDOUT_GRAMMAR:
        limit, rule = -rules.heldout_grammar_drop, f"heldout_grammar_drop {rules.heldout_grammar_drop:g}"
    elif kind == OOD:
        limit, rule = -rules.ood_drop, f"ood_drop {rules.ood_drop:g}"
    else:
        raise UserError(
            f"acceptance.json: the set '{name}' has the kind '{kind}', which no rule of the gate covers; "
            f"kinds are {', '.join(KINDS)}: measure again."
        )
    shown = f"difference {mean:+.3f} ({low:+.3f} to {high:+.3f}, {requests:,} requests)"
    if not all(math.isfinite(number) for number in (mean, low, high)):
        return False, f"{name} failed: its {shown} is not a number; measure the set again."
    if low >= limit:
        doubt = ""
        if low < 0 and kind != IN_DOMAIN and start < NEAR_ONE:
            doubt = f"; it started at {start:.2f} and cannot fall below 1, so this says little"
        return True, f"{name} passed: {shown}, lower end at least {limit:+.3f} ({rule}){doubt}."
    advice = f"try {ADVICE[kind]}"
    needed = requests_to_settle(Estimate(mean, low, high, requests), limit)
    if needed is not None:
        advice = f"about {needed:,} requests would settle it if the mean holds; otherwise {advice}"
    return False, f"{name} failed: {shown}, lower end below {limit:+.3f} ({rule}); {advice}."
