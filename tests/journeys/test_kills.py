"""Killed at any moment and started again: the same bytes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tests.journeys.conftest import Shell, edit

pytestmark = pytest.mark.slow

SMALL = {
    "rows_per_grammar": 8,
    "holdout": {"requests": 4},
    "ood": [
        {"name": "general_chat", "source": "chat", "requests": 2, "max_new_tokens": 12},
        {"name": "maths", "source": "sums", "requests": 2, "max_new_tokens": 12},
    ],
    "replay": {"max_new_tokens": 12},
    "target": {"batch_rows": 8},
}


def digests(run: Path) -> dict[str, str]:
    folders = ("prompts", "matches", "requests", "completions", "samples", "trainset", "sets")
    return {
        str(path.relative_to(run)): sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in sorted((run / folder).rglob("*.parquet"))
    }


@pytest.fixture
def desk(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path, tmp_path / "prefect")
    shell.run("synthspec init desk")
    edit(tmp_path / "desk" / "synthspec.yaml", SMALL)
    return shell


def kill_once(desk: Shell, command: str, there: Callable[[], bool]) -> bool:
    """Start a command and kill it with everything it started once `there()` holds; False if it ended first."""
    process = desk.start(command)
    while not there():
        if process.poll() is not None:
            process.communicate()
            return False
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return True


def test_killed_in_any_stage_the_bytes_come_out_the_same(desk: Shell):
    desk.run("synthspec produce desk/synthspec.yaml --runs undisturbed --json")
    command = "synthspec produce desk/synthspec.yaml --runs disturbed --json"
    run = desk.folder / "disturbed" / "desk"
    shards = len(list((desk.folder / "undisturbed" / "desk" / "completions").glob("*.parquet")))
    assert shards >= 5
    dice = random.Random(11)
    for appears in ("prompts/*.parquet", "matches/*.parquet", "requests/*.parquet"):
        assert kill_once(desk, command, lambda: bool(list(run.glob(appears))))  # noqa: B023
    for wanted in sorted(dice.sample(range(1, shards), 2)):
        assert kill_once(desk, command, lambda: len(list(run.glob("completions/*.parquet"))) >= wanted)  # noqa: B023
    kill_once(desk, command, lambda: bool(list(run.glob("samples/*.parquet"))))
    desk.run(command)
    undisturbed = digests(desk.folder / "undisturbed" / "desk")
    assert any(name.startswith("trainset") for name in undisturbed)
    assert digests(run) == undisturbed


def test_killed_while_training_the_drafter_comes_out_the_same(desk: Shell):
    edit(desk.folder / "desk" / "synthspec.yaml", {"train": {"steps": 4, "checkpoint_every": 2}})
    desk.run("synthspec produce desk/synthspec.yaml --json")
    shutil.copytree(desk.folder / "desk" / "runs", desk.folder / "copy")
    desk.run("synthspec train desk/synthspec.yaml --json")
    command = "synthspec train desk/synthspec.yaml --runs copy --json"
    checkpoints = desk.folder / "copy" / "desk" / "checkpoints"
    assert kill_once(desk, command, lambda: (checkpoints / "features.bin").exists())
    assert kill_once(desk, command, lambda: (checkpoints / "step-000002").exists())
    desk.run(command)
    ours = (checkpoints / "final" / "model.safetensors").read_bytes()
    theirs = desk.folder / "desk" / "runs" / "desk" / "checkpoints" / "final" / "model.safetensors"
    assert sha256(ours).hexdigest() == sha256(theirs.read_bytes()).hexdigest()


def test_told_to_stop_it_says_so_and_goes_on(desk: Shell):
    run = desk.folder / "desk" / "runs" / "desk"
    command = "synthspec run desk/synthspec.yaml --until render"
    process = desk.start(command)
    while not (run / "prompts" / "prompts.parquet").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    if process.returncode:  # else it ended first
        assert process.returncode == 4, said
        assert "stopped by SIGTERM" in said
        assert "Traceback" not in said
    desk.run(command)
    assert (run / "requests" / "requests.parquet").exists()
