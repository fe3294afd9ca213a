"""Start a Prefect flow from the command line."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from synthspec import progress
from synthspec.run import open_run
from synthspec.stages.execute import is_done, require
from synthspec.stages.facts import fitting_start, fitting_target, project_grammars

FIRST = {"train": "train", "check": "measure"}  # where a flow starts that does not begin at the beginning


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
