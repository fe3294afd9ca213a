"""Rates and times left, also of work that goes on where it stopped."""

import io

import pytest
from rich.console import Console

from synthspec import progress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(progress, "_stderr", lambda: Console(file=io.StringIO()))
    monkeypatch.setattr(progress, "say", lambda text, style=None: lines.append(text))
    return lines


@pytest.mark.parametrize(
    ("before", "lines"),
    [
        (200, ["  train: 220 of 300 steps, 1.0/s", "  train: 240 of 300 steps, 1.0/s, 1 min 0 s left"]),
        (0, ["  train: 20 of 300 steps, 1.0/s", "  train: 40 of 300 steps, 1.0/s, 4 min 20 s left"]),
    ],
)
def test_what_was_done_before_is_no_speed(clock, said, before, lines):
    with progress.bar("train", 300, "steps", resumes=True) as tick:
        clock[0] = 90  # something else came first
        tick(before)
        assert not said
        clock[0] = 110
        tick(20)
        clock[0] = 130
        tick(20)
    assert said == lines


def test_on_a_terminal_too(monkeypatch):
    monkeypatch.setattr(progress, "_stderr", lambda: Console(file=io.StringIO(), force_terminal=True))
    with progress.bar("train", 300, "steps", resumes=True) as tick:
        tick(200)
        (task,) = progress._bars.tasks
        assert task.completed == 200
        tick(1)
        tick(1)
        assert task.completed == 202
        assert sum(sample.completed for sample in task._progress) == 2


def test_the_speed_of_a_second_unit_and_a_note_stand_beside(clock, said):
    with progress.bar("train", 300, "steps", resumes=True, second="tokens") as tick:
        clock[0] = 90
        tick(200)
        clock[0] = 110
        tick(20, 60_000)
        tick(0, note="τ 3.41, drift −0.02")
        clock[0] = 130
        tick(20, 20_000)
    assert said == [
        "  train: 220 of 300 steps, 1.0/s, 3,000 tokens/s",
        "  train: 240 of 300 steps, 1.0/s, 2,000 tokens/s, τ 3.41, drift −0.02, 1 min 0 s left",
    ]


def test_they_stand_beside_on_a_terminal_too(clock, monkeypatch):
    text = io.StringIO()
    monkeypatch.setattr(progress, "_stderr", lambda: Console(file=text, force_terminal=True, width=120))
    with progress.bar("train", 300, "steps", second="tokens") as tick:
        tick(1, 500)
        clock[0] = 2
        tick(1, 500, note="τ 3.41")
        progress._bars.refresh()
    assert "500 tokens/s, τ 3.41" in text.getvalue()
