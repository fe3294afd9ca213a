"""The page says what the facts say, whatever the facts are named."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import numpy as np
import pytest

from synthspec.acceptance.compare import accept_len, bootstrap, paired_bootstrap
from synthspec.acceptance.gate import decide
from synthspec.reporting.page import Report, called, render, signed, tau
from synthspec.spec import Gate

HOSTILE = '<script>alert("x")</script>&\'</title><img src=x onerror=alert(1)>'
VOID = {"meta", "link", "br", "img", "hr", "input"}


def measured(
    name: str, kind: str, start: float, trained: float, grammars: list[str], seed: int
) -> dict[str, Any]:
    """A set of 40 requests whose drafters accept a draft token with the chances `start` and `trained`."""
    rng = np.random.default_rng(seed)
    requests, block = 40, 8
    ease = np.clip(rng.normal(1, 0.12, requests), 0.6, 1.3)
    # Both drafters meet the same luck at the same step, as they do on the same text.
    luck = [rng.random(steps) for steps in rng.integers(15, 40, requests)]
    sides: dict[str, Any] = {}
    pairs = []
    for chance in (start, trained):
        drafts = [
            np.minimum(np.floor(np.log(u) / np.log(min(chance * e, 0.97))), block - 1)
            for u, e in zip(luck, ease, strict=True)
        ]
        steps = np.array([len(u) for u in luck])
        accepted = np.array([d.sum() for d in drafts])
        flat = np.concatenate(drafts)
        estimate = bootstrap(accepted, steps)
        kinds = ("free",) if kind == "ood" else ("forced", "structure", "value")
        spans = {
            k: {"accepted": int(200 * min(chance * weight, 0.97)), "proposed": 200}
            for k, weight in zip(kinds, (1.3, 1.1, 0.6), strict=False)
        }
        pairs.append((accepted, steps))
        sides["trained" if sides else "start"] = {
            "accept_len": estimate.value,
            "ci95": [estimate.low, estimate.high],
            "by_position": [float((flat >= k).mean()) for k in range(1, block)],
            "by_span": spans,
            "by_grammar": {
                g: accept_len(accepted[i :: len(grammars)], steps[i :: len(grammars)])
                for i, g in enumerate(grammars)
            },
            "verify_steps": int(steps.sum()),
            "tokens": int(steps.sum() + accepted.sum()),
        }
    difference = paired_bootstrap(*pairs[0], *pairs[1])
    return {
        "name": name,
        "kind": kind,
        "requests": requests,
        **sides,
        "difference": {"mean": difference.value, "ci95": [difference.low, difference.high]},
    }


def plausible_report(*, chat: float = 0.40, exported: bool = True) -> Report:
    """What a run might give; a `chat` well below 0.39 is a drafter that forgot general chat."""
    sets = [
        measured(
            "heldout_prompts", "heldout_prompts", 0.10, 0.72, ["travel_desk", "home_control", "invoice"], 1
        ),
        measured("grammar_library", "heldout_grammar", 0.09, 0.31, ["library"], 2),
        measured("general_chat", "ood", 0.39, chat, [], 3),
        measured("maths", "ood", 0.33, 0.345, [], 4),
    ]
    acceptance = {
        "version": 1,
        "drafter": {},
        "block_size": 8,
        "sets": sets,
        "training": [
            {
                "step": step,
                "loss": 4.4 * 0.993**step + 1.3,
                "accept_len": {
                    "heldout_prompts": 1.11 + 2.0 * (1 - 0.985**step),
                    "general_chat": 1.61 + 0.03 * (step % 100) / 100,
                },
            }
            for step in range(0, 301, 50)
        ],
    }
    acceptance["gate"] = decide(acceptance, Gate())
    return Report(
        name="my-desk",
        created="2026-07-30 14:12 UTC",
        acceptance=acceptance,
        ledger={
            "version": 1,
            "stages": {
                "pull": {
                    "unit": "prompt",
                    "requested": 2501,
                    "kept": 2388,
                    "dropped": {"invalid": 4, "duplicate": 109},
                },
                "match": {
                    "unit": "prompt",
                    "requested": 2388,
                    "kept": 904,
                    "dropped": {"unmatched": 611, "surplus": 873},
                },
                "render": {"unit": "request", "requested": 904, "kept": 904, "dropped": {}},
                "generate": {"unit": "request", "requested": 904, "kept": 904, "dropped": {}},
                "conform": {
                    "unit": "completion",
                    "requested": 904,
                    "kept": 841,
                    "dropped": {"truncated": 38, "invalid": 19, "degenerate": 6},
                },
                "assemble": {
                    "unit": "sample",
                    "requested": 841,
                    "kept": 561,
                    "dropped": {"heldout": 160, "duplicate": 83, "contaminated": 12, "surplus": 25},
                },
            },
        },
        manifest={
            "stages": {
                "pull": {"fingerprint": "9f2b6a3c11d0e784"},
                "match": {"fingerprint": "07c1f5d2aa90be36"},
            }
        },
        target={
            "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
            "revision": "12fd25f77366fa6b3b4b768ec3050bf629380bac",
            "tokenizer": "sha256:5c0f7d0a9d9f51dcb5dca1bcfa2f4c3d",
            "template": "sha256:e70b1d4c1c65c4bb71be7be1d9c7d1a2",
        },
        target_path="/models/small",
        drafter={
            "layers": 3,
            "block_size": 8,
            "taps": [2, 9, 15, 21, 27],
            "start": "smollm2",
            "steps": 300,
        },
        sources=[
            {
                "source": "bfcl",
                "dataset": "bfcl-eval",
                "revision": "2026.3.23",
                "licence": "Apache-2.0",
                "rows": 1822,
                "use": "grammars",
            },
            {
                "source": "chat",
                "dataset": "files/chat.jsonl",
                "revision": None,
                "licence": "CC-BY-4.0",
                "rows": 679,
                "use": "measuring general chat",
            },
        ],
        grammars=[
            {
                "name": "travel_desk",
                "kind": "tools",
                "samples": 131,
                "measured": 13,
                "tools": {"find_flights": 90, "book": 41},
            },
            {"name": "home_control", "kind": "tools", "samples": 127, "measured": 14, "tools": {}},
            {"name": "invoice", "kind": "schema", "samples": 118, "measured": 13, "tools": {}},
            {"name": "library", "kind": "tools", "samples": 0, "measured": 40, "tools": {}},
        ],
        replay=212,
        exported=exported,
    )


@pytest.fixture(scope="module")
def facts() -> Report:
    return plausible_report()


@pytest.fixture(scope="module")
def page(facts: Report) -> str:
    return render(facts)


class Reader(HTMLParser):
    """Collects tags and text, and fails on a tag that closes what is not open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", "\n".join(Reader(page).text))


def rows_of(page: str, caption: str) -> list[list[str]]:
    """The body cells of the table with that caption id, tags and space stripped."""
    table = page.split(f'id="{caption}"', 1)[1].split("<tbody>", 1)[1].split("</tbody>", 1)[0]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in table.split("</tr>")]
    return [
        [html.unescape(" ".join(re.sub(r"<[^>]+>", " ", cell).split())) for cell in row] for row in cells if row
    ]


def test_sets_table_holds_every_number(facts: Report, page: str) -> None:
    rows = rows_of(page, "sets-caption")
    assert len(rows) == len(facts.acceptance["sets"])
    for row, facts_of_set in zip(rows, facts.acceptance["sets"], strict=True):
        start, trained, difference = (
            facts_of_set["start"],
            facts_of_set["trained"],
            facts_of_set["difference"],
        )
        kinds = {"heldout_prompts": "of the trained grammars", "heldout_grammar": "held-out grammar"}
        kind = kinds.get(facts_of_set["kind"], "out of distribution")
        assert row[0] == f"{called(facts_of_set['name'])} {kind}, {facts_of_set['requests']} requests"
        assert row[1] == f"{start['accept_len']:.2f} {start['ci95'][0]:.2f} to {start['ci95'][1]:.2f}"
        assert row[2] == f"{trained['accept_len']:.2f} {trained['ci95'][0]:.2f} to {trained['ci95'][1]:.2f}"
        low, high = difference["ci95"]
        assert row[3] == f"{signed(difference['mean'])} {signed(low)} to {signed(high)}"
        assert row[4] == "✓ passed"


def test_headline_is_start_to_trained_with_factor(facts: Report, page: str) -> None:
    first = facts.acceptance["sets"][0]
    start, trained = first["start"]["accept_len"], first["trained"]["accept_len"]
    text = text_of("<section " + page.split("headlines", 2)[-1].split("</section>", 1)[0] + "</section>")
    assert f"{tau(start)} → {tau(trained)}" in text
    assert f"{trained / start:.2f}× the start" in text
    assert text.count("the start") == len(facts.acceptance["sets"])
    assert text.index("Held-out grammar: ") < text.index("Elsewhere: general chat")


def test_ledger_table_adds_up(facts: Report, page: str) -> None:
    for row, (name, counts) in zip(
        rows_of(page, "ledger-caption"), facts.ledger["stages"].items(), strict=True
    ):
        assert row[:4] == [name, counts["unit"], f"{counts['requested']:,}", f"{counts['kept']:,}"]
        assert row[4] == (" ".join(f"{state} {rows:,}" for state, rows in counts["dropped"].items()) or "–")
        assert row[5].startswith(f"{counts['requested']:,}")


def test_ledger_that_does_not_add_up_is_said(facts: Report) -> None:
    ledger = {"stages": {"match": {"unit": "prompt", "requested": 10, "kept": 4, "dropped": {"surplus": 5}}}}
    assert "9, does not add up" in text_of(render(replace(facts, ledger=ledger)))


def test_lineage_is_shown(facts: Report, page: str) -> None:
    assert rows_of(page, "sources-caption")[0] == [
        "bfcl",
        "grammars",
        "bfcl-eval",
        "2026.3.23",
        "Apache-2.0",
        "1,822",
    ]
    assert rows_of(page, "grammars-caption")[1] == ["home_control", "tools", "127", "22%", "14"]
    assert rows_of(page, "grammars-caption")[3] == ["library", "tools", "0", "–", "40"]
    assert rows_of(page, "grammars-caption")[0][0].endswith("find_flights 90, book 41")
    *_, replay, chat, maths, both = rows_of(page, "grammars-caption")
    assert replay[0].startswith("replay")
    assert replay[2:] == ["212", "36%", "–"]
    assert (chat[0], chat[4]) == ("general chat out of distribution", "40")
    assert (maths[0], maths[4]) == ("maths out of distribution", "40")
    assert both == ["all", "–", "588", "100%", "160"]
    text = text_of(page)
    for fact in ("12fd25f77366fa6b3b4b768ec3050bf629380bac", "2, 9, 15, 21, 27", "07c1f5d2aa90be36"):
        assert fact in text
    for row in rows_of(page, "grammar-caption"):
        where = next(s for s in facts.acceptance["sets"] if called(s["name"]) == row[1])
        assert row[3] == tau(where["trained"]["by_grammar"][row[0].replace(" ", "_")])


def test_pictures_are_well_formed_and_named(page: str) -> None:
    pictures = re.findall(r"<svg xmlns.*?</svg>\s*</figure>", page, re.S)
    # One of all sets, four by position, four by span kind, two of sets through training, and the loss.
    assert len(pictures) == 1 + 4 + 4 + 3
    for picture in pictures:
        root = ET.fromstring(picture.removesuffix("</figure>"))
        assert root.attrib["role"] == "img"
        assert len(root.attrib["aria-label"]) > 20
        for element in root.iter():
            for name in ("x", "x1", "x2", "cx", "width"):
                where = element.attrib.get(name, "0")
                assert "nan" not in where
                assert not where.endswith("%") or -0.01 <= float(where[:-1]) <= 100.01


def test_page_is_self_contained(page: str) -> None:
    reader = Reader(page)
    assert not {"script", "iframe", "object", "img"} & {tag for tag, _ in reader.tags}
    for tag, attributes in reader.tags:
        for name in ("href", "src", "srcset", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,")), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_tables_can_be_reached_by_keyboard_and_have_headers(page: str) -> None:
    reader = Reader(page)
    tables = sum(tag == "table" for tag, _ in reader.tags)
    scrolled = [a for tag, a in reader.tags if tag == "div" and a.get("class") == "table"]
    assert tables == len(scrolled) == 5
    ids = [a["id"] for _, a in reader.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for attributes in scrolled:
        assert attributes["tabindex"] == "0"
        assert attributes["aria-labelledby"] in ids
    assert all("scope" in a for tag, a in reader.tags if tag == "th")


def hostile(value: Any) -> Any:
    """The same facts with every string made hostile, kinds and the gate's rules apart."""
    if isinstance(value, dict):
        return {k: v if k in ("kind", "gate") else hostile(v) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def test_hostile_facts_stay_text(facts: Report) -> None:
    acceptance = hostile(facts.acceptance)
    acceptance["gate"] = {
        **facts.acceptance["gate"],
        "passed": False,
        "failed": [HOSTILE],
        "reasons": [HOSTILE, HOSTILE],
    }
    for measured_set in acceptance["sets"]:
        measured_set["trained"]["by_grammar"] = {HOSTILE: 2.0}
    for point in acceptance["training"]:
        point["accept_len"] = {HOSTILE: 1.5}
    page = render(
        Report(
            name=HOSTILE,
            created=HOSTILE,
            acceptance=acceptance,
            ledger={"stages": {HOSTILE: {"unit": HOSTILE, "requested": 3, "kept": 1, "dropped": {HOSTILE: 2}}}},
            manifest={"stages": {HOSTILE: HOSTILE}},
            target={"model": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}},
            target_path=HOSTILE,
            drafter={HOSTILE: [HOSTILE]},
            sources=hostile(facts.sources),
            grammars=[
                {**grammar, "name": HOSTILE, "kind": HOSTILE, "tools": {HOSTILE: 1}}
                for grammar in facts.grammars
            ],
            replay=3,
            exported=True,
        )
    )
    reader = Reader(page)
    assert not {"script", "img"} & {tag for tag, _ in reader.tags}
    assert sum(tag == "title" and a == {} for tag, a in reader.tags) >= 1
    assert not [a for _, a in reader.tags if "onerror" in a]
    assert "<script" not in page
    for picture in re.findall(r"<svg xmlns.*?</svg>\s*</figure>", page, re.S):
        ET.fromstring(picture.removesuffix("</figure>"))


def test_serving_command_quotes_the_model(facts: Report) -> None:
    page = render(replace(facts, target={"model": "a b/; rm -rf /", "revision": "abc"}))
    command = html.unescape(page.split('aria-label="Serving command"><code>', 1)[1].split("</code>", 1)[0])
    assert "--model-path 'a b/; rm -rf /' \\\n  --revision abc" in command
    assert "--speculative-algorithm DFLASH" in command
    assert "--speculative-draft-model-path export" in command
    local = text_of(render(replace(facts, target={"model": "SmolLM2", "revision": "abc"})))
    assert "--model-path /models/small " in local
    assert "--revision" not in local
    assert "no export to serve" in text_of(render(replace(facts, exported=False)))


@pytest.mark.parametrize(
    ("chat", "exported", "title"),
    [
        (0.40, True, "Ships"),
        (0.40, False, "May ship"),
        (0.20, False, "Refused"),
        (0.20, True, "Refused, but exported"),
    ],
)
def test_verdict(chat: float, exported: bool, title: str) -> None:
    report = plausible_report(chat=chat, exported=exported)
    page = render(report)
    verdict = page.split('<section id="verdict"', 1)[1].split("</section>", 1)[0]
    assert re.search(rf"</span>{title}</h2>", verdict)
    failed = report.acceptance["gate"]["failed"]
    assert bool(failed) == title.startswith("Refused")
    for reason in failed:
        assert reason.startswith("general_chat failed")
        assert html.escape(reason, quote=False) in html.unescape(verdict).replace("&", "&amp;")
        # What refuses stands before what holds, and is not hidden.
        assert html.unescape(verdict).index(reason) < verdict.index("<details")
    assert ("✕ failed" in text_of(page)) == bool(failed)


def test_page_without_optional_facts_still_renders(facts: Report) -> None:
    acceptance = json.loads(json.dumps(facts.acceptance))
    acceptance["training"] = []
    for measured_set in acceptance["sets"]:
        for side in ("start", "trained"):
            measured_set[side] |= {"by_position": [], "by_span": {}, "by_grammar": {}}
    acceptance["gate"] = {"passed": True, "reasons": []}
    text = text_of(render(replace(facts, acceptance=acceptance, manifest={}, ledger={})))
    assert "Through training" not in text
    empty = {**acceptance, "sets": [], "gate": {"passed": False, "reasons": ["nothing was measured"]}}
    text = text_of(render(replace(facts, acceptance=empty)))
    assert "No set was measured." in text
    assert "nothing was measured" in text


def test_a_lone_surrogate_cannot_make_the_file_unwritable(facts: Report) -> None:
    render(replace(facts, name="desk\ud800")).encode("utf-8")


@pytest.mark.parametrize(
    ("value", "shown"), [(0.123, "+0.12"), (-0.123, "−0.12"), (-0.001, "0.00"), (float("nan"), "–")]
)
def test_signed(value: float, shown: str) -> None:
    assert signed(value) == shown


def test_colours_have_enough_contrast() -> None:
    """WCAG AA in light and dark: 4.5 for letters, 3 for the parts of a chart."""
    style = resources.files("synthspec.reporting").joinpath("style.css").read_text("utf-8")
    themes = re.findall(r":root \{(.*?--paper.*?)\}", style, re.S)
    assert len(themes) == 2
    for theme in themes:
        colour = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", theme))
        pairs = [(ink, paper) for ink in ("ink", "soft", "trained", "start") for paper in ("paper", "card")]
        pairs += [(ink, f"{mood}-paper") for mood in ("good", "bad") for ink in (mood, "ink")]
        pairs += [("good", "card"), ("bad", "card")]
        for ink, paper in pairs:
            assert contrast(colour[ink], colour[paper]) >= 4.5, (ink, paper)
        for part in ("start", "trained", "loss"):
            assert contrast(colour[part], colour["card"]) >= 3
            assert part == "loss" or contrast(colour[part], colour["track"]) >= 3


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)
