"""The report's charts, as inline SVG.

Positions along x are per cent and along y pixels, with no `viewBox`: a chart takes the width of
its column while its letters keep their size, on a phone as on a wide screen. Colours come from classes in
`style.css`, so that they follow light and dark. The start is always hollow and the trained drafter
always solid, so that no chart needs its colours to be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

Scale = Callable[[float], float]

# Where the plot begins and ends along x, in per cent of the chart's width.
LEFT, RIGHT = 14.0, 97.0


@dataclass(frozen=True)
class Interval:
    """An acceptance length with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Pair:
    """One row of a chart that sets the start against the trained drafter."""

    label: str
    start: Interval
    trained: Interval


@dataclass(frozen=True)
class Shares:
    """Of the draft tokens of one kind, the shares accepted (0 to 1, None where none was proposed)."""

    label: str
    start: float | None
    trained: float | None
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A curve: its name, its class (`start` or `trained`) and its points in order of x."""

    name: str
    look: str
    points: Sequence[tuple[float, float]]


def interval_chart(rows: Sequence[Pair], title: str) -> Markup:
    """Acceptance length of each set: a hollow dot for the start, a solid one for trained, 95% whiskers."""
    top, pitch = 4, 62
    ends = [end for row in rows for end in (row.start.high, row.trained.high) if math.isfinite(end)]
    ticks = nice_ticks(1.0, max([*ends, 1.5]))
    x = linear(ticks[0], ticks[-1], 1.5, 88.0)
    floor = top + pitch * len(rows)
    parts = [
        _line(x(tick), top, x(tick), floor, "one" if tick == 1 else "rule")
        + _text(x(tick), floor + 18, _number(tick), "tick", "start" if tick == ticks[0] else "middle")
        for tick in ticks
    ]
    for index, row in enumerate(rows):
        y = top + pitch * index
        parts.append(_text(1.5, y + 16, row.label, "label", indent=8))
        for offset, look, interval in ((30, "start", row.start), (47, "trained", row.trained)):
            if not math.isfinite(interval.value):
                continue
            low, value, high = x(interval.low), x(interval.value), x(interval.high)
            hint = f"{row.label}, {look}: {interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"
            whisker = "".join(
                [
                    _line(low, y + offset, high, y + offset, f"whisker {look}"),
                    _line(low, y + offset - 4, low, y + offset + 4, f"whisker {look}"),
                    _line(high, y + offset - 4, high, y + offset + 4, f"whisker {look}"),
                ]
            )
            dot = f'<circle class="dot {look}" cx="{value:.2f}%" cy="{y + offset}" r="5"/>'
            # The number stands behind the upper whisker, one letter's width away on every screen.
            number = (
                f'<svg x="{high:.2f}%" y="{y + offset}" class="spill">'
                f'<text class="value {look}" x="9" y="4">{interval.value:.2f}</text></svg>'
            )
            parts.append(f"<g><title>{escape(hint)}</title>{whisker}{dot}{number}</g>")
    return _chart("".join(parts), floor + 26, title)


def line_chart(
    lines: Sequence[Line],
    title: str,
    *,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    y_format: Callable[[float], str],
    height: int = 190,
) -> Markup:
    """Curves over a common x; each point is marked, since points are few."""
    top, floor = 8, height - 26
    x = linear(x_ticks[0], x_ticks[-1], LEFT + 3, RIGHT)
    y = linear(y_ticks[0], y_ticks[-1], floor, top)
    parts = [
        _line(LEFT, y(tick), RIGHT, y(tick), "rule")
        + _text(LEFT - 2, y(tick) + 4, y_format(tick), "tick", "end")
        for tick in y_ticks
    ]
    parts += [_text(x(tick), floor + 19, _number(tick), "tick", "middle") for tick in x_ticks]
    for line in lines:
        points = [(a, b) for a, b in line.points if math.isfinite(a) and math.isfinite(b)]
        for (x0, y0), (x1, y1) in pairwise(points):
            parts.append(_line(x(x0), y(y0), x(x1), y(y1), f"curve {line.look}"))
        # The hollow dots of the start are the larger ones, so that they show around equal solid ones.
        radius = 5 if line.look == "start" else 3
        for a, b in points:
            hint = escape(f"{line.name}, {_number(a)}: {y_format(b)}")
            parts.append(
                f'<circle class="dot {line.look}" cx="{x(a):.2f}%" cy="{y(b):.1f}" r="{radius}">'
                f"<title>{hint}</title></circle>"
            )
    return _chart("".join(parts), height, title)


def share_chart(rows: Sequence[Shares], title: str) -> Markup:
    """Two bars a row, start above trained; the full width is 100%."""
    pitch = 54
    widest = 84.0
    parts = []
    for index, row in enumerate(rows):
        y = pitch * index
        parts.append(_text(0, y + 15, row.label, "label") + _text(100, y + 15, row.note, "tick", "end"))
        for offset, look, share in ((22, "start", row.start), (36, "trained", row.trained)):
            words = "none proposed" if share is None else f"{share:.0%}"
            width = widest * (share or 0.0)
            parts.append(
                f'<rect class="track" x="0" y="{y + offset}" width="{widest}%" height="10" rx="2"/>'
                f'<rect class="bar {look}" x="0" y="{y + offset}" width="{width:.2f}%" height="10" rx="2">'
                f"<title>{escape(f'{row.label}, {look}: {words}')}</title></rect>"
                + _text(100, y + offset + 9, "–" if share is None else words, f"value {look}", "end")
            )
    return _chart("".join(parts), pitch * len(rows), title)


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from at most `low` to at least `high`."""
    span = max(high - low, 1e-9)
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * index, 10) for index in range(first, max(last, first + 1) + 1)]


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """The map that takes `low` to `start` and `high` to `end`; values outside stop at the ends."""

    def place(value: float) -> float:
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        return start + share * (end - start)

    return place


def _chart(inside: str, height: int, title: str) -> Markup:
    # The namespace lets the picture stand alone as an .svg file too; inside a page it changes nothing.
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{escape(title)}" '
        f'width="100%" height="{height}">{inside}</svg>'
    )


def _line(x0: float, y0: float, x1: float, y1: float, look: str) -> str:
    return f'<line class="{look}" x1="{x0:.2f}%" y1="{y0:.1f}" x2="{x1:.2f}%" y2="{y1:.1f}"/>'


def _text(x: float, y: float, words: str, look: str, anchor: str = "start", indent: int = 0) -> str:
    place = f'x="{x:.2f}%" y="{y:.1f}" dx="{indent}" text-anchor="{anchor}"'
    return f'<text class="{look}" {place}>{escape(words)}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"
