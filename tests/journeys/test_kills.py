"""Killed at any moment and started again: the same bytes."""

from __future__ import annotations

import os
import random
import signal
import time
from hashlib import sha256
from pathlib import Path

import pytest

from tests.journeys.conftest import Shell, edit

pytestmark = pytest.mark.slow

SMALL = {
    "rows_per_grammar": 8,
    "holdout.requests": 4,
    "ood.0.requests": 2,
    "ood.1.requests": 2,
    "ood.0.max_new_tokens": 12,
    "ood.1.max_new_tokens": 12,
    "replay.max_new_tokens": 12,
    "target.batch_rows": 8,
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


def test_killed_while_producing_the_set_comes_out_the_same(desk: Shell):
    started = time.monotonic()
    desk.run("synthspec produce desk/synthspec.yaml --runs undisturbed --json")
    whole = time.monotonic() - started
    dice = random.Random(11)
    for _ in range(4):
        process = desk.start("synthspec produce desk/synthspec.yaml --runs disturbed --json")
        time.sleep(dice.uniform(0.15, 0.9) * whole)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    desk.run("synthspec produce desk/synthspec.yaml --runs disturbed --json")
    undisturbed = digests(desk.folder / "undisturbed" / "desk")
    assert any(name.startswith("trainset") for name in undisturbed)
    assert digests(desk.folder / "disturbed" / "desk") == undisturbed
