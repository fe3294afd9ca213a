"""Start a Prefect flow from the command line."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from synthspec import progress
from synthspec.errors import UserError
from synthspec.ledger import Counts
from synthspec.run import Run, locked, open_run
from synthspec.stages.execute import execute, is_done, require
from synthspec.stages.facts import fitting_start, fitting_target, project_grammars
from synthspec.stages.table import stage_named

FIRST = {"train": "train", "check": "measure"}  # where a flow starts that does not begin at the beginning


def on_ranks() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def run_flow(name: str, path: Path, runs: Path | None, options: dict[str, Any]) -> Path:
    """Run the flow of that name in this process.

    Args:
        name: produce, train, check or run.
        path: a spec file, a project or a run folder.
        runs: where run folders are; by default beside the spec.
        options: more arguments of the flow.

    Returns:
        The run folder.
    """
    if on_ranks():
        raise UserError("torchrun starts `train` alone: leave it out")
    run = open_run(path, runs)  # tells mistakes before the slow part
    if first := options.get("first") or next(iter(options.get("only") or ()), FIRST.get(name)):
        require(run, first)
    elif not is_done(run, "pull"):
        project_grammars(run.spec, run.root)
        target = fitting_target(run)
        if name == "run":
            fitting_start(run, target)
    folder = run.folder
    # What Prefect and other libraries log goes to its server, not among our lines.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_INTERNAL_LOGGING_LEVEL", "CRITICAL")
    logging.raiseExceptions = False
    where = os.environ.get("PREFECT_API_URL")
    title = f"reaching Prefect at {where}" if where else "starting Prefect's server, 12 to 16 s the first time"
    progress.say(f"run {folder}")
    with progress.bar(title, None, ""):
        server = import_module("synthspec.flows.server")
        server.start()
        flow = getattr(import_module(f"synthspec.flows.{name}"), name)
    flow(str(path), runs=str(runs) if runs else None, **options)
    return folder


def train_on_ranks(path: Path, runs: Path | None) -> Path | None:
    """Train the drafter in the processes that torchrun has started; each calls this.

    There is no flow around it: Prefect would see as many of them as there are processes.  The process of rank 0
    opens the run, keeps others away from it and writes; the others begin when it does.

    Returns:
        The run folder; None on other ranks than 0.
    """
    from synthspec.dflash import ranks

    with ranks.joined():
        if ranks.rank():
            progress.be_quiet()
            if folder := ranks.tell(None):
                stage_named("train").work(open_run(Path(folder)))
            return None
        begun = False

        def begin(run: Run) -> Counts:
            nonlocal begun
            begun = True
            ranks.tell(str(run.folder))
            return stage.work(run)

        stage = stage_named("train")
        try:
            run = open_run(path, runs)
            require(run, "train")
            progress.say(f"run {run.folder}, {ranks.count()} processes")
            with locked(run.folder):
                run = open_run(path, runs)  # another process may have worked on it until now
                execute(run, "train", begin)
            return run.folder
        finally:
            if not begun:
                ranks.tell(None)
