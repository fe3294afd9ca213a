"""The generate stage: requests in, completions out, in shards that are written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from synthspec.files import content_id
from synthspec.samples.schema import COMPLETIONS, Table, write_rows
from synthspec.spec import Generate, InProcess, Servers, Worker
from synthspec.targets.load import LoadedTarget

if TYPE_CHECKING:
    from synthspec.targets.fleet import Answered

Row = dict[str, Any]
Tick = Callable[[int], None]
Shard = tuple[Path, range]  # a file of completions, and the places of its requests

PATIENCE = 120.0  # seconds without a sign of any server
IN_FLIGHT = 2  # shards for each server, so that none waits for the last answers of another's


def in_order(row: Row) -> tuple[str, str, int, str]:
    """Where a request stands among all: those that begin alike, of one grammar, together, short ones first."""
    return row["grammar"] or "", row["set"] or row["purpose"], len(row["prompt_ids"]), row["id"]


def shards(requests: Iterable[Row], size: int) -> Iterator[list[str]]:
    """Cut requests, in the order of `in_order`, into batches that depend on their content alone.

    Args:
        requests: `id`, `grammar`, `set` and `purpose` are read.

    Yields:
        The ids of a batch, in order.
    """
    batch: list[str] = []
    last = None
    for row in requests:
        kind = row["grammar"], row["set"] or row["purpose"]
        if batch and (len(batch) == size or kind != last):
            yield batch
            batch = []
        batch.append(row["id"])
        last = kind
    if batch:
        yield batch


_AS_ASKED = Generate()


def changed(row: Row, how: Generate) -> Row:
    """A request as it is put to a worker."""
    free = {"constraint": None} if how.decode == "free" else {}
    return {**row, **free, "logprobs": how.logprobs}


class Asker(Protocol):
    """Answers some requests, in their order; None stands for a request that could not be answered."""

    def __call__(self, rows: Sequence[Row], tick: Tick) -> list[Answered | None]: ...


def answer(
    requests: Path,
    target: LoadedTarget,
    worker: Worker,
    folder: Path,
    tick: Tick = lambda n: None,
    *,
    how: Generate = _AS_ASKED,
    key: str | None = None,
    piece: Callable[[str, Callable[[], None]], None] = lambda name, work: work(),
) -> None:
    """Let the target answer all requests, a shard at a time; shards that exist are kept as they are.

    Args:
        requests: a file of `samples.schema.REQUESTS`, in the order of `in_order`; it is read in pieces.
        worker: who runs the target.
        folder: where `<number>-<content>.parquet` files appear.
        tick: called with the number of requests done, first with those that were done already.
        how: `decode` free holds no answer to its constraint; `logprobs` are kept where it says so.
        key: for servers.
        piece: does the work of one shard of servers, by its name; from several threads at once.

    Raises:
        Stopped: the disk is full, or no worker is left.
        UserError: the target cannot be loaded, or a server is not the target.
    """
    table = Table(requests)
    planned: list[Shard] = []
    start = 0
    for ids in shards(table.rows(["id", "grammar", "set", "purpose"]), worker.batch_rows):
        name = f"{len(planned):05}-{content_id(target.fingerprint, ids)}.parquet"
        planned.append((folder / name, range(start, start + len(ids))))
        start += len(ids)
    # Shards of another target or batch size would be answers to the same requests once more.
    for path in set(folder.glob("*.parquet")) - {path for path, _ in planned}:
        path.unlink()
    missing = [(path, places) for path, places in planned if not path.exists()]
    tick(start - sum(len(places) for _, places in missing))
    if not missing:
        return
    with asking(target, worker, max(_tokens(table)), key, free=how.decode == "free") as ask:

        def write(shard: Shard, tick: Tick) -> None:
            path, places = shard

            def work() -> None:
                rows = table.slice(places)
                rows = [changed(row, how) for row in rows]
                pairs = zip(rows, ask(rows, tick), strict=True)
                write_rows(path, COMPLETIONS, (completion(row, one, target) for row, one in pairs if one))

            if isinstance(worker, InProcess):  # it would fail in the same way again
                work()
            else:
                piece(path.stem, work)

        if isinstance(worker, InProcess):
            from synthspec.targets.lanes import side_by_side

            most = [*table.rows(["max_new_tokens"])]

            def tokens(shard: Shard) -> int:
                return sum(most[place]["max_new_tokens"] for place in shard[1])

            for _ in side_by_side(write, missing, target.model.device, tick, tokens):
                pass  # what counts is the file
        else:
            servers = len(worker.urls) if isinstance(worker, Servers) else 1
            _some_at_once(write, missing, IN_FLIGHT * servers + 1, tick)


def _tokens(table: Table) -> Iterator[int]:
    """How many tokens each request and its answer may have."""
    for row in table.rows(["prompt_ids", "max_new_tokens"]):
        yield len(row["prompt_ids"]) + row["max_new_tokens"]


def _some_at_once(work: Callable[[Shard, Tick], None], jobs: Sequence[Shard], most: int, tick: Tick) -> None:
    """Do jobs in their order, so many at once; the first that fails ends them all."""
    left = iter(jobs)
    with ThreadPoolExecutor(most) as pool:
        running: set[Future[None]] = set()
        try:
            while True:
                for job in left:
                    running.add(pool.submit(work, job, tick))
                    if len(running) == most:
                        break
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    one.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def asking(
    target: LoadedTarget, worker: Worker, longest: int, key: str | None = None, *, free: bool = False
) -> Iterator[Asker]:
    """What answers requests, until the context closes.

    Args:
        longest: the most tokens of a request and its answer.
        free: no request is held to a grammar, so a server needs nothing that would.

    Raises:
        UserError, Stopped: as `answer`.
    """
    if isinstance(worker, InProcess):
        yield lambda rows, tick: _in_process(rows, target, worker.batch_rows, tick)
        return
    from synthspec.targets.fleet import Fleet
    from synthspec.targets.servers import workers_of

    with Fleet(workers_of(target, worker, longest, key, free=free), PATIENCE) as fleet:
        yield fleet.ask


def _in_process(rows: Sequence[Row], target: LoadedTarget, size: int, tick: Tick) -> list[Answered | None]:
    from synthspec.targets.fleet import Answered
    from synthspec.targets.generate import Ask, generate

    found: list[Answered | None] = []
    for start in range(0, len(rows), size):
        asks = [
            Ask(
                row["prompt_ids"],
                row["max_new_tokens"],
                target.constraints.compile(row["constraint"]) if row["constraint"] else None,
                row.get("temperature") or 0.0,
                row["seed"],
                row.get("top_p") or 1.0,
                row.get("top_k"),
                row.get("logprobs", False),
            )
            for row in rows[start : start + size]
        ]
        for one in generate(target.model, asks, stop_ids=target.stop_ids, tick=tick):
            found.append(Answered(one.ids, one.finish_reason, one.logprobs))
    return found


def completion(request: Row, answered: Answered, target: LoadedTarget) -> Row:
    """A row of `samples.schema.COMPLETIONS`."""
    return {
        "id": content_id(request["id"], answered.ids),
        "request_id": request["id"],
        "ids": answered.ids,
        "finish_reason": answered.finish_reason,
        "logprobs": answered.logprobs,
        "target": target.fingerprint,
    }
