"""When a stage is done, skipped, refused, or begun again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from synthspec import progress
from synthspec.errors import UserError
from synthspec.files import canonical, file_digest
from synthspec.ledger import Counts
from synthspec.run import Run, StageRecord
from synthspec.stages import facts, table
from synthspec.stages.table import MEASURED, NAMES, Settings, Stage, stage_named
from synthspec.yamlfile import brief


def execute(run: Run, name: str, work: Callable[[Run], Counts] | None = None) -> Counts:
    """Do one stage, unless it is done already.

    Args:
        work: does it in the place of the stage's own.

    Raises:
        UserError: an earlier stage is not done, or this one was done with other settings or inputs.
    """
    stage = stage_named(name)
    _after_all_before(run, stage)
    record = _record(run, stage)
    old = run.manifest.stages.get(name)
    if old is not None and old.fingerprint != record.fingerprint:
        if not stage.is_view and (old.finished or _leftovers(run, stage)):
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
    counts = (work or stage.work)(run)
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
    before = table.STAGES[: NAMES.index(stage.name)]
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
    for stage in table.STAGES[: NAMES.index(before) if before else len(table.STAGES)]:
        old = run.manifest.stages.get(stage.name)
        if old is None:
            return None
        new = _record(run, stage)
        if old.fingerprint != new.fingerprint and not stage.is_view:
            if old.finished or _leftovers(run, stage):
                return _difference(run, stage, old, new)
            return None
        if not is_done(run, stage.name):
            return None
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
        facts.project_grammars(run.spec, run.root)
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
    later = table.STAGES[NAMES.index(stage_named(first).name) :]
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


def _leftovers(run: Run, stage: Stage) -> bool:
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
        what = f"other content of {files[0].removeprefix('project/')}; it {change} since"
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
    return brief(canonical(values[key]))


def _as_json(settings: Settings) -> Settings:
    """The settings as they come back from a JSON file, so that they compare equal."""
    value: Settings = json.loads(canonical(settings))
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
