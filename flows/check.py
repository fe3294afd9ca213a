"""From a drafter to the decision whether it ships, and the report."""

from __future__ import annotations

from prefect import flow

from synthspec.flows.tasks import TASKS, opened
from synthspec.gatekeeping import raise_if_refused, ship_anyway
from synthspec.stages.execute import require
from synthspec.stages.table import NAMES

STAGES = NAMES[NAMES.index("measure") :]


@flow(name="check", persist_result=False, log_prints=False)
def check(path: str, runs: str | None = None, only: list[str] | None = None, override: bool = False) -> None:
    """Measure, check and report.

    Args:
        path: a spec file, a project or a run folder.
        runs: where run folders are; by default beside the spec.
        only: names of stages; the others are left alone.
        override: export a refused drafter all the same.

    Raises:
        GateRefused: the drafter may not ship; the report has been written before.
    """
    names = [name for name in STAGES if only is None or name in only]
    with opened(path, runs) as run:
        require(run, names[0])
        for name in names:
            TASKS[name](str(run.folder))
            if name == "check" and override:
                ship_anyway(run)
        if "check" in names:
            raise_if_refused(run)
