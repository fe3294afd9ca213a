"""A real vLLM server, where there is one: SYNTHSPEC_VLLM names the interpreter of its environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from synthspec.grammar import wire
from synthspec.grammar.constraint import Constraint, Ebnf, Json, Regex
from synthspec.samples.schema import read_rows
from synthspec.spec import Target
from synthspec.targets import smollm2
from synthspec.targets.fleet import Fleet
from synthspec.targets.load import LoadedTarget, load_target
from synthspec.targets.servers import expected_of
from synthspec.targets.vllm import VllmServer
from tests.grammar.test_constraint import SHAPES, TOOLS
from tests.journeys.conftest import Shell, edit
from tests.journeys.test_sglang_server import SMALL, free_port, wait_for

INTERPRETER = os.environ.get("SYNTHSPEC_VLLM", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INTERPRETER, reason="SYNTHSPEC_VLLM names no interpreter with vLLM"),
]

# One request at a time and nothing kept of others, so that what else was computed changes no bits of an answer.
FLAGS = (
    "--dtype float32 --max-model-len 4096 --max-num-seqs 1 --no-enable-prefix-caching --enforce-eager "
    "--served-model-name desk-model"
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "seats": {"type": "integer"}},
    "required": ["city", "seats"],
    "additionalProperties": False,
}


def start(shell: Shell, model: Path, port: int) -> subprocess.Popen[str]:
    command = f"{INTERPRETER} -m vllm.entrypoints.openai.api_server --model {model} --port {port} {FLAGS}"
    calm = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    calm |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # where vLLM has no GPU
    with (shell.folder / f"{port}.log").open("a") as log:
        return subprocess.Popen(
            f"{command} --host 127.0.0.1".split(),
            env={**shell.env, **calm},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )


@contextmanager
def started(shell: Shell, model: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """A server that is ready, until the context closes."""
    process = start(shell, model, port)
    try:
        wait_for(port, process)
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """The server with its engine, without a last word."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> Shell:
    folder = tmp_path_factory.mktemp("vllm")
    return Shell(folder, folder / "prefect", prefect_url)


@pytest.fixture(scope="module")
def model(shell: Shell) -> Path:
    """The target with sampling settings of its own, which no request may fall back on."""
    folder = shell.folder / "model"
    folder.mkdir()
    for file in smollm2.folder().iterdir():
        if file.name != "generation_config.json":
            (folder / file.name).symlink_to(file)
    settings = {"repetition_penalty": 1.5, "temperature": 0.7, "top_k": 5, "min_p": 0.2, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps({**settings, "max_new_tokens": 6}))
    return folder


@pytest.fixture(scope="module")
def port(shell: Shell, model: Path) -> Iterator[int]:
    port = free_port()
    with started(shell, model, port):
        yield port


@pytest.fixture(scope="module")
def target() -> LoadedTarget:
    return load_target(Target())


@pytest.fixture
def fleet(target: LoadedTarget, port: int) -> Iterator[Fleet]:
    with Fleet([VllmServer(f"http://127.0.0.1:{port}", expected_of(target, 400))]) as fleet:
        yield fleet


def row(target: LoadedTarget, text: str, constraint: Constraint | None = None, **fields: object) -> dict:
    messages = [{"role": "user", "content": text}]
    ids = target.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    held = None if constraint is None else constraint.to_json()
    asked = {"prompt_ids": ids, "max_new_tokens": 24, "constraint": held, "seed": 7}
    return {**asked, "grammar": "g", "set": None, "purpose": "grammar", **fields}


def texts(target: LoadedTarget, fleet: Fleet, rows: list[dict]) -> list[str]:
    return [target.tokenizer.decode(one.ids).removesuffix("<|im_end|>") for one in fleet.ask(rows)]


def test_free_answers_and_their_log_probabilities_are_the_target_s(target, fleet):
    weights = AutoModelForCausalLM.from_pretrained(smollm2.folder(), dtype=torch.float32)
    rows = [row(target, text, logprobs=True) for text in ("Book a bus to Oslo for 2.", "Write a haiku.")]
    for asked, answer in zip(rows, fleet.ask(rows), strict=True):
        prompt = asked["prompt_ids"]
        with torch.no_grad():
            logits = weights(torch.tensor([prompt + answer.ids])).logits[0]
        told = logits[len(prompt) - 1 : -1].float().log_softmax(-1)
        assert answer.ids == told.argmax(-1).tolist()
        ours = told[range(len(answer.ids)), answer.ids]
        assert torch.allclose(ours, torch.tensor(answer.logprobs), atol=1e-3)


def test_a_seed_repeats_an_answer_and_another_seed_does_not(target, fleet):
    sampled = {"temperature": 0.8, "top_p": 0.9, "top_k": 50}
    rows = [row(target, "Tell me a story.", **sampled, seed=seed) for seed in (7, 7, (1 << 62) + 8)]
    first, second, third = (one.ids for one in fleet.ask(rows))
    assert first == second
    assert first != third


def test_an_answer_that_is_cut_says_so(target, fleet):
    whole, cut = fleet.ask([row(target, "Say hi.", max_new_tokens=most) for most in (200, 1)])
    assert (whole.finish_reason, whole.ids[-1]) == ("stop", target.tokenizer.eos_token_id)
    assert (cut.finish_reason, cut.ids) == ("length", whole.ids[:1])


@pytest.mark.parametrize("name", wire.FORMATS)
def test_a_tag_of_every_wire_format_is_read(target, fleet, name):
    held = wire.FORMATS[name]
    rows = [
        row(target, "A bus to Oslo.", held.constraint(TOOLS, shape), max_new_tokens=2)
        for shape in SHAPES
        if name != "json" or shape.text == "none"
    ]
    assert None not in fleet.ask(rows)


def test_an_answer_is_what_it_is_held_to(target, fleet):
    json_text, expression, own = texts(
        target,
        fleet,
        [
            row(target, "Book a bus to Oslo for 2 people.", Constraint(Json(CITY)), max_new_tokens=60),
            row(target, "Write a code.", Constraint(Regex("[a-c]+/[0-9]{2}"))),
            row(target, "Yes?", Constraint(Ebnf('root ::= "yes" | "no" tail\ntail ::= [0-9]'))),
        ],
    )
    read = json.loads(json_text)
    assert json_text == json.dumps(read, ensure_ascii=False)  # with the spaces that are described
    assert list(read) == ["city", "seats"]
    letters, slash, digits = expression.partition("/")
    assert (set(letters) <= set("abc"), slash, len(digits)) == (True, "/", 2)
    assert own == "yes" or (own[:2] == "no" and own[2:].isdecimal())


def test_a_worker_says_who_it_is_and_that_it_is_the_target(shell, port, desk):
    told = shell.run(f"synthspec worker check http://127.0.0.1:{port} --spec {desk} --json")
    (server,) = json.loads(told.stdout)["workers"]
    assert [server["engine"], server["writes"], server["constrained"], server["matches"]] == [
        "vllm",
        True,
        True,
        True,
    ]


@pytest.fixture(scope="module")
def desk(shell: Shell, port: int) -> Path:
    return a_desk(shell, "desk", port)


def a_desk(shell: Shell, name: str, port: int) -> Path:
    shell.run(f"synthspec init {name}")
    spec = shell.folder / name / "synthspec.yaml"
    edit(spec, {**SMALL, "rows_per_grammar": 7, "replay": {"share": 0.3, "max_new_tokens": 8}})
    spec.write_text(spec.read_text().replace("worker:\n  kind: transformers\n", ""))
    edit(spec, {"worker": {"kind": "vllm", "urls": [f"http://127.0.0.1:{port}"], "batch_rows": 3}})
    return spec


def test_a_server_killed_in_the_middle_loses_and_changes_nothing(shell, model, port, desk):
    undisturbed = f"synthspec run {desk} --until conform --json"
    shell.run(undisturbed)
    other = free_port()
    killed = a_desk(shell, "killed", other)
    out = killed.parent / "runs" / "desk" / "completions"
    with started(shell, model, other) as server:
        process = shell.start(f"synthspec run {killed} --until conform --json")
        while not [*out.glob("*.parquet")]:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        kill(server)
        told = process.communicate()
    assert process.returncode == 4, told
    stored = {file.name: file.read_bytes() for file in out.glob("*.parquet")}
    with started(shell, model, other):
        shell.run(f"synthspec run {killed} --until conform --json")
    assert {name: (out / name).read_bytes() for name in stored} == stored
    asked = sorted(one["id"] for one in read_rows(killed.parent / "runs/desk/requests/requests.parquet"))
    assert sorted(one["request_id"] for one in read_rows(out)) == asked
    whole = read_rows(desk.parent / "runs" / "desk" / "completions")
    assert {one["request_id"]: one["ids"] for one in read_rows(out)} == {
        one["request_id"]: one["ids"] for one in whole
    }
    ledger = json.loads((killed.parent / "runs/desk/ledger.json").read_text())["stages"]
    assert ledger["generate"]["kept"] == ledger["generate"]["requested"]
    assert ledger["conform"]["kept"] > 0.8 * ledger["conform"]["requested"]
