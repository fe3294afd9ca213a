"""A real SGLang server, where there is one: SYNTHSPEC_SGLANG names the interpreter of its environment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from synthspec.dflash.features import extract
from synthspec.errors import UserError
from synthspec.samples.schema import read_rows
from synthspec.spec import Target
from synthspec.targets.captured import Captured
from synthspec.targets.load import load_target
from tests.journeys.conftest import Shell, edit

INTERPRETER = os.environ.get("SYNTHSPEC_SGLANG", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INTERPRETER, reason="SYNTHSPEC_SGLANG names no interpreter with SGLang"),
]

TAPS = (1, 8, 14, 20, 27)
SMALL = {
    "grammars": ["grammars/travel_desk.yaml"],
    "rows_per_grammar": 12,
    "holdout": {"grammars": [], "prompts": 0.3, "requests": 2},
    "ood": [],
    "replay": {"share": 0.2, "max_new_tokens": 8},
}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def worker(shell: Shell, port: int, flags: str = "") -> Iterator[subprocess.Popen[str]]:
    """`synthspec worker start`, until the context closes."""
    command = f"synthspec worker start --model smollm2 --port {port} --python {INTERPRETER} {flags}"
    with (shell.folder / f"{port}.log").open("a") as log:
        process = subprocess.Popen(
            command.split(), cwd=shell.folder, env=shell.env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_for(port, process)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def wait_for(port: int, process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + 400
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            assert process is None or process.poll() is None
            time.sleep(0.5)


def kill_server(port: int) -> None:
    """Kill the server itself with all its processes; its supervisor lives."""
    found = subprocess.run(["pgrep", "-f", f"launch_server.*--port {port}"], capture_output=True, text=True)
    for pid in map(int, found.stdout.split()):
        if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3] == [b"-m", b"sglang.launch_server"]:
            os.killpg(os.getpgid(pid), signal.SIGKILL)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> Shell:
    folder = tmp_path_factory.mktemp("sglang")
    return Shell(folder, folder / "prefect", prefect_url)


@pytest.fixture(scope="module")
def port(shell: Shell) -> Iterator[int]:
    port = free_port()
    with worker(shell, port, "-- --max-running-requests 1"):
        yield port


@pytest.fixture(scope="module")
def desk(shell: Shell, port: int) -> Path:
    shell.run("synthspec init desk")
    served = {"worker": {"kind": "sglang", "urls": [f"http://127.0.0.1:{port}"], "batch_rows": 4}}
    edit(shell.folder / "desk" / "synthspec.yaml", SMALL)
    spec = shell.folder / "desk" / "synthspec.yaml"
    text = spec.read_text().replace("worker:\n  kind: transformers\n", "")
    spec.write_text(text)
    edit(spec, served)
    return spec


def test_a_worker_says_who_it_is_and_that_it_is_the_target(shell, port, desk):
    told = shell.run(f"synthspec worker check http://127.0.0.1:{port} --spec {desk} --json")
    (server,) = json.loads(told.stdout)["workers"]
    assert [server["writes"], server["constrained"], server["matches"]] == [True, True, True]


def test_flow_and_server_killed_twice_no_row_is_lost_or_changed(shell, port, desk):
    out = desk.parent / "runs" / "desk" / "completions"
    command = f"synthspec run {desk} --until conform --json"
    for killed in range(2):
        process = shell.start(command)
        already = len([*out.glob("*.parquet")])
        while len([*out.glob("*.parquet")]) <= already:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if killed:
            kill_server(port)
            wait_for(port)
    stored = {file.name: file.read_bytes() for file in out.glob("*.parquet")}
    assert len(stored) >= 2
    shell.run(command)
    assert {name: (out / name).read_bytes() for name in stored} == stored
    asked = sorted(row["id"] for row in read_rows(desk.parent / "runs/desk/requests/requests.parquet"))
    assert sorted(row["request_id"] for row in read_rows(out)) == asked
    shell.run(f"{command} --runs undisturbed")  # the server answers one request at a time
    undisturbed = shell.folder / "undisturbed" / "desk" / "completions"
    assert {file.name: file.read_bytes() for file in undisturbed.glob("*.parquet")} == {
        file.name: file.read_bytes() for file in out.glob("*.parquet")
    }
    ledger = json.loads((desk.parent / "runs/desk/ledger.json").read_text())["stages"]
    assert ledger["conform"]["kept"] > 0.8 * ledger["conform"]["requested"]


def test_features_are_those_of_the_target_s_layers(shell, tmp_path):
    port = free_port()
    ids = " ".join(map(str, TAPS))
    flags = (
        "-- --dtype bfloat16 --disable-radix-cache --enable-return-aux-hidden-states "
        f"--speculative-algorithm DFLASH --return-aux-hidden-state-layer-ids {ids}"
    )
    target = load_target(Target(dtype="bfloat16"))
    prompt = target.tokenizer('Write {"name": "find", "to": "Oslo"} and then 12345, please.')["input_ids"]
    with worker(shell, port, flags):
        url = f"http://127.0.0.1:{port}"
        captured = Captured(url, TAPS, 576)
        assert min(captured.prove(target.model, prompt)) >= 0.999
        with pytest.raises(UserError, match="for layer 2 what is most like the output of layer 1"):
            Captured(url, (2, *TAPS[1:]), 576).prove(target.model, prompt)
        documents = [prompt, prompt[3:], prompt[:9]]
        ours = extract(target.model, documents, TAPS, tmp_path / "ours.bin", soft=[1])
        theirs = extract(
            target.model,
            documents,
            TAPS,
            tmp_path / "theirs.bin",
            soft=[1],
            read=captured.fetch,
        )
    alike = torch.cosine_similarity(ours.states.float(), theirs.states.float(), dim=-1)
    assert alike.min() > 0.99


def test_what_a_better_drafter_would_buy_is_timed(shell):
    drafter = Path(__file__).parents[2] / "examples" / "starting-drafter"
    told = shell.run(
        f"synthspec speedup simulate --model smollm2 --drafter {drafter} --lengths 4 --requests 2 --tokens 32 "
        f"--port {free_port()} --python {INTERPRETER} --json -- --dtype bfloat16"
    )
    plain, faster = json.loads(told.stdout)["speeds"]
    assert (plain["accept_len"], plain["speedup"]) == (None, 1.0)
    assert faster["accept_len"] == 4
    assert 2.5 < faster["seen"] < 5.5
