"""The gate of gates: a real SGLang server accepts of a drafter of ours what we measured ourselves."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from synthspec.dflash.batches import Document
from synthspec.dflash.checkpoint import load, save
from synthspec.dflash.decode import SpeculativeAsk, Trace, decode
from synthspec.dflash.features import extract
from synthspec.dflash.model import Drafter
from synthspec.dflash.train import fit
from synthspec.spec import Target, Train
from synthspec.targets.load import LoadedTarget, load_target
from tests.journeys.conftest import ROOT, Shell
from tests.journeys.served import free_port, needs_sglang, worker

pytestmark = [pytest.mark.slow, needs_sglang]

START = ROOT / "examples" / "starting-drafter"
# The target is sure of every token of its answer: no rounding makes another text of it.
SURE = "Count from 1 to 40."
TOKENS = 48


@dataclass(frozen=True)
class Served:
    """What a server says of one request: `histogram[k]` verify steps accepted k drafts."""

    ids: list[int]
    histogram: list[int]

    @property
    def steps(self) -> int:
        return sum(self.histogram)

    @property
    def accepted(self) -> int:
        return sum(k * steps for k, steps in enumerate(self.histogram))


@pytest.fixture(scope="module")
def target() -> LoadedTarget:
    return load_target(Target(dtype="bfloat16"))


def ask(target: LoadedTarget, text: str) -> list[int]:
    ids = target.tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return list(map(int, ids))


def ours(target: LoadedTarget, drafter: Drafter, ids: Sequence[int]) -> Trace:
    (found,) = decode(target.model, drafter, [SpeculativeAsk(ids, TOKENS)], stop_ids=target.stop_ids)
    return found


def theirs(port: int, ids: Sequence[int]) -> Served:
    params = {"temperature": 0, "max_new_tokens": TOKENS}
    body = json.dumps({"input_ids": list(ids), "sampling_params": params}).encode()
    url = f"http://127.0.0.1:{port}/generate"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        found = json.load(answer)
    about = found["meta_info"]
    served = Served(found["output_ids"], about["spec_correct_drafts_histogram"])
    assert (about["spec_verify_ct"], about["spec_num_correct_drafts"]) == (served.steps, served.accepted)
    return served


@pytest.fixture(scope="module")
def overfitted(target: LoadedTarget, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starting drafter, trained on nothing but one answer."""
    folder = tmp_path_factory.mktemp("overfitted")
    prompt = ask(target, SURE)
    ids = prompt + ours(target, load(START, torch.bfloat16), prompt).ids
    document = Document(torch.tensor(ids), torch.arange(len(ids)) >= len(prompt))
    drafter = load(START)
    # Trained in float32: many CPUs multiply matrices of bfloat16 far more slowly.
    wide = load_target(Target(dtype="float32")).model
    features = extract(wide, [ids], drafter.config.target_layer_ids, folder / "features.bin")
    settings = Train(steps=60, batch_documents=1, anchors=TOKENS, learning_rate=1e-3, checkpoint_every=60)
    fit(drafter, wide, [document], features, settings, folder / "state", seed=0)
    save(drafter, folder / "drafter")
    return folder / "drafter"


@pytest.fixture(scope="module")
def port(overfitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("served")
    port = free_port()
    flags = f"--drafter {overfitted} -- --dtype bfloat16 --max-running-requests 1"
    with worker(Shell(folder, folder / "prefect"), port, flags):
        yield port


def test_an_overfitted_drafter_is_served_as_measured(target, overfitted, port):
    drafter = load(overfitted, torch.bfloat16)
    prompt = ask(target, SURE)
    measured, served = ours(target, drafter, prompt), theirs(port, prompt)
    assert measured.ids == served.ids
    here = 1 + sum(measured.accepted) / len(measured.accepted)
    there = 1 + served.accepted / served.steps
    assert here > 0.9 * drafter.config.block_size
    assert there == pytest.approx(here, rel=0.1)
