from __future__ import annotations

import pytest
import torch

from synthspec.dflash import decode as decoding
from synthspec.dflash.decode import SpeculativeAsk, decode
from synthspec.targets.generate import Ask, generate
from tests.dflash.conftest import VOCABULARY

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


def test_a_drafter_that_knows_the_answer_is_accepted_whole(model, drafter, monkeypatch):
    """Feed the true continuation as drafts: every full block must be accepted, and the text not change."""
    plain = generate(model, [Ask(PROMPTS[0], 33)], stop_ids=[])[0].ids
    place = 1

    def oracle(block, at, context, seen):
        nonlocal place
        start = int(at[0, 0, 0]) - len(PROMPTS[0]) + 1
        truth = (plain + [0] * 8)[start : start + 3]
        hidden = torch.zeros(1, 1, 4, 32)
        # Hidden states that the head turns into the wanted tokens.
        target = torch.linalg.pinv(model.head.weight)
        for j, token in enumerate(truth):
            wanted = torch.full((VOCABULARY,), -1.0)
            wanted[token] = 1e3
            hidden[0, 0, j + 1] = target @ wanted
        place = start
        return hidden

    monkeypatch.setattr(drafter, "forward", oracle)
    (trace,) = decode(model, drafter, [SpeculativeAsk(PROMPTS[0], 33)], stop_ids=[])
    assert trace.ids == plain
    assert trace.accepted == [3] * 8


def test_accepted_counts_are_not_cut_by_the_longest_length(model, drafter, monkeypatch):
    """τ counts agreement before the answer is trimmed."""
    seen = []
    original = decoding._choose
    monkeypatch.setattr(decoding, "_choose", lambda *args: seen.append(original(*args)) or seen[-1])
    (trace,) = decode(model, drafter, [SpeculativeAsk(PROMPTS[0], 7)], stop_ids=[])
    assert trace.accepted == [len(chosen[0]) - 1 for chosen in seen[1:]]
    assert len(trace.ids) == 7
