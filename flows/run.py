"""Everything: produce, train and check, one after the other."""

from __future__ import annotations

from prefect import flow

from synthspec.flows import check as checking
from synthspec.flows import produce as producing
from synthspec.flows import train as training
from synthspec.flows.tasks import opened
from synthspec.stages.execute import renew, require
from synthspec.stages.table import span


@flow(name="run", persist_result=False, log_prints=False)
def run(
    path: str,
    runs: str | None = None,
    first: str | None = None,
    last: str | None = None,
    fresh: str | None = None,
) -> None:
    """Do what is not done yet of the stages of a spec.

    Args:
        path: a spec file, a project or a run folder.
        runs: where run folders are; by default beside the spec.
        first: stage to start at; those before it must be done.
        last: stage to stop after.
        fresh: stage whose files, and those of all later stages, are thrown away before, if nothing that the
            person wrote stands against doing them again.

    Raises:
        UserError: something that the person wrote is wrong.
        GateRefused: the drafter may not ship; the report has been written before.
    """
    names = span(first, last)
    with opened(path, runs) as opened_run:
        if first:
            require(opened_run, first)
        if fresh:
            renew(opened_run, fresh, first)
        folder = str(opened_run.folder)
        produced = [name for name in producing.STAGES if name in names]
        if produced:
            producing.produce(folder, only=produced)
        if "train" in names:
            training.train(folder)
        checked = [name for name in checking.STAGES if name in names]
        if checked:
            checking.check(folder, only=checked)
