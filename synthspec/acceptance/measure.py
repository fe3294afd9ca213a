"""How long a drafter's guesses hold: real speculative decoding on every evaluation set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from synthspec.acceptance.compare import accept_len, bootstrap, paired_bootstrap
from synthspec.dflash.decode import SpeculativeAsk, Trace, decode
from synthspec.dflash.model import Drafter
from synthspec.grammar.conform import label
from synthspec.samples.schema import DEV, SPAN_KINDS, read_rows
from synthspec.targets.load import LoadedTarget

Row = dict[str, Any]
ROWS_AT_ONCE = 40


def kind_of(name: str) -> str:
    """heldout_prompts, heldout_grammar or ood, from the name of a set."""
    if name == "heldout_prompts":
        return name
    return "heldout_grammar" if name.startswith("grammar_") else "ood"


def measured_sets(sets: Path) -> list[Path]:
    """The files of all evaluation sets in a folder but `dev`, which chose the checkpoint."""
    return [file for file in sorted(sets.glob("*.parquet")) if file.stem != DEV]


def trace(
    rows: Sequence[Row], target: LoadedTarget, drafter: Drafter, tick: Callable[[int], None] = lambda n: None
) -> list[Trace]:
    """Decode the requests of some samples with a drafter, in batches of like length."""
    order = sorted(range(len(rows)), key=lambda i: (rows[i]["grammar"] or "", rows[i]["prompt_tokens"]))
    traces: list[Trace | None] = [None] * len(rows)
    for first in range(0, len(order), ROWS_AT_ONCE):
        batch = order[first : first + ROWS_AT_ONCE]
        asks = [
            SpeculativeAsk(
                rows[i]["input_ids"][: rows[i]["prompt_tokens"]],
                rows[i]["max_new_tokens"],
                target.constraints.compile(rows[i]["constraint"]) if rows[i]["constraint"] else None,
            )
            for i in batch
        ]
        done = decode(target.model, drafter, asks, stop_ids=target.stop_ids, tick=tick)
        for i, one in zip(batch, done, strict=True):
            traces[i] = one
    return [one for one in traces if one is not None]


def totals(traces: Sequence[Trace]) -> tuple[np.ndarray, np.ndarray]:
    """Accepted drafted tokens and verify steps of each request, int64 [requests] both."""
    accepted = np.array([sum(one.accepted) for one in traces])
    steps = np.array([len(one.accepted) for one in traces])
    return accepted, steps


def summarise(rows: Sequence[Row], traces: Sequence[Trace], target: LoadedTarget, block_size: int) -> Row:
    """The numbers of one drafter on one set.

    Returns:
        `accept_len` τ = 1 + Σ accepted / Σ steps with its `ci95`; `by_position`, the share of steps whose
        first k drafted tokens were all accepted, k = 1 … block_size − 1; `by_span`, of the drafted tokens
        that were looked at (the accepted ones and the first refused one of a step) those accepted, by
        what the token in their place is; `by_grammar`; `verify_steps`; `tokens`.
    """
    accepted, steps = totals(traces)
    per_step = np.array([n for one in traces for n in one.accepted])
    by_grammar = defaultdict(list)
    for i, row in enumerate(rows):
        if row["grammar"]:
            by_grammar[row["grammar"]].append(i)
    estimate = bootstrap(accepted, steps)
    return {
        "accept_len": estimate.value,
        "ci95": [estimate.low, estimate.high],
        "by_position": [float((per_step >= k).mean()) for k in range(1, block_size)],
        "by_span": _by_span(rows, traces, target, block_size),
        "by_grammar": {
            name: accept_len(accepted[which], steps[which]) for name, which in sorted(by_grammar.items())
        },
        "verify_steps": int(steps.sum()),
        "tokens": sum(len(one.ids) for one in traces),
    }


def _by_span(
    rows: Sequence[Row], traces: Sequence[Trace], target: LoadedTarget, block_size: int
) -> dict[str, dict[str, int]]:
    counts = {kind: {"accepted": 0, "proposed": 0} for kind in SPAN_KINDS}
    for row, one in zip(rows, traces, strict=True):
        kinds: list[str] = []
        for kind, start, end in label(row["constraint"], one.ids, target.tokenizer):
            kinds += [kind] * (end - start)
        for place, agreed in zip(one.places, one.accepted, strict=True):
            looked_at = min(agreed + 1, block_size - 1)  # the accepted drafts and the first refused one
            for k, kind in enumerate(kinds[place : place + looked_at]):
                counts[kind]["proposed"] += 1
                counts[kind]["accepted"] += k < agreed
    return {kind: count for kind, count in counts.items() if count["proposed"]}


def by_purpose(
    rows: Sequence[Row], target: LoadedTarget, drafter: Drafter, tick: Callable[[int], None] = lambda n: None
) -> dict[str, float]:
    """Acceptance lengths on some samples: `in_domain` of those with a grammar, `general` of the others."""
    parts = {
        "in_domain": [row for row in rows if row["grammar"]],
        "general": [row for row in rows if not row["grammar"]],
    }
    return {
        name: accept_len(*totals(trace(part, target, drafter, tick))) for name, part in parts.items() if part
    }


def measure(
    sets: Path,
    target: LoadedTarget,
    start: Drafter,
    trained: Drafter,
    tick: Callable[[int], None] = lambda n: None,
) -> list[Row]:
    """Measure two drafters on the same requests of every evaluation set.

    Args:
        sets: folder of `<name>.parquet` files of samples.
        start, trained: drafters in the target's dtype.
        tick: called with the number of requests decoded; each request is decoded twice.

    Returns:
        One entry a set: `name`, `kind`, `requests`, `start` and `trained` as `summarise` gives them, and
        `difference`, the paired difference of acceptance lengths, trained minus start.
    """
    results = []
    for path in measured_sets(sets):
        rows = read_rows(path)
        if not rows:  # the gate misses it, and says so
            continue
        before, after = (trace(rows, target, drafter, tick) for drafter in (start, trained))
        difference = paired_bootstrap(*totals(before), *totals(after))
        results.append(
            {
                "name": path.stem,
                "kind": kind_of(path.stem),
                "requests": len(rows),
                "start": summarise(rows, before, target, start.config.block_size),
                "trained": summarise(rows, after, target, trained.config.block_size),
                "difference": {"mean": difference.value, "ci95": [difference.low, difference.high]},
            }
        )
    order = ("heldout_prompts", "heldout_grammar", "ood")
    return sorted(results, key=lambda result: (order.index(result["kind"]), result["name"]))
