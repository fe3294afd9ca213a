"""Killed at any moment and started again: the same bytes."""

from __future__ import annotations

import random
import signal
import time
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from tests.journeys.conftest import Shell, edit

pytestmark = pytest.mark.slow

SMALL = {
    "grammars": ["grammars/travel_desk.yaml", "grammars/talk.yaml"],
    "rows_per_grammar": 4,
    "holdout": {"grammars": [], "prompts": 0.3, "requests": 2},
    "ood": [{"name": "general_chat", "source": "chat", "requests": 2, "max_new_tokens": 8}],
    "replay": {"share": 0.4, "max_new_tokens": 8},
    "worker": {"batch_rows": 8},
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


def test_killed_in_any_stage_the_bytes_come_out_the_same(desk: Shell):
    command = "synthspec produce desk/synthspec.yaml --runs disturbed --json"
    undisturbed, run = (desk.folder / name / "desk" for name in ("undisturbed", "disturbed"))
    shards = len(list((undisturbed / "completions").glob("*.parquet")))
    assert shards >= 4
    assert desk.kill_once(command, lambda: bool(list(run.glob("prompts/*.parquet"))))
    assert desk.kill_once(command, lambda: bool(list(run.glob("requests/*.parquet"))))
    wanted = random.Random(11).randrange(1, shards)
    assert desk.kill_once(command, lambda: len(list(run.glob("completions/*.parquet"))) >= wanted)
    assert desk.kill_once(command, lambda: bool(list(run.glob("completions/turn-1/requests.parquet"))))
    desk.kill_once(command, lambda: bool(list(run.glob("samples/*.parquet"))))
    desk.run(command)
    assert any(name.startswith("trainset") for name in digests(undisturbed))
    assert any("turn-1/answers" in name for name in digests(undisturbed))
    assert digests(run) == digests(undisturbed)


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
