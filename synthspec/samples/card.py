"""The dataset card of a training set: what is in it, under which licences, and what it is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from synthspec.ledger import Counts, StageCounts
from synthspec.samples.schema import SAMPLES
from synthspec.spec import Spec

Row = dict[str, Any]

_COLUMNS = {
    "id": "16 hexadecimal digits, from the content",
    "purpose": "grammar or replay",
    "grammar": "the grammar; null for replay",
    "set": "null in a training set",
    "turn": "which of the target's turns in its conversation it is, from 0",
    "input_ids": "token ids of the conversation and of what the target wrote after it",
    "prompt_tokens": "how many of them are the conversation",
    "loss_mask": "1 on the tokens that the target wrote, else 0",
    "spans": "kind, start and end (exclusive) of each span of those tokens: forced, structure, value or free",
    "constraint": "JSON of the constraint that the answer keeps to; null for replay",
    "held": "whether the answer was decoded under its constraint",
    "max_new_tokens": "the most tokens the target was allowed",
    "lineage": "source, dataset, revision, row and licence of the prompt; ids of prompt, match, request and "
    "completion; fingerprint of the target",
}


def card(spec: Spec, sets: Mapping[str, Sequence[Row]], ledger: Mapping[str, Counts | StageCounts]) -> str:
    """README.md for the folder of `train.parquet`; its front matter lets `datasets` load the folder.

    Args:
        spec: what the run was made from.
        sets: rows of `SAMPLES` by set name, as `assemble` returns them.
        ledger: counts by stage in the order of the stages, that of assemble included.
    """
    train = sets["train"]
    tokens = sum(len(row["input_ids"]) for row in train)
    learned = sum(sum(row["loss_mask"]) for row in train)
    licences = Counter(row["lineage"]["licence"] for row in train)
    origins = Counter(
        (lineage["source"], lineage["dataset"], lineage["revision"], lineage["licence"])
        for lineage in (row["lineage"] for row in train)
    )
    parts = Counter(row["grammar"] or row["purpose"] for row in train)
    targets = sorted({row["lineage"]["target"] for row in train})
    front = {
        "license": sorted(name.lower() for name in licences) or "unknown",
        "pretty_name": f"synthspec training set {spec.name}",
        "tags": ["speculative-decoding", "synthetic"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "train.parquet"}]}],
    }
    return "\n".join(
        [
            "---",
            yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(),
            "---",
            "",
            f"# Training set of the run {spec.name}",
            "",
            f"{len(train):,} samples, {tokens:,} tokens; trained on are the {learned:,} that the target wrote.",
            "Each sample is a public prompt and the target model's own answer, decoded under the constraint of",
            "a grammar, or freely where it is replay. It trains a drafter for that target and for no other:",
            "the token ids are the target's.",
            "",
            f"Target: {spec.target.model}{f' at {spec.target.revision}' if spec.target.revision else ''}"
            f" (fingerprint {', '.join(targets) or 'none'}).",
            "",
            "## What is in it",
            "",
            *_table(["part", "samples"], sorted(parts.items())),
            "",
            "## Where the prompts come from",
            "",
            *_table(
                ["source", "dataset", "revision", "licence", "samples"],
                [[*origin, n] for origin, n in sorted(origins.items())],
            ),
            "",
            "The licence of a prompt covers the prompt; what the target wrote falls under the target's terms.",
            "",
            "## What was set apart",
            "",
            *_table(["set", "samples"], [(name, len(rows)) for name, rows in sets.items() if name != "train"]),
            "",
            "None of them shares a near-twin of a prompt, or a nearly verbatim completion, with the set here.",
            "",
            "## Ledger",
            "",
            *_table(
                ["stage", "unit", "entered", "kept", "other states"],
                [
                    (stage, counts.unit, counts.requested, counts.kept, _states(counts.dropped))
                    for stage, counts in ledger.items()
                ],
            ),
            "",
            "## Columns",
            "",
            *_table(["column", "type", "meaning"], [(f.name, f.type, _COLUMNS[f.name]) for f in SAMPLES]),
            "",
            "## Limits",
            "",
            "- The values in the answers are invented by the target or by a random generator; many are wrong,",
            "  and none is a fact. The set teaches how answers are shaped, not what is true.",
            "- The prompts are public, and mostly English; a real user's traffic is worded differently.",
            "- Near-duplicates are found by shared words and tokens, so a paraphrase can stand in the training",
            "  set and in an evaluation set.",
            "- Public prompts are taken as they are: personal data that someone wrote into one is still there.",
            "",
        ]
    )


def _states(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {state}" for state, n in dropped.items()) or "none"


def _table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    """A Markdown table."""
    lines = [[f"{cell:,}" if isinstance(cell, int) else _cell(str(cell)) for cell in row] for row in rows]
    return [_line(head), _line(["---"] * len(head)), *map(_line, lines)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
