from __future__ import annotations

import random

import pytest
import torch

from synthspec.dflash.decode import SpeculativeAsk, decode
from synthspec.dflash.model import Drafter
from synthspec.grammar.constraint import Constraint, Json, Text, TokenConstraints
from synthspec.grammar.constraint import row as row_of
from synthspec.targets.causal import CausalModel
from synthspec.targets.generate import Ask, generate
from tests.dflash.conftest import drafter_config, tiny_llama

PROMPTS = [[1, 5, 9, 7], [1, 5, 9, 7, 30, 31, 32], [1, 5], [1, 44, 45, 46, 47, 48]]


class OnlyEven:
    """A constraint that allows even tokens; remembers what it was told, so that a slip is noticed."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def allows(self, token):
        return token % 2 == 0

    def fill(self, bitmask, row):
        bits = [sum(1 << b for b in range(32) if (w * 32 + b) % 2 == 0) for w in range(bitmask.shape[1])]
        bitmask[row] = torch.tensor([b - (1 << 32) if b >= 1 << 31 else b for b in bits], dtype=torch.int32)

    def accept(self, token):
        assert self.allows(token)
        self.taken.append(token)

    def rollback(self, count):
        assert count <= len(self.taken)
        del self.taken[len(self.taken) - count :]


@pytest.mark.parametrize("constrained", [False, True])
def test_greedy_output_is_that_of_plain_decoding(model, drafter, constrained):
    rule = OnlyEven if constrained else lambda: None
    plain = generate(model, [Ask(ids, 40, rule()) for ids in PROMPTS], stop_ids=[2, 3])
    rules = [rule() for _ in PROMPTS]
    asks = [SpeculativeAsk(ids, 40, one) for ids, one in zip(PROMPTS, rules, strict=True)]
    drafted = decode(model, drafter, asks, stop_ids=[2, 3])
    for one, trace, constraint in zip(plain, drafted, rules, strict=True):
        assert trace.ids == one.ids
        assert trace.finish_reason == one.finish_reason
        if constraint:
            ended = trace.finish_reason == "stop" or len(trace.ids) == 40
            assert constraint.taken == trace.ids[: len(trace.ids) - ended]


def test_steps_account_for_every_token(model, drafter):
    for trace in decode(model, drafter, [SpeculativeAsk(ids, 40) for ids in PROMPTS], stop_ids=[2]):
        assert trace.places[0] == 1  # the first token comes from reading the prompt
        written = 1
        for place, agreed in zip(trace.places, trace.accepted, strict=True):
            assert place == written
            written += agreed + 1
        assert written >= len(trace.ids) > written - drafter.config.block_size


def knowing(model, drafter, monkeypatch, prompt: int, truth: list[int], wrong_at: set[int]) -> None:
    """Make the drafter draft the true continuation, but for the answer's places in `wrong_at`.

    The hidden state of a token is its own row of the head, which no other row matches better.
    """
    size = drafter.config.block_size

    def forward(block, at, context, seen):
        rows = block.shape[0]
        assert rows == 1
        next_place = int(at[0, 0, 0]) - prompt + 1
        hidden = torch.zeros(1, 1, size, block.shape[-1])
        for j in range(size - 1):
            place = next_place + j
            token = truth[place] if place < len(truth) else 0
            if place in wrong_at:
                token = (token + 2) % 90
            hidden[0, 0, j + 1] = model.head.weight[token]
        return hidden

    monkeypatch.setattr(drafter, "forward", forward)


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_drafts_right_and_wrong_change_the_steps_but_never_the_text(
    model, drafter, monkeypatch, constrained, seed
):
    rule = OnlyEven if constrained else lambda: None
    prompt = PROMPTS[seed]
    plain = generate(model, [Ask(prompt, 40, rule())], stop_ids=[2])[0]
    dice = random.Random(seed)
    wrong = {place for place in range(60) if dice.random() < 0.3}
    knowing(model, drafter, monkeypatch, len(prompt), plain.ids, wrong)
    constraint = rule()
    (trace,) = decode(model, drafter, [SpeculativeAsk(prompt, 40, constraint)], stop_ids=[2])
    assert trace.ids == plain.ids
    assert trace.finish_reason == plain.finish_reason
    for place, agreed in zip(trace.places, trace.accepted, strict=True):
        right = 0
        while right < 3 and place + right not in wrong and place + right < len(plain.ids):
            right += 1
        if place + right < len(plain.ids):
            assert agreed == right
    assert max(trace.accepted) == 3


def test_rows_of_a_batch_agree_to_different_lengths_and_keep_their_text(model, drafter, monkeypatch):
    """Each row's drafts are right up to a number of its own."""
    plain = generate(model, [Ask(ids, 40) for ids in PROMPTS], stop_ids=[])

    def forward(block, at, context, seen):
        rows, size = len(block), block.shape[2]
        hidden = torch.zeros(rows, 1, size, block.shape[-1])
        for i in range(rows):
            position = int(at[i, 0, 0])
            known = int((model.embedding.weight == block[i, 0, 0]).all(-1).nonzero()[0, 0])
            row = next(
                row
                for row, ids in enumerate(PROMPTS)
                if 0 <= position - len(ids) < 40 and plain[row].ids[position - len(ids)] == known
            )
            for j in range(size - 1):
                place = position - len(PROMPTS[row]) + 1 + j
                token = plain[row].ids[place] if place < 40 else 0
                hidden[i, 0, j + 1] = model.head.weight[token if j < row else (token + 2) % 90]
        return hidden

    monkeypatch.setattr(drafter, "forward", forward)
    traces = decode(model, drafter, [SpeculativeAsk(ids, 40) for ids in PROMPTS], stop_ids=[])
    assert [trace.ids for trace in traces] == [one.ids for one in plain]
    for row, trace in enumerate(traces):
        # Where two rows stand alike the wrong one is found now and then.
        assert trace.accepted.count(row) > 0.8 * len(trace.accepted)


def test_accepted_counts_are_not_cut_by_the_longest_length(model, drafter, monkeypatch):
    """τ counts agreement before the answer is trimmed: 1 + 4 tokens, then 2 of the next 4 are kept."""
    truth = generate(model, [Ask(PROMPTS[0], 20)], stop_ids=[])[0].ids
    knowing(model, drafter, monkeypatch, len(PROMPTS[0]), truth, set())
    (trace,) = decode(model, drafter, [SpeculativeAsk(PROMPTS[0], 7)], stop_ids=[])
    assert trace.ids == truth[:7]
    assert trace.accepted == [3, 3]


def test_a_real_grammar_is_followed_through_accepted_and_refused_drafts(smollm2_tokenizer, monkeypatch):
    """A tiny random target under a JSON schema, drafts half right: the text is that of plain decoding."""
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "nights": {"type": "integer", "maximum": 30},
        },
        "required": ["city", "nights"],
        "additionalProperties": False,
    }
    constraint = Constraint(row_of(Text("<call>"), Json(schema), Text("</call>"))).to_json()
    model = CausalModel(tiny_llama(vocab_size=49152, hidden_size=64))
    torch.manual_seed(3)
    drafter = Drafter(drafter_config(vocab_size=49152, hidden_size=64, mask_token_id=16))
    constraints = TokenConstraints(smollm2_tokenizer)
    stop = [smollm2_tokenizer.eos_token_id]
    prompt = smollm2_tokenizer("Two nights in Oslo, please.").input_ids
    (plain,) = generate(model, [Ask(prompt, 80, constraints.compile(constraint))], stop_ids=stop)
    assert plain.finish_reason == "stop"
    for wrong in (set(), {3, 4, 9, 15}, set(range(0, 80, 2))):
        knowing(model, drafter, monkeypatch, len(prompt), plain.ids, wrong)
        ask = SpeculativeAsk(prompt, 80, constraints.compile(constraint))
        (trace,) = decode(model, drafter, [ask], stop_ids=stop)
        assert trace.ids == plain.ids
        if not wrong:
            assert trace.accepted[:-1] == [3] * (len(trace.accepted) - 1)
