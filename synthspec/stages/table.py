"""The ten stages in their order, and what each depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synthspec.errors import UserError
from synthspec.ledger import Counts
from synthspec.run import Run
from synthspec.spec import Spec, Train
from synthspec.stages import facts, judge, produce, train

Settings = dict[str, Any]

# The check stage reads what was measured and writes its decision beside it, into the same file.
MEASURED = "acceptance.json#sets"


def _no_files(run: Run) -> dict[str, Path]:
    return {}


@dataclass(frozen=True)
class Stage:
    """One arrow of the design.

    Args:
        name: the verb.
        does: what a person reads while it works.
        code: version of its code; raise it when the same inputs give other results.
        settings: the part of the spec, and of the machine, that its results depend on, as JSON.
        inputs: files and folders of the run folder that it reads.
        outputs: files and folders of the run folder that only it writes.
        work: does it.
        outside: files that it reads from outside the run folder, by the name that the manifest gives them.
        is_view: it only shows what others made, so it is done again unasked when they change.
    """

    name: str
    does: str
    code: int
    settings: Callable[[Run], Settings]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    work: Callable[[Run], Counts]
    outside: Callable[[Run], dict[str, Path]] = field(default=_no_files)
    is_view: bool = False


def _pull(run: Run) -> Settings:
    return {
        "prompts": [source.model_dump(mode="json") for source in run.spec.prompts],
        "grammars": run.spec.grammars,
    }


def _match(run: Run) -> Settings:
    spec = run.spec
    return {
        "match": spec.match,
        "rows_per_grammar": spec.rows_per_grammar,
        "holdout": spec.holdout.model_dump(mode="json"),
        "replay": {"source": spec.replay.source, **_shares(spec)},
        "ood": [ood.model_dump(mode="json", include={"name", "source", "requests"}) for ood in spec.ood],
    }


def _shares(spec: Spec) -> Settings:
    return {"share": spec.replay.share, **({"sources": spec.replay.sources} if spec.replay.sources else {})}


def _render(run: Run) -> Settings:
    spec = run.spec
    return {
        "seed": spec.seed,
        "replay": {"max_new_tokens": spec.replay.max_new_tokens},
        "ood": [{"name": ood.name, "max_new_tokens": ood.max_new_tokens} for ood in spec.ood],
        "generate": spec.generate.model_dump(mode="json", exclude={"decode", "logprobs"}),
        **(_generate(run) if facts.target_fills_slots(run) else facts.tokenizer_facts(run)),
    }


def _generate(run: Run) -> Settings:
    spec = run.spec
    asked = spec.target.model_dump(mode="json", include={"dtype", "device"})
    return {
        "target": {**asked, **facts.target_facts(run)},
        # Which servers they are does not matter, as long as they serve the same.
        "worker": spec.worker.model_dump(mode="json", include={"kind", "batch_rows", "tp", "options"}),
        "generate": spec.generate.model_dump(mode="json", include={"decode", "logprobs"}),
        # Their later requests are made from the answers to the first.
        **({"played": played} if (played := facts.played_grammars(run)) else {}),
        "versions": facts.versions(),
        **({} if spec.worker.kind == "transformers" else {"tags": facts.tags_written_with()}),
    }


def _conform(run: Run) -> Settings:
    return {**facts.tokenizer_facts(run), "decode": run.spec.generate.decode}


def _assemble(run: Run) -> Settings:
    spec = run.spec
    return {
        "seed": spec.seed,
        "holdout": spec.holdout.model_dump(mode="json"),
        "replay": _shares(spec),
        "ood": [{"name": ood.name, "requests": ood.requests} for ood in spec.ood],
    }


# What came later: a run that does not use it is done as before.
_ADDED = (
    "features_cache",
    "accumulate",
    "optimizer",
    "schedule",
    "cooldown",
    "clip",
    "ema",
    "stop_on_drift",
    "by_length",
    "max_context",
    "objective",
    "cross_entropy_share",
    "span_weights",
)


def _train(run: Run) -> Settings:
    # How it is spread, and who looks on, changes nothing.
    elsewhere = {"start", "features", "features_limit_gb", "shard", "track"}
    settings = run.spec.train.model_dump(mode="json", exclude=elsewhere)
    usual = Train().model_dump(mode="json", include=set(_ADDED))
    for name in _ADDED:
        if settings[name] == usual[name]:
            del settings[name]
    if run.spec.train.features:  # which server it is does not matter
        settings["features"] = "captured"
    ends = {"ood_drop": run.spec.gate.ood_drop} if run.spec.train.stop_on_drift else {}
    return {"seed": run.spec.seed, "train": settings, "target": _model(run), **ends}


def _measure(run: Run) -> Settings:
    return {"target": _model(run), "grammar_backend": facts.grammar_backend()}


def _model(run: Run) -> Settings:
    asked = run.spec.target.model_dump(mode="json", include={"dtype", "device"})
    return {**asked, **facts.target_facts(run)}


def _start(run: Run) -> dict[str, Path]:
    folder = facts.start_folder(run)
    return {f"start/{name}": folder / name for name in ("config.json", "model.safetensors")}


STAGES = (
    Stage(
        "pull",
        "reading public prompts",
        1,
        _pull,
        (),
        ("grammars", "prompts"),
        produce.pull,
        outside=facts.project_files,
    ),
    Stage(
        "match",
        "pairing prompts with grammars",
        2,
        _match,
        ("grammars", "prompts/prompts.parquet"),
        ("matches",),
        produce.match,
    ),
    Stage(
        "render",
        "writing conversations",
        5,
        _render,
        ("grammars", "prompts/prompts.parquet", "matches/matches.parquet"),
        ("requests",),
        produce.render,
        outside=facts.templates,
    ),
    Stage(
        "generate",
        "the target answers",
        1,
        _generate,
        ("requests/requests.parquet",),
        ("completions",),
        produce.generate,
    ),
    Stage(
        "conform",
        "checking answers",
        5,
        _conform,
        ("grammars", "prompts/prompts.parquet", "requests/requests.parquet", "completions"),
        ("samples",),
        produce.conform,
    ),
    Stage(
        "assemble",
        "building the training set",
        1,
        _assemble,
        ("prompts/prompts.parquet", "samples/samples.parquet"),
        ("trainset", "sets"),
        produce.assemble,
    ),
    Stage(
        "train",
        "training the drafter",
        5,
        _train,
        ("trainset/train.parquet", "sets"),
        ("checkpoints",),
        train.train,
        outside=_start,
    ),
    Stage(
        "measure",
        "measuring acceptance",
        1,
        _measure,
        ("sets", "checkpoints/final"),
        ("acceptance.json", "traces"),
        judge.measure,
        outside=_start,
    ),
    Stage(
        "check",
        "deciding whether the drafter may ship",
        1,
        lambda run: {"gate": run.spec.gate.model_dump(mode="json")},
        (MEASURED, "checkpoints/final"),
        ("export",),
        judge.check,
    ),
    Stage(
        "report",
        "writing the report",
        2,
        facts.ledger_so_far,
        ("acceptance.json", "checkpoints/log.json", "trainset/train.parquet", "matches/matches.parquet"),
        ("report.html",),
        judge.report,
        is_view=True,
    ),
)
NAMES = tuple(stage.name for stage in STAGES)


def stage_named(name: str) -> Stage:
    """The stage of that name.

    Raises:
        UserError: there is none.
    """
    if name not in NAMES:
        raise UserError(f"there is no stage '{name}': the stages are {', '.join(NAMES)}")
    return STAGES[NAMES.index(name)]


def span(first: str | None, last: str | None) -> tuple[str, ...]:
    """Names of the stages from `first` to `last`, both included; None is the very first or last.

    Raises:
        UserError: one of them is no stage, or `last` comes before `first`.
    """
    begin = NAMES.index(stage_named(first).name) if first else 0
    end = NAMES.index(stage_named(last).name) if last else len(NAMES) - 1
    if end < begin:
        raise UserError(f"the stage {last} comes before {first}: the order is {', '.join(NAMES)}")
    return NAMES[begin : end + 1]
