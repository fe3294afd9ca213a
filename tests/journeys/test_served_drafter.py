"""The gate of gates: a real SGLang server accepts of a drafter of ours what we measured ourselves."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
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
SURE = "Count from 1 to 40."
TOKENS, FEWER = 48, 32
ASKED = (
    SURE,
    "Name the days of the week.",
    "Write a haiku about rain.",
    "What is 12 times 12? Explain.",
    "Give me a JSON object with a name and an age.",
    "How do I boil an egg?",
    "Write a Python function that adds two numbers.",
    "Who wrote Hamlet, and when?",
    "List five fruits, one a line.",
    "Translate 'good morning' into French.",
    "Why is the sky blue?",
    "Say the alphabet.",
    "Tell me a joke about a cat.",
    "What should I pack for a week at the sea?",
    "Write an SQL query that counts the users.",
    "Describe a bicycle to somebody who has never seen one.",
    "What is the capital of Japan?",
    "Give me three rules for writing well.",
    "Repeat the word echo ten times.",
    "What comes after 1, 1, 2, 3, 5, 8?",
)


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
    return load_target(Target(dtype="float32"))


def ask(target: LoadedTarget, text: str) -> list[int]:
    ids = target.tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return list(map(int, ids))


def ours(target: LoadedTarget, drafter: Drafter, prompts: Sequence[Sequence[int]], *tokens: int) -> list[Trace]:
    asks = [SpeculativeAsk(ids, most) for ids, most in zip(prompts, tokens, strict=True)]
    return decode(target.model, drafter, asks, stop_ids=target.stop_ids)


def theirs(port: int, ids: Sequence[int], tokens: int) -> Served:
    params = {"temperature": 0, "max_new_tokens": tokens}
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
    """The starting drafter, trained on nothing but the answers to what is asked here, and most on one."""
    folder = tmp_path_factory.mktemp("overfitted")
    drafter = load(START)
    prompts = [ask(target, text) for text in ASKED]
    answers = ours(target, drafter, prompts, TOKENS, *[FEWER] * (len(ASKED) - 1))
    texts = [prompt + answer.ids for prompt, answer in zip(prompts, answers, strict=True)]
    documents = [
        Document(torch.tensor(ids), torch.arange(len(ids)) >= len(prompt))
        for ids, prompt in zip(texts, prompts, strict=True)
    ]
    texts, documents = texts[:1] * 10 + texts, documents[:1] * 10 + documents
    features = extract(target.model, texts, drafter.config.target_layer_ids, folder / "features.bin")
    settings = Train(steps=36, anchors=16, negatives=2048, learning_rate=1e-3, checkpoint_every=36)
    fit(drafter, target.model, documents, features, settings, folder / "state", seed=0)
    save(drafter, folder / "drafter")
    return folder / "drafter"


@pytest.fixture(scope="module")
def port(overfitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("served")
    port = free_port()
    flags = f"--drafter {overfitted} -- --dtype float32 --max-running-requests 1"
    with worker(Shell(folder, folder / "prefect"), port, flags):
        yield port


def test_an_overfitted_drafter_is_served_as_measured(target, overfitted, port):
    drafter = load(overfitted)
    prompt = ask(target, SURE)
    (measured,), served = ours(target, drafter, [prompt], TOKENS), theirs(port, prompt, TOKENS)
    assert measured.ids == served.ids
    here = 1 + sum(measured.accepted) / len(measured.accepted)
    there = 1 + served.accepted / served.steps
    assert here > 0.9 * drafter.config.block_size
    assert there == pytest.approx(here, rel=0.1)


def test_both_engines_verify_alike(target, overfitted, port):
    """In float32, where rounding hardly ever makes another text of one engine than of the other."""
    drafter = load(overfitted)
    same = 0
    for text in ASKED:
        prompt = ask(target, text)
        (measured,), served = ours(target, drafter, [prompt], FEWER), theirs(port, prompt, FEWER)
        if measured.ids == served.ids:
            same += 1
        else:
            pairs = zip_longest(measured.ids, served.ids)
            tokens = next(n for n, (a, b) in enumerate(pairs) if a != b)
            assert tokens > 1, text
            (measured,), served = ours(target, drafter, [prompt], tokens), theirs(port, prompt, tokens)
            assert measured.ids == served.ids
        histogram = [measured.accepted.count(k) for k in range(max(measured.accepted) + 1)]
        assert served.histogram == histogram, text
    assert same >= 12
