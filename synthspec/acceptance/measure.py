"""How long a drafter's guesses hold: real speculative decoding on every evaluation set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from synthspec.acceptance.compare import accept_len, bootstrap, paired_bootstrap
from synthspec.acceptance.gate import HELDOUT_GRAMMAR, IN_DOMAIN, KINDS, OOD
from synthspec.acceptance.trace import drafted_kinds, totals, trace
from synthspec.dflash.decode import Trace
from synthspec.dflash.model import Drafter
from synthspec.samples.schema import DEV, SPAN_KINDS, read_rows
from synthspec.targets.load import LoadedTarget

Row = dict[str, Any]
TOKENS_ON_THE_WAY = 40  # enough to choose a checkpoint by


def kind_of(name: str) -> str:
    """One of `gate.KINDS`, from the name of a set."""
    if name == IN_DOMAIN:
        return name
    return HELDOUT_GRAMMAR if name.startswith("grammar_") else OOD


def measured_sets(sets: Path) -> list[Path]:
    """The files of all evaluation sets in a folder but `dev`, which chose the checkpoint."""
    return [file for file in sorted(sets.glob("*.parquet")) if file.stem != DEV]


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
        for kinds, agreed in zip(drafted_kinds(row, one, target, block_size), one.accepted, strict=True):
            for k, kind in enumerate(kinds):
                counts[kind]["proposed"] += 1
                counts[kind]["accepted"] += k < agreed
    return {kind: count for kind, count in counts.items() if count["proposed"]}


def on_the_way(
    rows: Sequence[Row], target: LoadedTarget, drafter: Drafter, tick: Callable[[int], None] = lambda n: None
) -> Row:
    """What chooses a checkpoint: acceptance on some samples, apart for those with a grammar and the others.

    Of each answer at most `TOKENS_ON_THE_WAY` tokens are decoded.

    Returns:
        `accept_len` and `counts`, each by `in_domain` and `general`, as far as there are such samples; the
        counts are `accepted` draft tokens and verify `steps` of each request, in the order of the rows.
    """
    short = [{**row, "max_new_tokens": min(row["max_new_tokens"], TOKENS_ON_THE_WAY)} for row in rows]
    accepted, steps = totals(trace(short, target, drafter, tick))
    has_grammar = np.array([row["grammar"] is not None for row in rows])
    found: Row = {"accept_len": {}, "counts": {}}
    for name, part in (("in_domain", has_grammar), ("general", ~has_grammar)):
        if steps[part].sum():
            found["accept_len"][name] = accept_len(accepted[part], steps[part])
            found["counts"][name] = {"accepted": accepted[part].tolist(), "steps": steps[part].tolist()}
    return found


def measure(
    sets: Path,
    target: LoadedTarget,
    start: Drafter,
    trained: Drafter,
    tick: Callable[[int], None] = lambda n: None,
    *,
    keep: Path | None = None,
) -> list[Row]:
    """Measure two drafters on the same requests of every evaluation set.

    Args:
        sets: folder of `<name>.parquet` files of samples.
        start, trained: drafters in the target's dtype.
        tick: called with the number of requests decoded; each request is decoded twice.
        keep: a folder for the traces, in `start/` and `trained/`; those there already are not decoded again.

    Returns:
        One entry a set: `name`, `kind`, `requests` in which anything was drafted, `start` and `trained` as
        `summarise` gives them, and `difference`, the paired difference of acceptance lengths, trained minus
        start.
    """
    rows_of = {path.stem: read_rows(path) for path in measured_sets(sets)}
    everything = [row for rows in rows_of.values() for row in rows]
    before, after = (
        iter(trace(everything, target, drafter, tick, keep=keep / name if keep else None))
        for name, drafter in (("start", start), ("trained", trained))
    )
    results = []
    for name, rows in rows_of.items():
        if not rows:  # the gate misses it, and says so
            continue
        of_start, of_trained = list(islice(before, len(rows))), list(islice(after, len(rows)))
        difference = paired_bootstrap(*totals(of_start), *totals(of_trained))
        results.append(
            {
                "name": name,
                "kind": kind_of(name),
                "requests": difference.requests,
                "start": summarise(rows, of_start, target, start.config.block_size),
                "trained": summarise(rows, of_trained, target, trained.config.block_size),
                "difference": {"mean": difference.value, "ci95": [difference.low, difference.high]},
            }
        )
    return sorted(results, key=lambda result: (KINDS.index(result["kind"]), result["name"]))
