"""The stages measure, check and report: from the trained drafter to the decision, the export and the report."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from synthspec import progress
from synthspec.files import write_json, write_text
from synthspec.ledger import Counts, tallied
from synthspec.run import Run, read_record
from synthspec.stages.facts import describe, loaded_target, run_grammars, start_folder, target_of

Row = dict[str, Any]


def measure(run: Run) -> Counts:
    """Measure acceptance before and after training; unit: request."""
    from synthspec.acceptance.measure import measure as measure_sets
    from synthspec.acceptance.measure import measured_sets
    from synthspec.dflash.checkpoint import load

    log = _training_log(run)  # before the long part: what is damaged is told at once
    target = loaded_target(run)
    start, trained = (
        load(folder, target.model.dtype).to(target.model.device)
        for folder in (start_folder(run), run.path("checkpoints/final"))
    )
    requests = sum(len(run.rows(f"sets/{file.name}")) for file in measured_sets(run.path("sets")))
    with progress.bar(
        "measure the start and the trained drafter", 2 * requests, "answers", resumes=True
    ) as tick:
        sets = measure_sets(run.path("sets"), target, start, trained, tick, keep=run.path("traces"))
    acceptance = {
        "version": 1,
        "drafter": drafter_facts(run),
        "block_size": trained.config.block_size,
        "sets": sets,
        "training": [
            {name: entry[name] for name in ("step", "loss", "accept_len") if name in entry}
            for entry in log["steps"]
        ],
        "gate": None,
    }
    write_acceptance(run, acceptance)
    return Counts("request", requests, requests)


def _training_log(run: Run) -> Row:
    from synthspec.acceptance.result import TrainingLog

    return read_record(run.path("checkpoints/log.json"), TrainingLog).model_dump(
        mode="json", exclude_unset=True
    )


def drafter_facts(run: Run) -> Row:
    """What the trained drafter is and where it came from."""
    config = json.loads(run.path("checkpoints/final/config.json").read_text("utf-8"))
    log = _training_log(run)
    return {
        "layers": config["num_hidden_layers"],
        "block_size": config["block_size"],
        "taps": config["dflash_config"]["target_layer_ids"],
        "start": run.spec.train.start,
        "steps": log["steps"][-1]["step"],
        "chosen_step": log["chosen_step"],
    }


def check(run: Run) -> Counts:
    """Decide whether the drafter may ship, and export it if so; unit: drafter."""
    from synthspec.acceptance.gate import decide
    from synthspec.acceptance.measure import measured_sets

    acceptance = read_acceptance(run)
    wanted = [file.stem for file in measured_sets(run.path("sets"))]
    gate = {**decide(acceptance, run.spec.gate, wanted), "overridden": False}
    if gate["passed"]:
        export(run, gate)
    write_acceptance(run, {**acceptance, "gate": gate})
    return Counts("drafter", 1, int(gate["passed"]), {} if gate["passed"] else {"refused": 1})


def export(run: Run, gate: Row) -> None:
    """Write the folder that a server loads."""
    from synthspec.dflash.checkpoint import export as write_export

    facts = {
        "run": run.name,
        "gate": {"passed": gate["passed"], "overridden": gate["overridden"]},
        "drafter": drafter_facts(run),
    }
    write_export(run.path("checkpoints/final"), run.path("export"), describe(target_of(run)), facts)


def exported(run: Run) -> bool:
    """Whether the export is there, and whole: its manifest is written last."""
    return run.path("export/manifest.json").is_file()


def read_acceptance(run: Run) -> Row:
    """acceptance.json, checked."""
    from synthspec.acceptance.result import Acceptance

    return read_record(run.path("acceptance.json"), Acceptance).model_dump(mode="json", exclude_unset=True)


def write_acceptance(run: Run, acceptance: Row) -> None:
    """Write acceptance.json, which must be what its schema says."""
    from synthspec.acceptance.result import Acceptance

    Acceptance.model_validate(acceptance)
    write_json(run.path("acceptance.json"), acceptance)


def report(run: Run) -> Counts:
    """Write the page; unit: page."""
    from synthspec.reporting.page import Report
    from synthspec.reporting.page import render as render_page
    from synthspec.targets.load import find

    trained = run.rows("trainset/train.parquet")
    facts = Report(
        name=run.name,
        created=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
        acceptance=read_acceptance(run),
        ledger=run.ledger().model_dump(mode="json"),
        manifest=run.manifest.model_dump(mode="json"),
        target=describe(target_of(run)),
        target_path=find(target_of(run)).path,
        drafter=drafter_facts(run),
        sources=_sources(run),
        grammars=_grammars(run, trained),
        replay=sum(row["purpose"] == "replay" for row in trained),
        exported=exported(run),
    )
    write_text(run.path("report.html"), render_page(facts))
    return Counts("page", 1, 1)


def _sources(run: Run) -> list[Row]:
    spec = run.spec
    uses = dict.fromkeys(spec.match, "grammars")
    uses |= dict.fromkeys(spec.replay.shares, "replay")
    uses |= {ood.source: f"measuring {ood.name.replace('_', ' ')}" for ood in spec.ood}
    keys = ("source", "dataset", "revision", "licence")
    found = Counter(tuple(row[key] for key in keys) for row in run.rows("prompts/prompts.parquet"))
    return [
        {**dict(zip(keys, values, strict=True)), "rows": n, "use": uses.get(values[0], "nothing")}
        for values, n in sorted(found.items())
    ]


def _grammars(run: Run, trained: list[Row]) -> list[Row]:
    """The grammars, with how many samples were trained on and how many requests were measured."""
    from synthspec.acceptance.measure import measured_sets

    measured = [row for file in measured_sets(run.path("sets")) for row in run.rows(f"sets/{file.name}")]
    near = {row["id"]: row["tool"] for row in run.rows("matches/matches.parquet")}
    samples, requests = (Counter(row["grammar"] for row in rows) for rows in (trained, measured))
    held_out = [row for row in measured if row["grammar"] in run.spec.holdout.grammars]
    tools = tallied((row["grammar"], near.get(row["lineage"]["match_id"])) for row in [*trained, *held_out])
    return [
        {
            "name": grammar.name,
            "kind": grammar.kind,
            "samples": samples[grammar.name],
            "measured": requests[grammar.name],
            "tools": tools.get(grammar.name, {}),
        }
        for grammar in run_grammars(run)
    ]
