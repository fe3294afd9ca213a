"""The generate stage: requests in, completions out, in shards that are written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from synthspec.files import content_id
from synthspec.samples.schema import COMPLETIONS, write_rows
from synthspec.targets.load import LoadedTarget

Row = dict[str, Any]


def shards(requests: Iterable[Row], size: int) -> list[list[Row]]:
    """Cut requests into batches that depend on their content alone.

    Requests that begin alike, those of one grammar, come together, short ones first.
    """

    def place(row: Row) -> tuple[str, str, int, str]:
        return row["grammar"] or "", row["set"] or row["purpose"], len(row["prompt_ids"]), row["id"]

    ordered = sorted(requests, key=place)
    batches: list[list[Row]] = []
    for row in ordered:
        if not batches or len(batches[-1]) == size or place(batches[-1][-1])[:2] != place(row)[:2]:
            batches.append([])
        batches[-1].append(row)
    return batches


def answer(
    requests: Iterable[Row], target: LoadedTarget, folder: Path, tick: Callable[[int], None] = lambda n: None
) -> None:
    """Let the target answer all requests, a shard at a time; shards that exist are kept as they are.

    Args:
        requests: rows of `samples.schema.REQUESTS`.
        folder: where `<number>-<content>.parquet` files appear.
        tick: called with the number of requests done, first with those that were done already.

    Raises:
        Stopped: the disk is full, or no worker is left.
        UserError: the target cannot be loaded.
    """
    planned = {
        folder / f"{number:05}-{content_id(target.fingerprint, [row['id'] for row in batch])}.parquet": batch
        for number, batch in enumerate(shards(requests, target.settings.batch_rows))
    }
    # Shards of another target or batch size would be answers to the same requests once more.
    for path in set(folder.glob("*.parquet")) - planned.keys():
        path.unlink()
    missing = {path: batch for path, batch in planned.items() if not path.exists()}
    tick(sum(map(len, planned.values())) - sum(map(len, missing.values())))

    def write(shard: tuple[Path, list[Row]], tick: Callable[[int], None]) -> None:
        path, batch = shard
        pairs = zip(batch, ask(batch, target, tick), strict=True)
        write_rows(path, COMPLETIONS, (completion(row, one, target) for row, one in pairs))

    if target.settings.kind == "sglang":
        for shard in missing.items():
            write(shard, tick)
    elif missing:
        from synthspec.targets.lanes import side_by_side

        def tokens(shard: tuple[Path, list[Row]]) -> int:
            return sum(row["max_new_tokens"] for row in shard[1])

        for _ in side_by_side(write, list(missing.items()), target.model.device, tick, tokens):
            pass  # what counts is the file


def ask(
    requests: Sequence[Row], target: LoadedTarget, tick: Callable[[int], None] = lambda n: None
) -> list[tuple[list[int], str]]:
    """Token ids and finish reason of the target's answer to each request, `batch_rows` at once.

    It takes the likeliest tokens, or samples where a request has a temperature.
    """
    size = target.settings.batch_rows
    return [
        answer
        for start in range(0, len(requests), size)
        for answer in _ask_batch(requests[start : start + size], target, tick)
    ]


def _ask_batch(
    batch: Sequence[Row], target: LoadedTarget, tick: Callable[[int], None]
) -> list[tuple[list[int], str]]:
    if target.settings.kind == "sglang":
        from synthspec.targets.sglang import ask_workers

        answered = ask_workers(batch, target)
        tick(len(batch))
        return answered
    from synthspec.targets.generate import Ask, generate

    asks = [
        Ask(
            row["prompt_ids"],
            row["max_new_tokens"],
            target.constraints.compile(row["constraint"]) if row["constraint"] else None,
            row.get("temperature", 0.0),
            row["seed"],
        )
        for row in batch
    ]
    answers = generate(target.model, asks, stop_ids=target.stop_ids, tick=tick)
    return [(one.ids, one.finish_reason) for one in answers]


def completion(request: Row, answered: tuple[list[int], str], target: LoadedTarget) -> Row:
    """A row of `samples.schema.COMPLETIONS`."""
    ids, reason = answered
    return {
        "id": content_id(request["id"], ids),
        "request_id": request["id"],
        "ids": ids,
        "finish_reason": reason,
        "target": target.fingerprint,
    }
