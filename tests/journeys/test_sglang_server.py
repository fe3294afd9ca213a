"""A real SGLang server as a worker: checked, killed, read for features, and timed with pretended drafts."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
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
from tests.journeys.served import ON_CPU, free_port, kill_server, needs_sglang, on_cpu, wait_for, worker

# They start six servers one after the other, which takes a quarter of an hour on two cores.
pytestmark = [
    pytest.mark.slow,
    needs_sglang,
    pytest.mark.skipif("SYNTHSPEC_SGLANG" not in os.environ, reason="SYNTHSPEC_SGLANG=1 asks for these"),
]

TAPS = (1, 8, 14, 20, 27)
SMALL = {
    "grammars": ["grammars/travel_desk.yaml"],
    "rows_per_grammar": 12,
    "holdout": {"grammars": [], "prompts": 0.3, "requests": 2},
    "ood": [],
    "replay": {"share": 0.2, "max_new_tokens": 8},
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> Shell:
    folder = tmp_path_factory.mktemp("sglang")
    return Shell(folder, folder / "prefect", prefect_url)


@pytest.fixture(scope="module")
def port(shell: Shell) -> Iterator[int]:
    port = free_port()
    with worker(shell, port, "-- --dtype float32 --max-running-requests 1"):
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
    told = on_cpu(shell).run(
        f"synthspec speedup simulate --model smollm2 --drafter {drafter} --lengths 4 --requests 2 --tokens 32 "
        f"--port {free_port()} --json -- --dtype bfloat16 {ON_CPU}"
    )
    plain, faster = json.loads(told.stdout)["speeds"]
    assert (plain["accept_len"], plain["speedup"]) == (None, 1.0)
    assert faster["accept_len"] == 4
    assert 2.5 < faster["seen"] < 5.5
