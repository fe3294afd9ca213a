"""Counting what speculative decoding did, on a tiny random target."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from synthspec.acceptance import trace as tracing
from synthspec.acceptance.compare import accept_len
from synthspec.acceptance.measure import kind_of, measure, on_the_way, summarise
from synthspec.acceptance.trace import decoded_together, drafted_kinds, trace
from synthspec.dflash.decode import Trace
from synthspec.dflash.model import Drafter
from synthspec.grammar.constraint import Constraint, Json
from synthspec.samples.schema import SAMPLES, write_rows
from synthspec.targets.causal import CausalModel
from synthspec.targets.generate import Ask, generate
from tests.dflash.conftest import drafter_config, tiny_llama
from tests.prompting.prompting_cases import tokenizer_with


@pytest.fixture
def target():
    return SimpleNamespace(model=CausalModel(tiny_llama()), tokenizer=None, stop_ids=[2])


@pytest.fixture
def _all_free(monkeypatch):
    """Without a tokenizer at hand every token is free."""
    monkeypatch.setattr(tracing, "label", lambda constraint, ids, tokenizer: [("free", 0, len(ids))])


def drafter(seed: int) -> Drafter:
    torch.manual_seed(seed)
    return Drafter(drafter_config())


def sample(number: int, grammar: str | None = "g", tokens: int = 20) -> dict:
    ids = [1, 10 + number, 20 + number]
    return {
        "id": f"{number}",
        "purpose": "grammar",
        "grammar": grammar,
        "set": None,
        "input_ids": ids,
        "prompt_tokens": 3,
        "loss_mask": [0, 0, 0],
        "spans": [],
        "constraint": None,
        "held": False,
        "max_new_tokens": tokens,
        "lineage": None,
    }


def test_numbers_of_a_set_follow_from_its_traces(target, monkeypatch):
    kinds = {(0, 1, 2, 3, 4, 5, 6, 7, 8): [("forced", 0, 3), ("value", 3, 7), ("structure", 7, 9)]}
    monkeypatch.setattr(tracing, "label", lambda constraint, ids, tokenizer: kinds[tuple(ids)])
    one = Trace(ids=list(range(9)), accepted=[3, 0, 3], places=[1, 5, 6], finish_reason="stop")
    found = summarise([sample(0)], [one], target, block_size=4)
    assert found["accept_len"] == 3.0
    assert found["by_position"] == pytest.approx([2 / 3] * 3)
    assert (found["verify_steps"], found["tokens"]) == (3, 9)
    assert found["by_grammar"] == {"g": 3.0}
    # Step 1 drafts places 1, 2, 3 and all are accepted; step 2 looks at place 5 and refuses it; step 3
    # drafts 6, 7, 8.  The target's own tokens at 4 and behind 8 are nobody's draft.
    assert found["by_span"] == {
        "forced": {"accepted": 2, "proposed": 2},
        "value": {"accepted": 2, "proposed": 3},
        "structure": {"accepted": 2, "proposed": 2},
    }


def test_every_draft_that_was_looked_at_has_the_kind_of_the_token_in_its_place(target):
    """A token is a byte: `{"city": "Oslo"}`, with the end at 16."""
    target.tokenizer = tokenizer_with(None)
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 9}},
        "required": ["city"],
        "additionalProperties": False,
    }
    row = {**sample(0), "constraint": Constraint(Json(schema)).to_json(), "held": True}
    ids = [*target.tokenizer.encode('{"city": "Oslo"}'), target.tokenizer.convert_tokens_to_ids("<|im_end|>")]
    one = Trace(ids=ids, accepted=[3, 3, 2, 0, 3], places=[1, 5, 9, 12, 13], finish_reason="stop")
    assert drafted_kinds(row, one, target, block_size=4) == [
        ["forced"] * 3,
        ["forced"] * 3,
        ["forced", "value", "value"],  # two accepted, and the refused one behind them
        ["value"],
        ["value", "structure", "forced"],  # the quotation mark could have been a letter
    ]
    cut = Trace(ids=ids[:11], accepted=[3, 3, 3], places=[1, 5, 9], finish_reason="length")
    assert drafted_kinds(row, cut, target, block_size=4) == [
        ["forced"] * 3,
        ["forced"] * 3,
        ["forced", "value"],
    ]
    assert drafted_kinds(sample(0), cut, target, block_size=4)[2] == ["free"] * 2
    measured = summarise([row], [one], target, block_size=4)["by_span"]
    assert measured == {
        "forced": {"accepted": 8, "proposed": 8},
        "structure": {"accepted": 1, "proposed": 1},
        "value": {"accepted": 2, "proposed": 4},
    }


@pytest.mark.usefixtures("_all_free")
def test_the_same_drafter_twice_differs_by_nothing_and_empty_sets_are_left_out(target, tmp_path):
    write_rows(tmp_path / "heldout_prompts.parquet", SAMPLES, [sample(n) for n in range(5)])
    write_rows(tmp_path / "maths.parquet", SAMPLES, [sample(n, None) for n in range(4)])
    write_rows(tmp_path / "grammar_x.parquet", SAMPLES, [])
    write_rows(tmp_path / "dev.parquet", SAMPLES, [sample(9)])
    done: list[int] = []
    sets = measure(tmp_path, target, drafter(1), drafter(1), done.append)
    assert [(one["name"], one["kind"], one["requests"]) for one in sets] == [
        ("heldout_prompts", "heldout_prompts", 5),
        ("maths", "ood", 4),
    ]
    assert sum(done) == 2 * 9
    for one in sets:
        assert one["start"] == one["trained"]
        assert one["difference"] == {"mean": 0.0, "ci95": [0.0, 0.0]}


def test_traces_keep_the_order_of_their_rows(target):
    rows = [sample(n, tokens=5 + n) for n in (4, 1, 3)]
    traces = trace(rows, target, drafter(1))
    for row, found in zip(rows, traces, strict=True):
        plain = generate(target.model, [Ask(row["input_ids"], row["max_new_tokens"])], stop_ids=[2])[0]
        assert found.ids == plain.ids


def test_kept_traces_are_not_decoded_again(target, tmp_path, monkeypatch):
    target.fingerprint = "f"
    rows = [sample(n, "a" if n < 3 else None) for n in range(5)]
    first = trace(rows, target, drafter(1), keep=tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    files[0].unlink()
    done: list[int] = []
    again = trace(rows, target, drafter(1), done.append, keep=tmp_path)
    assert again == first
    assert sorted(tmp_path.iterdir()) == files
    assert sum(done) == 5
    monkeypatch.setattr(tracing, "decode", None)
    assert trace(rows, target, drafter(1), keep=tmp_path) == first


def test_batches_hold_one_grammar_each():
    rows = [sample(n, "ab"[n % 2] if n < 90 else None) for n in range(100)]
    found = decoded_together(rows)
    assert sorted(place for places in found for place in places) == list(range(100))
    assert all(len({rows[place]["grammar"] for place in places}) == 1 for places in found)
    assert max(map(len, found)) <= 40


def test_dev_requests_are_parted_by_having_a_grammar(target):
    found = on_the_way([sample(0), sample(1), sample(2, None)], target, drafter(1))
    inside, general = (found["counts"][name] for name in ("in_domain", "general"))
    assert [len(counts["steps"]) for counts in (inside, general)] == [2, 1]
    assert found["accept_len"]["in_domain"] == accept_len(inside["accepted"], inside["steps"])
    assert on_the_way([sample(0)], target, drafter(1))["accept_len"].keys() == {"in_domain"}


def test_kinds_of_sets():
    assert [kind_of(name) for name in ("heldout_prompts", "grammar_a", "maths")] == [
        "heldout_prompts",
        "heldout_grammar",
        "ood",
    ]
