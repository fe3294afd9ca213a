from __future__ import annotations

import threading

import pytest
import torch

from synthspec.targets.lanes import side_by_side

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_every_job_is_done_once_and_ticks_add_up():
    ticked: list[int] = []

    def work(job, tick):
        tick(job)
        return job * job

    found = dict(side_by_side(work, [3, 1, 2], CPU, ticked.append, int))
    assert found == {0: 9, 1: 1, 2: 4}
    assert sum(ticked) == 6


def test_two_jobs_are_under_way_at_once_with_one_thread_each():
    meeting = threading.Barrier(2, timeout=20)

    def work(job, tick):
        meeting.wait()
        return torch.get_num_threads()

    assert dict(side_by_side(work, [0, 1], CPU, lambda n: None, int)) == {0: 1, 1: 1}
    assert torch.get_num_threads() == 2
    late: list[int] = []
    thread = threading.Thread(target=lambda: late.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert late == [2]


def test_the_largest_job_goes_first():
    torch.set_num_threads(1)
    begun: list[int] = []
    found = list(side_by_side(lambda job, tick: begun.append(job), [1, 5, 3], CPU, lambda n: None, int))
    assert begun == [5, 3, 1]
    assert sorted(place for place, _ in found) == [0, 1, 2]


def test_a_failure_stops_the_other_lane():
    begun = threading.Event()
    ticks = 0

    def work(job, tick):
        nonlocal ticks
        if job == "fails":
            begun.wait(20)
            raise ValueError("no")
        while True:  # only an abandoned job leaves
            tick(0)
            ticks += 1
            begun.set()

    with pytest.raises(ValueError, match="no"):
        list(side_by_side(work, ["endless", "fails"], CPU, lambda n: None, len))
    assert ticks


def test_who_stops_listening_stops_the_work():
    def work(job, tick):
        while job == "endless":
            tick(0)
        return job

    found = side_by_side(work, ["endless", "short"], CPU, lambda n: None, len)
    assert next(found) == (1, "short")
    found.close()
