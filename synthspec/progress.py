"""What a person sees while work goes on: bars with rate and time left, on stderr; nothing when quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class Tick(Protocol):
    """Called with the number of units that have just been done."""

    def __call__(self, n: int, more: int = 0, *, note: str | None = None) -> None:
        """Show more work.

        Args:
            more: what has been done of the bar's second unit.
            note: what is shown beside the speed from now on.
        """


TELLING = 0.1  # share of the work after which its speed tells the time left
SECONDS_BETWEEN_LINES = 20.0  # where stderr is no terminal, lines stand in for bars

_quiet = False
_console: Console | None = None
_bars: Progress | None = None
_open = 0


def be_quiet(quiet: bool = True) -> None:
    """Show nothing from now on (`--json`), or show again."""
    global _quiet
    _quiet = quiet


def say(text: str, style: str | None = None) -> None:
    """Print one line on stderr, above the bars."""
    if not _quiet:
        _stderr().print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def bar(
    title: str, total: int | None, unit: str, *, resumes: bool = False, second: str | None = None
) -> Iterator[Tick]:
    """Show how far some work is while the context is open.

    Args:
        title: what is done.
        total: units to do, or None where nobody can know.
        unit: what is counted, in the plural.
        resumes: the first tick tells what was done at an earlier time: it says nothing about the speed.
        second: another unit whose speed is shown too, in the plural.

    Yields:
        What to call when some work has been done.
    """
    if _quiet:
        yield _silent
    elif _stderr().is_terminal:
        with _terminal_bar(title, total, unit, resumes, _Beside(second)) as tick:
            yield tick
    else:
        yield _lines(title, total, unit, resumes, _Beside(second))


def _silent(n: int, more: int = 0, *, note: str | None = None) -> None:
    pass


class _Beside:
    """What stands beside a bar's own speed: that of a second unit, and a note.

    Args:
        unit: the second one, in the plural.
    """

    def __init__(self, unit: str | None) -> None:
        self._unit, self._note = unit, ""
        self._done = 0
        self._begun: float | None = None

    def add(self, more: int, note: str | None) -> None:
        if self._begun is None:
            self._begun = time.monotonic()
        self._done += more
        self._note = self._note if note is None else note

    def __str__(self) -> str:
        parts = [self._note] if self._note else []
        passed = time.monotonic() - self._begun if self._begun is not None else 0.0
        if self._unit and self._done and passed > 0:
            parts.insert(0, f"{self._done / passed:,.0f} {self._unit}/s")
        return "".join(f", {part}" for part in parts)


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _stderr() -> Console:
    global _console
    if _console is None:
        from rich.console import Console

        _console = Console(stderr=True)
    return _console


def _lines(title: str, total: int | None, unit: str, resumes: bool, beside: _Beside) -> Tick:
    begun = last = time.monotonic()
    done = before = lines = 0

    def tick(n: int, more: int = 0, *, note: str | None = None) -> None:
        nonlocal begun, done, before, last, lines, resumes
        beside.add(more, note)
        done += n
        now = time.monotonic()
        if resumes:
            resumes, before, begun, last = False, n, now, now
        if now - last < SECONDS_BETWEEN_LINES or done == before:
            return
        last = now
        rate = (done - before) / (now - begun)
        of = f" of {total:,}" if total else ""
        # The first ones say too little about the rest to tell the time left.
        known = total and lines and done - before >= TELLING * (total - before)
        left = f", {duration((total - done) / rate)} left" if total and known else ""
        say(f"  {title}: {done:,}{of} {unit}, {_rate(rate)}{beside}{left}")
        lines += 1

    return tick


def _rate(per_second: float) -> str:
    return f"{per_second:,.1f}/s" if per_second >= 0.1 else f"{per_second * 60:,.1f}/min"


@contextmanager
def _terminal_bar(title: str, total: int | None, unit: str, resumes: bool, beside: _Beside) -> Iterator[Tick]:
    global _bars, _open
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{_rate(speed) if speed else ''}{task.fields['beside']}".removeprefix(", "))

    class Done(ProgressColumn):
        def render(self, task: Task) -> Text:
            of = f" of {task.total:,.0f}" if task.total else ""
            return Text(f"{task.completed:,.0f}{of} {task.fields['unit']}" if task.completed or of else "")

    if _bars is None:
        _bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            Done(),
            Speed(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=_stderr(),
            transient=True,
            speed_estimate_period=60,
        )
        _bars.start()
    _open += 1
    task = _bars.add_task(title, total=total, unit=unit, beside=beside)
    shown = _bars

    def tick(n: int, more: int = 0, *, note: str | None = None) -> None:
        nonlocal resumes
        beside.add(more, note)
        if resumes:
            resumes = False
            shown.reset(task, completed=n)
        else:
            shown.advance(task, n)

    try:
        yield tick
    finally:
        shown.remove_task(task)
        _open -= 1
        if not _open:
            shown.stop()
            _bars = None
