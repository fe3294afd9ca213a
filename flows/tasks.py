"""One Prefect task for each stage; tasks and flows are handed paths and names, never rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from prefect import get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from synthspec.errors import SynthspecError
from synthspec.failures import Unexpected
from synthspec.ledger import Counts
from synthspec.run import Run, locked, open_run
from synthspec.stages.execute import execute, told
from synthspec.stages.table import STAGES, Stage

# Runs that this process works on, by folder: a spec that is edited meanwhile counts from the next start.
_open: dict[str, Run] = {}


@contextmanager
def opened(path: str, runs: str | None) -> Iterator[Run]:
    """Open a run and keep other processes away from it; a flow inside another takes part in its run.

    Raises:
        UserError: as `open_run` and `locked`.
    """
    where = Path(path), Path(runs) if runs else None
    run = _open.get(path) or open_run(*where)
    key = str(run.folder)
    with locked(run.folder):
        outer = key not in _open
        if outer:
            # Another process may have worked on it until now.
            run = _open[key] = open_run(*where)
        try:
            yield run
        finally:
            if outer:
                del _open[key]


def _task_of(stage: Stage) -> Any:
    @task(name=stage.name, description=stage.does, cache_policy=NO_CACHE, persist_result=False)
    def do(run_folder: str) -> None:
        run = _open[run_folder]
        run.piece = partial(_as_task, copy_context())
        try:
            counts = execute(run, stage.name)
        except SynthspecError:
            raise
        except Exception as error:
            # Prefect keeps the texts of exceptions, and those of libraries may quote rows.
            raise Unexpected(error) from None
        get_run_logger().info("%s: %s", stage.name, told(counts))
        _publish(run, stage.name, counts)

    return do


_pieces: dict[str, Callable[[], None]] = {}  # what the tasks of pieces do, by their names


def _as_task(context: Context, name: str, work: Callable[[], None]) -> None:
    """Do a piece of a stage as a task of its own, inside the stage's.

    Args:
        context: of the stage's task; the piece may be done in another thread.
    """
    _pieces[name] = work
    try:
        context.copy().run(_piece, name)
    finally:
        del _pieces[name]


def _may_pass(task: Any, task_run: Any, state: Any) -> bool:
    """Whether a piece is worth another try: a mistake or a worker that is gone stays what it is."""
    return isinstance(state.data, Unexpected)


@task(
    name="piece",
    task_run_name="{name}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=1,
    retry_condition_fn=_may_pass,
)
def _piece(name: str) -> None:
    try:
        _pieces[name]()
    except SynthspecError:
        raise
    except Exception as error:
        raise Unexpected(error) from None


TASKS: dict[str, Any] = {stage.name: _task_of(stage) for stage in STAGES}


def _publish(run: Run, stage: str, counts: Counts) -> None:
    """Show the counts on the stage's page in Prefect."""
    rows = [{"state": "kept", "rows": counts.kept}]
    rows += [{"state": state, "rows": number} for state, number in counts.dropped.items()]
    rows.append({"state": "requested", "rows": counts.requested})
    try:
        create_table_artifact(
            table=rows,
            key=f"{run.name}-{stage}".replace("_", "-"),
            description=f"Run {run.name}, stage {stage}: what became of every {counts.unit}.",
        )
    except httpx.HTTPError as error:  # the stage is done; a picture of it is not worth failing for
        get_run_logger().warning("the counts of %s could not be published (%s)", stage, type(error).__name__)
