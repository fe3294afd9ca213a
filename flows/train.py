"""From a training set to a drafter."""

from __future__ import annotations

from prefect import flow

from synthspec.flows.tasks import TASKS, opened
from synthspec.stages.execute import require


@flow(name="train", persist_result=False, log_prints=False)
def train(path: str, runs: str | None = None) -> None:
    """Train the drafter of a run that has its training set.

    Args:
        path: a spec file, a project or a run folder.
        runs: where run folders are; by default beside the spec.
    """
    with opened(path, runs) as run:
        require(run, "train")
        TASKS["train"](str(run.folder))
