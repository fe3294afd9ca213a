"""What generate and conform make of conversations in which the target speaks several times."""

from __future__ import annotations

import pytest
import yaml

from synthspec import progress
from synthspec.grammar import wire
from synthspec.grammar.wire.answer import Answer, Call
from synthspec.run import open_run
from synthspec.samples.schema import COMPLETIONS, MATCHES, PROMPTS, REQUESTS, read_rows, write_rows
from synthspec.stages import produce
from tests.prompting.prompting_cases import CHAT, tokenizer_with

GRAMMAR = {
    "name": "talk",
    "kind": "tool_call",
    "wire_format": "hermes",
    "tools": [
        {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
        }
    ],
    "turns": [{"user": "{{ prompt }}"}, {"target": ["look_up"]}, {"tool": "3"}, {"target": "any"}],
    "user": "And then?",
    "examples": [{"name": "look_up", "arguments": {"what": "<redacted>"}}],
}
SPEC = "name: small\nprompts: [{name: p, files: [p.jsonl], licence: MIT}]\nmatch: [p]\ngrammars: [g.yaml]\n"
CALL = Answer(calls=(Call("look_up", {"what": "it"}),))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of four conversations, up to their first requests."""
    tokenizer = tokenizer_with(CHAT)
    tokenizer.eos_token = "<|im_end|>"
    monkeypatch.setattr(produce, "tokenizer_of", lambda run: tokenizer)
    monkeypatch.setattr(produce, "loaded_target", lambda run: None)
    (tmp_path / "synthspec.yaml").write_text(SPEC)
    run = open_run(tmp_path)
    run.path("grammars").mkdir(parents=True)
    run.path("grammars/talk.yaml").write_text(yaml.safe_dump(GRAMMAR))
    prompt = {"source": "p", "dataset": "p.jsonl", "revision": "1", "row": 0, "licence": "MIT"}
    prompts = [{**prompt, "id": f"p{n}", "text": f"What about {n}?"} for n in range(4)]
    write_rows(run.path("prompts/prompts.parquet"), PROMPTS, prompts)
    match = {"purpose": "grammar", "grammar": "talk", "tool": None, "set": None, "score": 1.0}
    matches = [{**match, "id": f"m{n}", "prompt_id": f"p{n}"} for n in range(4)]
    write_rows(run.path("matches/matches.parquet"), MATCHES, matches)
    progress.be_quiet()
    produce.render(run)
    yield run
    progress.be_quiet(False)


def answering(monkeypatch, run, says):
    """Let the target say `says(prompt number, turn)`: a text, a value, or None for no answer."""
    grammar = produce.run_grammars(run)[0]
    tokenizer = produce.tokenizer_of(run)
    asked = []

    def answer(file, target, worker, folder, tick, **how):
        rows = []
        for request in read_rows(file):
            number, turn = int(request["prompt_id"][1:]), request["turn"]
            asked.append((number, turn))
            said = says(number, turn)
            if said is not None:
                text = said if isinstance(said, str) else wire.write(grammar, said)
                ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
                rows.append({"id": request["id"], "request_id": request["id"], "ids": ids, "target": "t"})
        if rows:
            rows = [{**row, "finish_reason": "stop", "logprobs": None} for row in rows]
            write_rows(folder / "0.parquet", COMPLETIONS, rows)

    monkeypatch.setattr("synthspec.targets.answer.answer", answer)
    return asked


def test_every_turn_that_was_wanted_ends_in_one_state(run, monkeypatch):
    says = {
        (0, 0): CALL, (0, 1): "Three.", (0, 2): CALL,
        (1, 0): "No call.",
        (2, 0): None,
        (3, 0): CALL, (3, 1): CALL,  # words were asked for
    }  # fmt: skip
    asked = answering(monkeypatch, run, lambda *turn: says[turn])
    counts = produce.generate(run)
    assert sorted(asked) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (3, 0), (3, 1)]
    assert (counts.requested, counts.kept, counts.dropped) == (12, 6, {"error": 1, "unplayed": 5})
    counts = produce.conform(run)
    assert (counts.requested, counts.kept, counts.dropped) == (6, 4, {"invalid": 2})
    samples = read_rows(run.path("samples/samples.parquet"))
    assert sorted((row["lineage"]["prompt_id"], row["turn"]) for row in samples) == [
        ("p0", 0), ("p0", 1), ("p0", 2), ("p3", 0),
    ]  # fmt: skip


def test_a_conversation_that_becomes_too_long_is_invalid(run, monkeypatch):
    answering(monkeypatch, run, lambda number, turn: CALL if not turn else "word " * 1000)
    counts = produce.generate(run)
    assert (counts.kept, counts.dropped) == (8, {"invalid": 4})


def test_a_turn_that_nothing_leads_to_is_empty(run, monkeypatch):
    answering(monkeypatch, run, lambda number, turn: CALL if number == turn == 0 else "Nothing.")
    assert produce.generate(run).dropped == {"unplayed": 7 - 1}
    monkeypatch.setattr(produce, "_some", lambda *args: None)
    assert produce.conform(run).kept == 2


def test_a_run_that_goes_on_asks_the_same(run, monkeypatch):
    answering(monkeypatch, run, lambda number, turn: "Well." if turn == 1 else CALL)
    first = produce.generate(run)
    files = {file: file.read_bytes() for file in run.path("completions").rglob("requests.parquet")}
    assert len(files) == 2
    assert all(set(read_rows(file)[0]) == set(REQUESTS.names) for file in files)
    assert produce.generate(run) == first
    for file in files:
        file.unlink()
    produce.generate(run)
    assert {file: file.read_bytes() for file in run.path("completions").rglob("requests.parquet")} == files
