"""What follows from the gate's decision: an exit code, or an export that a person answers for."""

from __future__ import annotations

from pathlib import Path

from synthspec.errors import GateRefused, UserError
from synthspec.files import file_digest, is_folder
from synthspec.run import Run
from synthspec.stages import judge


def ship_anyway(run: Run) -> None:
    """Export a drafter that the gate refused, and write down that a person wanted it so."""
    acceptance = judge.read_acceptance(run)
    gate = acceptance["gate"]
    if gate["passed"] or (gate["overridden"] and judge.exported(run)):
        return
    gate = {**gate, "overridden": True}
    # In this order: killed in between, no export is there without a word on who wanted it.
    judge.write_acceptance(run, {**acceptance, "gate": gate})
    judge.export(run, gate)
    record = run.manifest.stages["check"]
    files = sorted(file for file in run.path("export").rglob("*") if file.is_file())
    record.outputs = {file.relative_to(run.folder).as_posix(): file_digest(file) for file in files}
    run.save()


def raise_if_refused(run: Run) -> None:
    """End in words, unless the drafter passed or a person shipped it all the same.

    Raises:
        GateRefused: it did not pass.
    """
    gate = judge.read_acceptance(run)["gate"]
    if gate["passed"] or (gate["overridden"] and judge.exported(run)):
        return
    page = run.path("report.html")
    raise GateRefused(
        f"run {run.name}: the gate refused the drafter, so nothing is exported; "
        f"{f'{page} says why' if page.exists() else f'`synthspec runs show {run.folder}` says why'}, and "
        f"`synthspec check {run.folder} --ship-anyway` exports it all the same"
    )


def export_as(run: Run, kind: str, out: Path) -> None:
    """Write a run's export again, in the layout that another engine loads.

    Args:
        kind: one of `dflash.checkpoint.FORMATS`.
        out: a new or empty folder.

    Raises:
        UserError: no such format, the folder is not empty, nothing is exported, or that engine would compute
            something else.
    """
    from synthspec.dflash import checkpoint
    from synthspec.stages.facts import describe, target_of
    from synthspec.targets.load import architectures, find

    formats = {name: name for name in checkpoint.FORMATS}
    if kind not in formats:
        raise UserError(f"--format: there is no format {kind}: write {', '.join(formats)}")
    if not judge.exported(run):
        raise UserError(
            f"run {run.name} has no export: `synthspec check {run.folder}` writes it once the drafter may ship"
        )
    if out.exists() and (not is_folder(out) or any(out.iterdir())):
        raise UserError(f"--out: {out} is there already and holds something: name a new folder")
    target = target_of(run)
    about = describe(target)
    checkpoint.export_as(
        formats[kind],
        run.path("export"),
        out,
        target=find(target).path,
        architectures=architectures(target),
        scale=about["embedding_scale"],
    )
