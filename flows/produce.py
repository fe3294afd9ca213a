"""From prompts and grammars to a training set."""

from __future__ import annotations

from prefect import flow

from synthspec.flows.tasks import TASKS, opened
from synthspec.stages.table import NAMES

STAGES = NAMES[: NAMES.index("train")]


@flow(name="produce", persist_result=False, log_prints=False)
def produce(path: str, runs: str | None = None, only: list[str] | None = None) -> None:
    """Pull, match, render, generate, conform and assemble.

    Args:
        path: a spec file, a project or a run folder.
        runs: where run folders are; by default beside the spec.
        only: names of stages; the others are left alone.
    """
    with opened(path, runs) as run:
        for name in STAGES:
            if only is None or name in only:
                TASKS[name](str(run.folder))
