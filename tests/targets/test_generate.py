from __future__ import annotations

from collections import Counter

import pytest
import torch

from synthspec.targets.causal import CausalModel
from synthspec.targets.generate import Ask, generate, mask_logits, prefill, sample
from tests.dflash.conftest import tiny_llama


@pytest.fixture(scope="module")
def model():
    return CausalModel(tiny_llama())


def by_transformers(ids, most, stop):
    plain = tiny_llama()
    out = plain.generate(
        torch.tensor([ids]), max_new_tokens=most, do_sample=False, eos_token_id=stop, pad_token_id=0
    )
    return out[0, len(ids) :].tolist()


def test_rows_of_any_length_give_what_transformers_gives_alone(model):
    prompts = [[1, 5, 9], [1, 5, 9, 7, 11, 13], [40], [1, 5], list(range(3, 40))]
    answers = generate(model, [Ask(ids, 25) for ids in prompts], stop_ids=[2, 17])
    for ids, answer in zip(prompts, answers, strict=True):
        assert answer.ids == by_transformers(ids, 25, [2, 17])
        assert answer.finish_reason == ("stop" if answer.ids[-1] in (2, 17) else "length")


@pytest.mark.parametrize("longest", [3, 30])
def test_a_common_beginning_is_read_once_and_changes_nothing(model, longest):
    prompts = [[1, 5, 9, 7, 8, *tail] for tail in ([3], [4, 5], [4, *range(40, 39 + longest)])]
    seen = []
    original = model.forward
    model.forward = lambda ids, *rest: seen.append(tuple(ids.shape)) or original(ids, *rest)
    try:
        last, taps = prefill(model, prompts, model.new_cache(40), taps=(0, 4))
    finally:
        del model.forward
    assert seen == [(1, 5), (3, longest)]
    for row, ids in enumerate(prompts):
        alone, alone_taps = prefill(model, [ids], model.new_cache(40), taps=(0, 4))
        torch.testing.assert_close(last[row], alone[0])
        torch.testing.assert_close(taps[row, : len(ids)], alone_taps[0], rtol=1e-4, atol=1e-4)


def test_equal_prompts_keep_one_token_to_read(model):
    last, _ = prefill(model, [[4, 5, 6]] * 2, model.new_cache(8))
    assert torch.equal(last[0], last[1])


def test_a_sampled_row_does_not_depend_on_its_neighbours(model):
    one = Ask([1, 5, 9], 20, temperature=1.0, seed=3)
    alone = generate(model, [one], stop_ids=[])[0].ids
    crowd = generate(model, [Ask([7, 7], 20, temperature=1.0, seed=9), one], stop_ids=[])[1].ids
    assert alone == crowd
    assert alone != generate(model, [Ask([1, 5, 9], 20, temperature=1.0, seed=4)], stop_ids=[])[0].ids


def test_log_probabilities_are_those_of_the_tokens_written(model):
    ids = [1, 5, 9]
    (one,) = generate(model, [Ask(ids, 6, logprobs=True)], stop_ids=[])
    assert generate(model, [Ask(ids, 6)], stop_ids=[])[0].logprobs is None
    logits = tiny_llama()(torch.tensor([[*ids, *one.ids]])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
    expected = logits[torch.arange(6), torch.tensor(one.ids)]
    torch.testing.assert_close(torch.tensor(one.logprobs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("limits", [{}, {"top_p": 0.9999}])
def test_what_rounds_otherwise_is_drawn_alike(limits):
    """Another batch moves logits by some 1e-5, and the ranks of those that come close."""
    logits = torch.arange(64) * 1e-6
    moved = logits + 1e-5 * torch.randn(64, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(logits.argsort(), moved.argsort())
    drawn, again = (
        [sample(one, 1.0, torch.Generator().manual_seed(seed), **limits) for seed in range(300)]
        for one in (logits, moved)
    )
    assert drawn == again
    assert len(set(drawn)) > 50


@pytest.mark.parametrize(
    ("limits", "drawn"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.5}, {3}),
        ({"top_p": 0.85}, {1, 3}),
        ({"top_p": 0.85, "top_k": 1}, {3}),
        ({"top_p": 1e-9}, {3}),
    ],
)
def test_only_the_likeliest_tokens_are_drawn(limits, drawn):
    logits = torch.tensor([0.05, 0.3, 0.05, 0.6]).log()
    dice = torch.Generator().manual_seed(0)
    counts = Counter(sample(logits, 1.0, dice, **limits) for _ in range(2000))
    assert set(counts) == drawn
    odds = {one: [0.05, 0.3, 0.05, 0.6][one] for one in drawn}
    for token, share in odds.items():
        assert abs(counts[token] / 2000 - share / sum(odds.values())) < 0.04


def test_masked_tokens_get_minus_infinity():
    logits = torch.zeros(2, 70)
    bitmask = torch.tensor([[-1, -1, -1], [1 << 3, 0, 1 << 5]], dtype=torch.int32)
    mask_logits(logits, bitmask)
    assert torch.isfinite(logits[0]).all()
    assert logits[1].isfinite().nonzero()[:, 0].tolist() == [3, 69]


def test_rows_that_share_a_beginning_give_what_each_gives_alone(model):
    prompts = [[1, 5, 9, 7, 8, *tail] for tail in ([3], [4, 5], [4, 5, 6, 30, 31])]
    answers = generate(model, [Ask(ids, 25) for ids in prompts], stop_ids=[2])
    for ids, answer in zip(prompts, answers, strict=True):
        assert answer.ids == by_transformers(ids, 25, [2])
