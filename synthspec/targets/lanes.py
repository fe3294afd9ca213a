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
    work: Callable[[Job, Tick], Result],
    jobs: Sequence[Job],
    device: torch.device,
    tick: Tick,
    size: Callable[[Job], int],
) -> Iterator[tuple[int, Result]]:
    """Do jobs, on a CPU with several cores two at a time, each on its share of the threads.

    A job computes with its own batch and its share alone, whatever runs beside it.

    Args:
        work: does a job; it calls its tick often, so that a job can be abandoned: with 0 where nothing is done.
        device: where it computes; another device than a CPU gets one job at a time.
        tick: gets what the jobs tick.
        size: how much a job is to do, in any unit; the largest go first, so that none is left at the end.

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
        order = sorted(range(len(jobs)), key=lambda place: size(jobs[place]), reverse=True)
        waiting = {pool.submit(work, jobs[place], ticking): place for place in order}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            abandoned.set()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # what threads to come begin with is what was set last
