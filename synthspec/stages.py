"""The ten stages in their order, what each depends on, and when one may be skipped, done or refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from synthspec import adapters, progress
from synthspec.errors import UserError
from synthspec.files import canonical, file_digest
from synthspec.ledger import Counts
from synthspec.run import Run, StageRecord

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
        "replay": spec.replay.model_dump(mode="json", include={"source", "share"}),
        "ood": [ood.model_dump(mode="json", include={"name", "source", "requests"}) for ood in spec.ood],
    }


def _render(run: Run) -> Settings:
    spec = run.spec
    return {
        "seed": spec.seed,
        "replay": {"max_new_tokens": spec.replay.max_new_tokens},
        "ood": [{"name": ood.name, "max_new_tokens": ood.max_new_tokens} for ood in spec.ood],
        **adapters.tokenizer_facts(run),
    }


def _generate(run: Run) -> Settings:
    asked = run.spec.target.model_dump(mode="json", include={"kind", "dtype", "device", "batch_rows"})
    return {
        "target": {**asked, **adapters.target_facts(run)},
        "versions": adapters.versions(),
    }


def _assemble(run: Run) -> Settings:
    spec = run.spec
    return {
        "seed": spec.seed,
        "holdout": spec.holdout.model_dump(mode="json"),
        "replay": {"share": spec.replay.share},
        "ood": [{"name": ood.name, "requests": ood.requests} for ood in spec.ood],
    }


def _train(run: Run) -> Settings:
    settings = run.spec.train.model_dump(mode="json", exclude={"start"})
    return {"seed": run.spec.seed, "train": settings, "target": _model(run)}


def _measure(run: Run) -> Settings:
    return {"target": _model(run), "grammar_backend": adapters.grammar_backend()}


def _model(run: Run) -> Settings:
    asked = run.spec.target.model_dump(mode="json", include={"dtype", "device"})
    return {**asked, **adapters.target_facts(run)}


def _start(run: Run) -> dict[str, Path]:
    folder = adapters.start_folder(run)
    return {f"start/{name}": folder / name for name in ("config.json", "model.safetensors")}


STAGES = (
    Stage(
        "pull",
        "reading public prompts",
        1,
        _pull,
        (),
        ("grammars", "prompts"),
        adapters.pull,
        outside=adapters.project_files,
    ),
    Stage(
        "match",
        "pairing prompts with grammars",
        1,
        _match,
        ("grammars", "prompts/prompts.parquet"),
        ("matches",),
        adapters.match,
    ),
    Stage(
        "render",
        "writing conversations",
        1,
        _render,
        ("grammars", "prompts/prompts.parquet", "matches/matches.parquet"),
        ("requests",),
        adapters.render,
        outside=adapters.templates,
    ),
    Stage(
        "generate",
        "the target answers",
        1,
        _generate,
        ("requests/requests.parquet",),
        ("completions",),
        adapters.generate,
    ),
    Stage(
        "conform",
        "checking answers",
        1,
        adapters.tokenizer_facts,
        ("grammars", "prompts/prompts.parquet", "requests/requests.parquet", "completions"),
        ("samples",),
        adapters.conform,
    ),
    Stage(
        "assemble",
        "building the training set",
        1,
        _assemble,
        ("prompts/prompts.parquet", "samples/samples.parquet"),
        ("trainset", "sets"),
        adapters.assemble,
    ),
    Stage(
        "train",
        "training the drafter",
        1,
        _train,
        ("trainset/train.parquet", "sets"),
        ("checkpoints",),
        adapters.train,
        outside=_start,
    ),
    Stage(
        "measure",
        "measuring acceptance",
        1,
        _measure,
        ("sets", "checkpoints/final"),
        ("acceptance.json",),
        adapters.measure,
        outside=_start,
    ),
    Stage(
        "check",
        "deciding whether the drafter may ship",
        1,
        lambda run: {"gate": run.spec.gate.model_dump(mode="json")},
        (MEASURED, "checkpoints/final"),
        ("export",),
        adapters.check,
    ),
    Stage(
        "report",
        "writing the report",
        1,
        adapters.ledger_so_far,
        ("acceptance.json", "checkpoints/log.json", "trainset/train.parquet"),
        ("report.html",),
        adapters.report,
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


def execute(run: Run, name: str) -> Counts:
    """Do one stage, unless it is done already.

    Raises:
        UserError: an earlier stage is not done, or this one was done with other settings or inputs.
    """
    stage = stage_named(name)
    _after_all_before(run, stage)
    record = _record(run, stage)
    old = run.manifest.stages.get(name)
    if old is not None and old.fingerprint != record.fingerprint:
        if not stage.is_view and (old.finished or _existing(run, stage)):
            raise UserError(_difference(run, stage, old, record))
        discard(run, name)
        old = None
    if old is not None and is_done(run, name):
        line = run.ledger().stages.get(name)
        if line is not None:
            progress.say(f"  {name:<9} done already", style="dim")
            return Counts(**line.model_dump())
    if old is None:
        # Nothing says how files that are there already came to be.
        _remove(run, stage)
    run.manifest.stages[name] = record
    run.save()
    begun = datetime.now(UTC)
    counts = stage.work(run)
    run.enter(name, counts)
    record.outputs = dict(_digests(run, [made for made in stage.outputs if run.path(made).exists()]))
    record.finished = _now()
    run.save()
    seconds = (datetime.now(UTC) - begun).total_seconds()
    progress.say(f"  {name:<9} {told(counts)}, {progress.duration(seconds)}")
    return counts


def told(counts: Counts) -> str:
    """`640 of 800 prompts kept, 160 surplus`."""
    unit = counts.unit if counts.requested == 1 else _plural(counts.unit)
    text = f"{counts.kept:,} of {counts.requested:,} {unit} kept"
    return ", ".join([text, *(f"{n:,} {state}" for state, n in counts.dropped.items())])


def _plural(unit: str) -> str:
    return f"{unit}es" if unit.endswith("ch") else f"{unit}s"


def is_done(run: Run, name: str) -> bool:
    """Whether the manifest says that a stage is finished, and its files are there."""
    record = run.manifest.stages.get(name)
    if record is None or not record.finished:
        return False
    return all(run.path(file).exists() for file in record.outputs)


def _after_all_before(run: Run, stage: Stage) -> tuple[Stage, ...]:
    """The stages before one, all finished.

    Raises:
        UserError: one is not.
    """
    before = STAGES[: NAMES.index(stage.name)]
    for earlier in before:
        record = run.manifest.stages.get(earlier.name)
        if record is None or not record.finished:
            raise UserError(
                f"run {run.name}: stage {stage.name} cannot start, because stage {earlier.name} is not done: "
                f"run the spec, or start --from {earlier.name}"
            )
    return before


def require(run: Run, first: str) -> None:
    """Make sure that a run may start at `first`.

    Files that were put there by hand pass, settings that no longer fit do not: what follows would mix two
    specs.

    Raises:
        UserError: an earlier stage is not finished, or was done with other settings.
    """
    for stage in _after_all_before(run, stage_named(first)):
        record = run.manifest.stages[stage.name]
        settings = _as_json(stage.settings(run))
        if record.settings != settings:
            new = record.model_copy(update={"settings": settings, "code": stage.code})
            raise UserError(_difference(run, stage, record, new))


def first_difference(run: Run, before: str | None = None) -> str | None:
    """What a run would refuse: how the first stage that no longer fits was done, or None.

    Args:
        before: look only at the stages before this one.
    """
    for stage in STAGES[: NAMES.index(before) if before else len(STAGES)]:
        old = run.manifest.stages.get(stage.name)
        if old is None or not is_done(run, stage.name):
            return None
        if stage.is_view:
            continue
        new = _record(run, stage)
        if old.fingerprint != new.fingerprint:
            return _difference(run, stage, old, new)
    return None


def renew(run: Run, fresh: str, first: str | None = None) -> None:
    """Remove what a stage and all later ones made, but only if nothing stands against doing them again.

    Args:
        fresh: the stage.
        first: where the run starts, if not at its beginning.

    Raises:
        UserError: the run would be refused all the same; nothing is removed.
    """
    stage = stage_named(fresh)
    if first is None:
        if changed := first_difference(run, before=fresh):
            raise UserError(changed)
        adapters.project_grammars(run.spec, run.root)
    elif NAMES.index(fresh) < NAMES.index(first):
        raise UserError(
            f"--fresh {fresh} throws away what --from {first} starts from: start --from {fresh}, or leave "
            "--from out"
        )
    if all(is_done(run, name) for name in NAMES[: NAMES.index(fresh)]):
        _record(run, stage)  # what it reads from outside is there
    discard(run, fresh)


def discard(run: Run, first: str) -> None:
    """Remove what a stage and all later ones made: first from the manifest, then from the disk."""
    later = STAGES[NAMES.index(stage_named(first).name) :]
    if any(stage.name in run.manifest.stages for stage in later):
        for stage in later:
            run.manifest.stages.pop(stage.name, None)
        run.save()
    for stage in reversed(later):
        _remove(run, stage)
        if stage.name in run.ledger().stages:
            run.enter(stage.name, None)


def _remove(run: Run, stage: Stage) -> None:
    for name in stage.outputs:
        path = run.path(name)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _existing(run: Run, stage: Stage) -> bool:
    return any(run.path(name).exists() for name in stage.outputs)


def _record(run: Run, stage: Stage) -> StageRecord:
    """What the manifest will say about the stage before it has been done."""
    settings = _as_json(stage.settings(run))
    inputs = dict(_digests(run, stage.inputs))
    for name, path in stage.outside(run).items():
        if not path.is_file():
            raise UserError(
                f"run {run.name}: stage {stage.name} reads {path}, which does not exist: put it there"
            )
        inputs[name] = file_digest(path)
    parts = {"stage": stage.name, "code": stage.code, "settings": settings, "inputs": inputs}
    fingerprint = hashlib.sha256(canonical(parts).encode()).hexdigest()
    return StageRecord(
        fingerprint=fingerprint,
        code=stage.code,
        settings=settings,
        inputs=inputs,
        outputs={},
        started=_now(),
        finished=None,
    )


def _digests(run: Run, names: tuple[str, ...] | list[str]) -> Iterator[tuple[str, str]]:
    """Path and SHA-256 of each file; folders are walked, and hidden files are not there yet."""
    for name in names:
        path = run.path(name)
        if name == MEASURED:
            measured = json.loads(run.path("acceptance.json").read_text("utf-8"))
            measured.pop("gate", None)
            yield name, hashlib.sha256(canonical(measured).encode()).hexdigest()
        elif path.is_dir():
            for file in sorted(file for file in path.rglob("*") if file.is_file()):
                if not file.name.startswith("."):
                    yield file.relative_to(run.folder).as_posix(), file_digest(file)
        elif path.is_file():
            yield name, file_digest(path)
        else:
            raise UserError(f"run {run.name}: {path} is missing: start --from the stage that makes it")


def _difference(run: Run, stage: Stage, old: StageRecord, new: StageRecord) -> str:
    """Says how a stage was done, what has changed since, and the ways out."""
    before, after = dict(_flat(old.settings)), dict(_flat(new.settings))
    changed = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    files = [key for key in sorted({*old.inputs, *new.inputs}) if old.inputs.get(key) != new.inputs.get(key)]
    if changed:
        key = changed[0]
        what = f"{key} {_short(before, key)}, and now it is {_short(after, key)}"
    elif files:
        gone, came = files[0] not in new.inputs, files[0] not in old.inputs
        change = "has gone" if gone else "is new" if came else "has changed"
        what = f"another {files[0]}; it {change} since"
    else:
        what = f"version {old.code} of its code, and this synthspec has version {new.code}"
    others = len(changed) + len(files) - 1
    more = f" (and {others} more {'difference' if others == 1 else 'differences'})" if others > 0 else ""
    return (
        f"run {run.name}: stage {stage.name} was done with {what}{more}: give the spec another name, or "
        f"add --fresh {stage.name} to do this stage and all later ones again"
    )


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested settings with the key that leads to it, such as `prompts[0].limit`."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{place}.{key}" if place else key)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{place}[{index}]")
    else:
        yield place, value


def _short(values: dict[str, Any], key: str) -> str:
    if key not in values:
        return "not given"
    text = canonical(values[key])
    return text if len(text) <= 60 else f"{text[:60]}…"


def _as_json(settings: Settings) -> Settings:
    """The settings as they come back from a JSON file, so that they compare equal."""
    value: Settings = json.loads(canonical(settings))
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
