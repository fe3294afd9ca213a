"""Killed at any moment and started again: the same bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from synthspec.run import open_run
from synthspec.stages.execute import discard
from tests.journeys.conftest import Shell, edit

pytestmark = pytest.mark.slow

SMALL = {
    "grammars": ["grammars/travel_desk.yaml", "grammars/talk.yaml"],
    "rows_per_grammar": 4,
    "holdout": {"grammars": [], "prompts": 0.3, "requests": 2},
    "ood": [{"name": "general_chat", "source": "chat", "requests": 2, "max_new_tokens": 8}],
    "replay": {"share": 0.4, "max_new_tokens": 8},
    "worker": {"batch_rows": 8},
    "train": {"steps": 4, "checkpoint_every": 2},
}

# The target speaks twice: the second request is made from the first answer.
TALK = {
    "name": "talk",
    "kind": "tool_call",
    "wire_format": "hermes",
    "slots": {"degrees": {"type": "integer", "min": 0, "max": 30}},
    "tools": [
        {
            "name": "look_up",
            "description": "looks up what a person asks for",
            "parameters": {
                "type": "object",
                "properties": {"subject": {"type": "string", "maxLength": 12}},
                "required": ["subject"],
            },
        }
    ],
    "turns": [{"user": "{{ prompt }}"}, {"target": ["look_up"]}, {"tool": {"found": "<redacted:degrees>"}}],
    "user": None,
    "examples": [{"name": "look_up", "arguments": {"subject": "<redacted>"}}],
    "match": {"any": True},
    "max_new_tokens": 40,
}


def digests(run: Path) -> dict[str, str]:
    folders = ("prompts", "matches", "requests", "completions", "samples", "trainset", "sets")
    return {
        str(path.relative_to(run)): sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in sorted((run / folder).rglob("*.parquet"))
    }


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> Shell:
    """A small project whose training set has been made, undisturbed, in `undisturbed/desk`."""
    folder = tmp_path_factory.mktemp("kills")
    shell = Shell(folder, folder / "prefect", prefect_url)
    shell.run("synthspec init desk")
    (folder / "desk" / "grammars" / "talk.yaml").write_text(yaml.safe_dump(TALK))
    edit(folder / "desk" / "synthspec.yaml", SMALL)
    shell.run("synthspec produce desk/synthspec.yaml --runs undisturbed --json")
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
    command = "synthspec produce desk/synthspec.yaml --runs disturbed --json"
    undisturbed, run = (desk.folder / name / "desk" for name in ("undisturbed", "disturbed"))
    shards = len(list((undisturbed / "completions").glob("*.parquet")))
    assert shards >= 4
    assert kill_once(desk, command, lambda: bool(list(run.glob("prompts/*.parquet"))))
    assert kill_once(desk, command, lambda: bool(list(run.glob("requests/*.parquet"))))
    wanted = random.Random(11).randrange(1, shards)
    assert kill_once(desk, command, lambda: len(list(run.glob("completions/*.parquet"))) >= wanted)
    assert kill_once(desk, command, lambda: bool(list(run.glob("completions/turn-1/requests.parquet"))))
    kill_once(desk, command, lambda: bool(list(run.glob("samples/*.parquet"))))
    desk.run(command)
    assert any(name.startswith("trainset") for name in digests(undisturbed))
    assert any("turn-1/answers" in name for name in digests(undisturbed))
    assert digests(run) == digests(undisturbed)


def test_killed_while_training_the_drafter_comes_out_the_same(desk: Shell):
    def drafter(runs: str) -> str:
        final = desk.folder / runs / "desk" / "checkpoints" / "final" / "model.safetensors"
        return sha256(final.read_bytes()).hexdigest()

    shutil.copytree(desk.folder / "undisturbed", desk.folder / "copy")
    desk.run("synthspec train desk/synthspec.yaml --runs undisturbed --json")
    command = "synthspec train desk/synthspec.yaml --runs copy --json"
    checkpoints = desk.folder / "copy" / "desk" / "checkpoints"
    assert kill_once(desk, command, lambda: (checkpoints / "features.bin").exists())
    assert kill_once(desk, command, lambda: (checkpoints / "step-000002").exists())
    desk.run(command)
    assert drafter("copy") == drafter("undisturbed")


def test_two_processes_train_what_one_does(desk: Shell):
    def log(runs: str) -> list[dict]:
        return json.loads((desk.folder / runs / "desk/checkpoints/log.json").read_text())["steps"]

    desk.run("synthspec train desk/synthspec.yaml --runs undisturbed --json")
    shutil.copytree(desk.folder / "undisturbed", desk.folder / "shared")
    discard(open_run(desk.folder / "desk/synthspec.yaml", desk.folder / "shared"), "train")
    command = "torchrun --nproc-per-node 2 -m synthspec train desk/synthspec.yaml --runs shared --json"
    done = desk.run(command)
    assert json.loads(done.stdout)["stages"]["train"]["kept"] == 4  # one object, of one process
    for one, both in zip(log("undisturbed"), log("shared"), strict=True):
        assert both["step"] == one["step"]
        assert both.get("loss", 0.0) == pytest.approx(
            one.get("loss", 0.0), rel=1e-2
        )  # the target is in bfloat16
    final = desk.folder / "shared/desk/checkpoints/final/model.safetensors"
    before = final.stat().st_mtime_ns
    desk.run(command)
    assert final.stat().st_mtime_ns == before  # it is done already


def test_told_to_stop_it_says_so_and_goes_on(desk: Shell):
    desk = Shell(desk.folder, desk.prefect_home)  # with a server of its own, which must end too
    run = desk.folder / "stopped" / "desk"
    command = "synthspec run desk/synthspec.yaml --runs stopped --until render"
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
