from __future__ import annotations

import math

import pytest
import torch

from synthspec.dflash.decode import SpeculativeAsk, decode
from synthspec.dflash.features import extract
from synthspec.dflash.model import Drafter
from synthspec.errors import UserError
from synthspec.targets.causal import CausalModel
from synthspec.targets.generate import Ask, generate, prefill
from tests.dflash.conftest import drafter_config
from tests.targets.families import ATTENDING, FAMILIES, LAYERS, RECURRENT, VOCABULARY, WINDOW, build

TAPS = (0, 2, LAYERS - 2)


def texts(*lengths: int, common: int = 0) -> list[list[int]]:
    """Random texts, of which some tokens at the beginning are the same."""
    dice = torch.Generator().manual_seed(3)
    draw = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)), generator=dice)
    draw[:, :common] = draw[0, :common]
    return [row[:length].tolist() for row, length in zip(draw, lengths, strict=True)]


def plain_one(family: str):
    """As transformers computes it, with the attention that leaves nothing out: sdpa caps no scores."""
    stock = build(family)
    stock.set_attn_implementation("eager")
    return stock


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tap_is_what_transformers_calls_the_next_hidden_state(family):
    stock = plain_one(family)
    ids = torch.tensor(texts(3 * WINDOW))
    with torch.no_grad():
        told = stock(ids, output_hidden_states=True)
    wanted = torch.cat([told.hidden_states[tap + 1] for tap in TAPS], -1)
    model = CausalModel(build(family))
    cache = None if model.recurrent else model.new_cache(ids.shape[1])
    hidden, tapped = model.forward(ids, torch.arange(ids.shape[1])[None], cache, TAPS)
    torch.testing.assert_close(tapped, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(hidden, told.hidden_states[-1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.logits(hidden), told.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_the_same_pass_it_is_the_same_number_for_number(family):
    model = CausalModel(build(family))
    (ids,) = texts(2 * WINDOW)
    seen = []
    last = model.model.get_decoder()
    last.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "output_hidden_states": True}), with_kwargs=True
    )
    last.register_forward_hook(lambda module, args, output: seen.append(output.hidden_states))
    cache = None if model.recurrent else model.new_cache(len(ids))
    _, tapped = model.forward(torch.tensor([ids]), torch.arange(len(ids))[None], cache, TAPS)
    assert torch.equal(tapped, torch.cat([seen[0][tap + 1] for tap in TAPS], -1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("common", [0, 6])
def test_texts_read_together_are_as_texts_read_alone(family, common, tmp_path):
    model = CausalModel(build(family))
    documents = texts(2 * WINDOW + 5, 9, 3 * WINDOW, 7, common=common)
    together = extract(model, documents, TAPS, tmp_path / "together")
    for number, document in enumerate(documents):
        cache = None if model.recurrent else model.new_cache(len(document))
        _, alone = model.forward(torch.tensor([document]), torch.arange(len(document))[None], cache, TAPS)
        torch.testing.assert_close(
            together.of(number).float(), alone[0], rtol=2**-7, atol=1e-3
        )  # kept as bfloat16
    cache = None if model.recurrent else model.new_cache(max(map(len, documents)))
    last, tapped = prefill(model, documents, cache, TAPS)
    for row, document in enumerate(documents):
        cache = None if model.recurrent else model.new_cache(len(document))
        hidden, alone = model.forward(torch.tensor([document]), torch.arange(len(document))[None], cache, TAPS)
        torch.testing.assert_close(tapped[row, : len(document)], alone[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(last[row], hidden[0, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ATTENDING)
def test_answers_are_those_of_transformers(family):
    prompts = texts(9, 2 * WINDOW + 3, 7, common=5)
    model = CausalModel(build(family))
    answers = generate(model, [Ask(ids, 12) for ids in prompts], stop_ids=[])
    stock = plain_one(family)
    stock.generation_config.eos_token_id = None
    for ids, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            whole = stock.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        assert answer.ids == whole[0, len(ids) :].tolist()


@pytest.mark.parametrize("family", ATTENDING)
def test_speculative_answers_are_the_plain_ones(family):
    model = CausalModel(build(family))
    torch.manual_seed(1)
    drafter = Drafter(drafter_config())
    prompts = texts(9, 2 * WINDOW + 3, 7, common=5)
    plain = generate(model, [Ask(ids, 12) for ids in prompts], stop_ids=[])
    traces = decode(model, drafter, [SpeculativeAsk(ids, 12) for ids in prompts], stop_ids=[])
    assert [trace.ids for trace in traces] == [answer.ids for answer in plain]


@pytest.mark.parametrize("family", RECURRENT)
def test_a_recurrent_state_is_not_taken_back_but_refused_in_words(family):
    model = CausalModel(build(family))
    with pytest.raises(UserError, match="recurrent state, which cannot be taken back"):
        generate(model, [Ask([5, 6], 3)], stop_ids=[])
    with pytest.raises(UserError, match=r"set worker\.kind to sglang"):
        decode(model, Drafter(drafter_config()), [SpeculativeAsk([5, 6], 3)], stop_ids=[])


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gemma4"])
def test_what_enters_a_drafter_of_a_gemma_is_its_scaled_embedding(family):
    """As in SGLang: `embed_module(block_ids)`, with the embedding module of the target."""
    model = CausalModel(build(family))
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        raw = model.model.get_input_embeddings().weight[ids]
        torch.testing.assert_close(model.embedding(ids), raw * math.sqrt(model.config.hidden_size))


@pytest.mark.parametrize("family", ["gemma2", "gemma4"])
def test_capped_logits_are_what_the_target_foresaw(family, tmp_path):
    model = CausalModel(build(family))
    (document,) = texts(11)
    features = extract(model, [document], TAPS, tmp_path / "features", soft={0})
    with torch.no_grad():
        logits = plain_one(family)(torch.tensor([document])).logits[0]
    wanted = logits.softmax(-1) @ model.head.weight
    torch.testing.assert_close(features.expected[0][1:].float(), wanted[:-1], rtol=2e-2, atol=2e-2)


def test_chunked_attention_is_refused_by_name():
    model = build("qwen3")
    model.config.layer_types = ["chunked_attention"] * LAYERS
    with pytest.raises(UserError, match="attends with chunked_attention"):
        CausalModel(model)
