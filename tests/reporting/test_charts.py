"""The charts' arithmetic: ticks are round and enclose, places are where the values are."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthspec.reporting.charts import (
    Interval,
    Line,
    Pair,
    Shares,
    interval_chart,
    line_chart,
    linear,
    nice_ticks,
    share_chart,
)

SVG = "{http://www.w3.org/2000/svg}"


@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e5))
def test_ticks_enclose_the_values_and_are_evenly_apart(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    assert ticks[0] <= low + 1e-6 * span
    assert ticks[-1] >= low + span * (1 - 1e-6)
    assert 2 <= len(ticks) <= 8
    steps = [b - a for a, b in pairwise(ticks)]
    assert steps == pytest.approx([steps[0]] * len(steps))


def test_known_ticks() -> None:
    assert nice_ticks(1, 3.7) == [1, 2, 3, 4]
    assert nice_ticks(0, 300, about=4) == [0, 100, 200, 300]
    assert nice_ticks(1, 1) == pytest.approx([1, 1], abs=1e-6)


def test_scale_stops_at_its_ends() -> None:
    place = linear(1, 3, 10, 90)
    assert [place(v) for v in (1, 2, 3, 0, 9)] == [10, 50, 90, 10, 90]


def test_interval_chart_places_dots_and_whiskers() -> None:
    row = Pair("a <set>", Interval(1.5, 1.25, 1.75), Interval(3, 2.5, 3.5))
    root = ET.fromstring(interval_chart([row], "title"))
    start, trained = root.findall(f".//{SVG}circle")
    low, high = (float(line.attrib[end][:-1]) for line, end in _whiskers(root, "start"))
    assert low < float(start.attrib["cx"][:-1]) < high < float(trained.attrib["cx"][:-1])
    assert "a <set>, trained: 3.00 (2.50 to 3.50)" in [e.text for e in root.iter(f"{SVG}title")]
    assert {"1.50", "3.00"} <= {e.text for e in root.iter(f"{SVG}text")}


def _whiskers(root: ET.Element, look: str) -> list[tuple[ET.Element, str]]:
    lines = [e for e in root.iter(f"{SVG}line") if e.attrib["class"] == f"whisker {look}"]
    assert len(lines) == 3
    return [(lines[0], "x1"), (lines[0], "x2")]


def test_a_set_without_a_number_leaves_its_lane_empty() -> None:
    nan = float("nan")
    row = Pair("empty", Interval(nan, nan, nan), Interval(2, 1.5, 2.5))
    text = interval_chart([row], "title")
    assert text.count("<circle") == 1
    assert "nan" not in text


def test_share_chart_widths_are_the_shares() -> None:
    root = ET.fromstring(share_chart([Shares("forced", 0.25, 0.5), Shares("free", None, 0.0)], "title"))
    bars = [float(e.attrib["width"][:-1]) for e in root.iter(f"{SVG}rect") if "bar" in e.attrib["class"]]
    track = float(next(e.attrib["width"][:-1] for e in root.iter(f"{SVG}rect") if e.attrib["class"] == "track"))
    assert bars == pytest.approx([track * 0.25, track * 0.5, 0, 0])
    assert [e.text for e in root.iter(f"{SVG}text") if "value" in e.attrib["class"]] == [
        "25%",
        "50%",
        "–",
        "0%",
    ]


def test_line_chart_marks_every_point_and_skips_what_is_missing() -> None:
    lines = [Line("set", "trained", [(0, 1.0), (50, float("nan")), (100, 2.0)])]
    text = line_chart(lines, "t", x_ticks=[0, 100], y_ticks=[1, 2], y_format=lambda y: f"{y:.1f}")
    root = ET.fromstring(text)
    points = [(float(e.attrib["cx"][:-1]), float(e.attrib["cy"])) for e in root.iter(f"{SVG}circle")]
    assert len(points) == 2
    assert points[0][0] < points[1][0]
    assert points[0][1] > points[1][1]  # larger values stand higher
