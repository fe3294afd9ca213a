"""The report: one HTML file that says whether the drafter may ship, and why.

The page holds its own style and pictures and runs no script; its content security policy forbids the
browser every request. Jinja escapes every value, and `charts` escapes what it draws.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from synthspec.reporting.charts import (
    Interval,
    Line,
    Pair,
    Shares,
    interval_chart,
    line_chart,
    nice_ticks,
    share_chart,
)

# One word, one meaning: the kinds of sets as a reader should see them.
KINDS = {
    "heldout_prompts": "held-out prompts",
    "heldout_grammar": "held-out grammar",
    "ood": "out of distribution",
}
SPANS = ("forced", "structure", "value", "free")


@dataclass(frozen=True)
class Report:
    """Everything that the page shows; the page computes no number that is not a quotient or a sum of these.

    Attributes:
        name: of the run.
        created: when the report was made, as it should be read.
        acceptance: `acceptance.json`, with the gate's decision in `gate`.
        ledger: `ledger.json`: `stages` by name, each with `unit`, `requested`, `kept` and `dropped`.
        manifest: `manifest.json`; the fingerprints in `stages` are shown.
        target: facts of the target by name; `model` is needed (a hub id, or the name of a folder),
            `revision` is used in the serving command if it is there.
        drafter: facts of the drafter by name, such as layers, block size, taps, start and steps.
        target_path: the folder of the target's weights, where it is no hub id.
        sources: of prompts: `source`, `dataset`, `revision`, `licence`, `rows`, and `use`, what for.
        grammars: `name`, `kind`, `samples` (trained on), `measured` (requests of its set), and `tools`, how
            many of the samples (of a held-out grammar: of the requests) are near to each.
        replay: general samples in the training set.
        exported: whether the run folder has an export.
    """

    name: str
    created: str
    acceptance: dict[str, Any]
    ledger: dict[str, Any]
    manifest: dict[str, Any]
    target: dict[str, Any]
    target_path: str
    drafter: dict[str, Any]
    sources: list[dict[str, Any]]
    grammars: list[dict[str, Any]]
    replay: int
    exported: bool


def render(facts: Report) -> str:
    """The whole page.

    Raises:
        KeyError: a field named in `Report`'s description is missing.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, auto_reload=False
    )
    environment.filters.update(
        tau=tau, signed=signed, count=count, words=words, called=called, span=span, signed_span=signed_span
    )
    sets = facts.acceptance["sets"]
    html = environment.from_string(_read("page.html.jinja")).render(
        facts=facts,
        style=Markup(_read("style.css")),
        verdict=_verdict(facts),
        headlines=_headlines(sets),
        sets=[_set_row(facts, measured) for measured in sets],
        by_grammar=_by_grammar(sets),
        set_chart=_set_chart(sets) if sets else "",
        position_charts=_position_charts(sets),
        span_charts=_span_charts(sets),
        training_charts=_training_charts(facts.acceptance.get("training", [])),
        stages=_stages(facts.ledger),
        fingerprints=_fingerprints(facts.manifest),
        target=_pairs(facts.target),
        drafter=_pairs(facts.drafter),
        trained_samples=sum(grammar["samples"] for grammar in facts.grammars) + facts.replay,
        serving=_serving(facts.target, facts.target_path),
    )
    # A lone surrogate in a name has no UTF-8 form; it would make the file unwritable.
    return html.encode("utf-8", "replace").decode("utf-8")


def tau(value: float | None) -> str:
    """An acceptance length with two decimals."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.2f}"


def signed(value: float | None) -> str:
    """A difference with its sign; a true minus, so that it is as wide as the plus."""
    if value is None or not math.isfinite(value):
        return "–"
    shown = f"{value:+.2f}"
    return "0.00" if float(shown) == 0 else shown.replace("-", "−")


def span(ends: Sequence[float]) -> str:
    return f"{tau(ends[0])} to {tau(ends[1])}"


def signed_span(ends: Sequence[float]) -> str:
    return f"{signed(ends[0])} to {signed(ends[1])}"


def count(value: int) -> str:
    return f"{value:,}"


def words(name: str) -> str:
    """A name from a file as words: `general_chat` is general chat."""
    return name.replace("_", " ")


def called(name: str) -> str:
    """The name of a set in words: `heldout_prompts` is held-out prompts, `grammar_library` is library."""
    return KINDS.get(name, words(name.removeprefix("grammar_")))


def _read(name: str) -> str:
    return resources.files("synthspec.reporting").joinpath(name).read_text(encoding="utf-8")


def _verdict(facts: Report) -> dict[str, Any]:
    gate = facts.acceptance["gate"]
    if gate["passed"] and facts.exported:
        state, title = "ships", "Ships"
        text = "Every rule of the gate holds, and the drafter is exported."
    elif gate["passed"]:
        state, title = "ships", "May ship"
        text = "Every rule of the gate holds. The drafter is not exported yet."
    elif facts.exported:
        state, title = "refused", "Refused, but exported"
        text = "The gate refused this drafter; it was exported because a person asked for it all the same."
    else:
        state, title = "refused", "Refused"
        text = "The gate refused this drafter, so nothing is exported."
    failed = list(gate.get("failed", [])) or ([] if gate["passed"] else list(gate["reasons"]))
    return {
        "state": state,
        "title": title,
        "text": text,
        "failed": failed,
        "held": [reason for reason in gate["reasons"] if reason not in failed],
        # JSON has read whole numbers as floats.
        "rules": {name: f"{value:g}" for name, value in gate.get("rules", {}).items()},
    }


def _headlines(sets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One tile a set: prompts of the trained grammars first, then what training never saw."""
    titles = {"heldout_prompts": "Held-out prompts", "heldout_grammar": "Held-out grammar", "ood": "Elsewhere"}
    shown = []
    for kind, title in titles.items():
        for measured in (one for one in sets if one["kind"] == kind):
            main = kind == "heldout_prompts"
            shown.append(
                {
                    "title": title if main else f"{title}: {called(measured['name'])}",
                    "main": main,
                    "set": measured,
                    "factor": measured["trained"]["accept_len"] / measured["start"]["accept_len"],
                }
            )
    return shown


def _set_row(facts: Report, measured: dict[str, Any]) -> dict[str, Any]:
    verdict = facts.acceptance["gate"].get("sets", {}).get(measured["name"])
    return {
        **measured,
        "kind": "of the trained grammars"
        if measured["name"] == "heldout_prompts"
        else KINDS.get(measured["kind"], measured["kind"]),
        "verdict": {True: "passed", False: "failed", None: "–"}[verdict],
    }


def _by_grammar(sets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for measured in sets:
        start, trained = (measured[side].get("by_grammar", {}) for side in ("start", "trained"))
        rows += [
            {
                "set": measured["name"],
                "grammar": name,
                "start": start.get(name),
                "trained": trained[name],
                "factor": trained[name] / start[name] if start.get(name) else None,
            }
            for name in sorted(trained)
        ]
    return rows


def _interval(side: dict[str, Any]) -> Interval:
    return Interval(side["accept_len"], *side["ci95"])


def _set_chart(sets: list[dict[str, Any]]) -> Markup:
    rows = [
        Pair(called(measured["name"]), _interval(measured["start"]), _interval(measured["trained"]))
        for measured in sets
    ]
    told = "; ".join(f"{row.label} {tau(row.start.value)} to {tau(row.trained.value)}" for row in rows)
    return interval_chart(rows, f"Acceptance length of each set, start to trained: {told}.")


def _position_charts(sets: list[dict[str, Any]]) -> list[tuple[str, Markup]]:
    charts = []
    for measured in sets:
        curves = [measured[side]["by_position"] for side in ("start", "trained")]
        if not all(curves):
            continue
        lines = [
            Line(look, look, [(position, share) for position, share in enumerate(curve, 1)])
            for look, curve in zip(("start", "trained"), curves, strict=True)
        ]
        last = max(len(curve) for curve in curves)
        # Seventeen numbers under a narrow chart run into each other: show every second or fourth instead.
        ticks = [float(tick) for tick in range(1, max(last, 2) + 1, 1 + max(0, last - 1) // 10)]
        if ticks[-1] < last:
            ticks.append(float(last))
        told = ", ".join(f"{share:.0%}" for share in curves[1])
        chart = line_chart(
            lines,
            f"{called(measured['name'])}: share of steps that accept the drafts up to each position, "
            f"trained: {told}.",
            x_ticks=ticks,
            y_ticks=[0, 0.25, 0.5, 0.75, 1],
            y_format=lambda share: f"{share:.0%}",
        )
        charts.append((measured["name"], chart))
    return charts


def _span_charts(sets: list[dict[str, Any]]) -> list[tuple[str, Markup]]:
    charts = []
    for measured in sets:
        start, trained = (measured[side].get("by_span", {}) for side in ("start", "trained"))
        rows = []
        for kind in SPANS:
            before, after = (spans.get(kind, {"accepted": 0, "proposed": 0}) for spans in (start, trained))
            if before["proposed"] or after["proposed"]:
                note = f"{after['accepted']:,} of {after['proposed']:,}"
                rows.append(Shares(kind, _share(before), _share(after), note))
        if rows:
            told = ", ".join(
                f"{row.label} {'none' if row.trained is None else format(row.trained, '.0%')}" for row in rows
            )
            title = f"{called(measured['name'])}: share of draft tokens accepted, trained: {told}."
            charts.append((measured["name"], share_chart(rows, title)))
    return charts


def _share(counts: dict[str, int]) -> float | None:
    return counts["accepted"] / counts["proposed"] if counts["proposed"] else None


def _training_charts(points: list[dict[str, Any]]) -> list[tuple[str, Markup]]:
    """One small chart a set, each with its own scale: a fall of 0.05 is lost beside a gain of 2."""
    names = list(dict.fromkeys(name for point in points for name in point.get("accept_len", {})))
    curves = {
        name: [(p["step"], p["accept_len"][name]) for p in points if name in p.get("accept_len", {})]
        for name in names
    }
    curves["loss"] = [(p["step"], p["loss"]) for p in points if p.get("loss") is not None]
    charts = []
    for name, curve in curves.items():
        if len(curve) < 2:
            continue
        steps, heights = zip(*curve, strict=True)
        middle = (min(heights) + max(heights)) / 2
        # At least half a token is shown, so that noise does not look like a trend.
        half = max((max(heights) - min(heights)) / 2, 0.25)
        low, high = middle - half, middle + half
        if name != "loss" and low < 1:
            low, high = 1.0, max(high, 1.5)
        charts.append(
            (
                name,
                line_chart(
                    [Line(words(name), "loss" if name == "loss" else "trained", curve)],
                    f"{words(name)} over training steps, from {heights[0]:.2f} to {heights[-1]:.2f}.",
                    x_ticks=nice_ticks(min(steps), max(steps), about=4),
                    y_ticks=nice_ticks(low, high, about=4),
                    y_format=lambda height: f"{height:.2f}",
                ),
            )
        )
    return charts


def _stages(ledger: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            **counts,
            "left": counts["kept"] + sum(counts["dropped"].values()),
            "share": counts["kept"] / counts["requested"] if counts["requested"] else 0.0,
        }
        for name, counts in ledger.get("stages", {}).items()
    ]


def _fingerprints(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    stages = manifest.get("stages", {})
    found = (
        (name, stage.get("fingerprint") if isinstance(stage, dict) else stage) for name, stage in stages.items()
    )
    return [(name, mark) for name, mark in found if isinstance(mark, str)]


def _pairs(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values for a list of facts; what is nested is told in one line."""
    shown = []
    for name, value in facts.items():
        if value is None or value == [] or value == {}:
            continue
        if isinstance(value, bool):
            text = "yes" if value else "no"
        elif isinstance(value, int):
            text = f"{value:,}"
        elif isinstance(value, (list, tuple)):
            text = ", ".join(str(item) for item in value)
        elif isinstance(value, dict):
            text = ", ".join(f"{words(str(key))} {item}" for key, item in value.items())
        else:
            text = str(value)
        shown.append((words(name), text))
    return shown


def _serving(target: dict[str, Any], path: str) -> str:
    """The command that serves the export."""
    revision, hub_id = target.get("revision"), "/" in str(target["model"])
    place = target["model"] if hub_id else path
    lines = [f"python -m sglang.launch_server --model-path {shlex.quote(place)}"]
    if revision and hub_id:
        lines.append(f"--revision {shlex.quote(str(revision))}")
    lines += ["--speculative-algorithm DFLASH", "--speculative-draft-model-path export"]
    return " \\\n  ".join(lines)
