"""What real speculative decoding does with the requests of some samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from synthspec.dflash.decode import SpeculativeAsk, Trace, decode
from synthspec.dflash.model import Drafter
from synthspec.files import content_id
from synthspec.grammar.conform import label
from synthspec.samples.schema import TRACES, read_rows, write_rows
from synthspec.targets.lanes import side_by_side
from synthspec.targets.load import LoadedTarget

Row = dict[str, Any]
ROWS_AT_ONCE = 40


def decoded_together(rows: Sequence[Row]) -> list[list[int]]:
    """Places of rows that are decoded together: those of one grammar, which begin alike, of like length."""

    def grammar(place: int) -> str:
        return rows[place]["grammar"] or ""

    found = []
    order = sorted(range(len(rows)), key=lambda place: (grammar(place), rows[place]["prompt_tokens"]))
    for _, group in groupby(order, grammar):
        places = list(group)
        found += [places[first : first + ROWS_AT_ONCE] for first in range(0, len(places), ROWS_AT_ONCE)]
    return found


def trace(
    rows: Sequence[Row],
    target: LoadedTarget,
    drafter: Drafter,
    tick: Callable[[int], None] = lambda n: None,
    *,
    keep: Path | None = None,
) -> list[Trace]:
    """Decode the requests of some samples with a drafter.

    Args:
        rows: of `samples.schema.SAMPLES`; what they hold behind their prompts is not read.
        drafter: in the target's dtype, on its device.
        tick: called with the number of requests that have ended.
        keep: a folder for the traces of this drafter, a file of `samples.schema.TRACES` for each batch;
            batches whose file is there already are not decoded again.

    Returns:
        One trace a row, in the order of the rows.
    """
    found: dict[int, Trace] = {}
    waiting = []
    for places in decoded_together(rows):
        if keep and (file := _file(keep, rows, places, target)).exists():
            found.update(zip(places, map(_trace, read_rows(file)), strict=True))
        else:
            waiting.append(places)
    if keep:
        tick(len(found))
    asked = {place: _ask(rows[place], target) for places in waiting for place in places}

    def decoded(places: list[int], tick: Callable[[int], None]) -> list[Trace]:
        asks = [asked[place] for place in places]
        traces = decode(target.model, drafter, asks, stop_ids=target.stop_ids, tick=tick)
        if keep:
            pairs = zip(places, traces, strict=True)
            kept = ({"sample_id": rows[place]["id"], **asdict(one)} for place, one in pairs)
            write_rows(_file(keep, rows, places, target), TRACES, kept)
        return traces

    def tokens(places: list[int]) -> int:
        return sum(rows[place]["max_new_tokens"] for place in places)

    for job, traces in side_by_side(decoded, waiting, target.model.device, tick, tokens):
        found.update(zip(waiting[job], traces, strict=True))
    return [found[place] for place in range(len(rows))]


def _ask(row: Row, target: LoadedTarget) -> SpeculativeAsk:
    return SpeculativeAsk(
        row["input_ids"][: row["prompt_tokens"]],
        row["max_new_tokens"],
        target.constraints.compile(row["constraint"]) if row["held"] else None,
    )


def _file(folder: Path, rows: Sequence[Row], places: Sequence[int], target: LoadedTarget) -> Path:
    return folder / f"{content_id(target.fingerprint, [rows[place]['id'] for place in places])}.parquet"


def _trace(row: Row) -> Trace:
    return Trace(**{field.name: row[field.name] for field in fields(Trace)})


def drafted_kinds(row: Row, one: Trace, target: LoadedTarget, block_size: int) -> list[list[str]]:
    """What stands where the drafts were that the target looked at: forced, structure, value or free.

    Decided on the finished answer, so decoding does not wait for it.

    Args:
        one: what decoding the row gave, with a drafter of this block size.

    Returns:
        A list for each verify step: the kinds of the places of its accepted drafts, then that of the first
        refused one, if there is one.  It ends where the answer does.
    """
    kinds: list[str] = []
    for kind, start, end in label(row["constraint"], one.ids, target.tokenizer):
        kinds += [kind] * (end - start)
    return [
        kinds[place : place + min(agreed + 1, block_size - 1)]
        for place, agreed in zip(one.places, one.accepted, strict=True)
    ]


def totals(traces: Sequence[Trace]) -> tuple[np.ndarray, np.ndarray]:
    """Accepted drafted tokens and verify steps of each request, int64 [requests] both."""
    accepted = np.array([sum(one.accepted) for one in traces])
    steps = np.array([len(one.accepted) for one in traces])
    return accepted, steps
