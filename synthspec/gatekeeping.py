"""What follows from the gate's decision: an exit code, or an export that a person answers for."""

from __future__ import annotations

from synthspec.errors import GateRefused
from synthspec.files import file_digest
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
