"""Two batches side by side: while one waits for Python, the other computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")
Tick = Callable[[int], None]

LANES = 2  # each holds the keys and values of a batch


class _Abandoned(Exception):
    """Raised in a lane whose work nobody waits for any more."""


def side_by_side(
    work: Callable[[Job, Tick], Result], jobs: Sequence[Job], device: torch.device, tick: Tick
) -> Iterator[tuple[int, Result]]:
    """Do jobs, on a CPU with several cores two at a time, each on its share of the threads.

    How many do so at once never changes what comes out: a job computes with its own batch alone.

    Args:
        work: does a job; it calls its tick often, so that a job can be abandoned: with 0 where nothing is done.
        device: where it computes; another device than a CPU gets one job at a time.
        tick: gets what the jobs tick.

    Yields:
        The place of a job, and its result, as jobs end.
    """
    threads = torch.get_num_threads()
    lanes = min(LANES, threads) if device.type == "cpu" else 1
    abandoned, one_at_a_time = threading.Event(), threading.Lock()

    def ticking(n: int) -> None:
        if abandoned.is_set():
            raise _Abandoned
        with one_at_a_time:
            tick(n)

    with ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(threads // lanes,)) as pool:
        waiting = {pool.submit(work, job, ticking): place for place, job in enumerate(jobs)}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            abandoned.set()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # what threads to come begin with is what was set last
