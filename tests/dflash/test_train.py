from __future__ import annotations

import copy
from math import isfinite
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from synthspec.acceptance.result import TrainingLog
from synthspec.dflash import loss, train
from synthspec.dflash.batches import Document, documents_of_step, draw
from synthspec.dflash.checkpoint import load, save
from synthspec.dflash.decode import SpeculativeAsk, decode
from synthspec.dflash.features import extract
from synthspec.dflash.loss import decay
from synthspec.dflash.midtrain import between, check_target, midtrain, read_documents
from synthspec.dflash.model import Drafter
from synthspec.dflash.objectives import OBJECTIVES, foreseen_as, position_weights
from synthspec.dflash.train import Step, block_loss, fit, gradient
from synthspec.errors import UserError
from synthspec.samples.schema import SAMPLES, SPAN_KINDS, write_rows
from synthspec.spec import SpanWeights, Train
from synthspec.targets.causal import CausalModel
from synthspec.targets.generate import Ask, generate
from tests.dflash.conftest import MASK, VOCABULARY, drafter_config, tiny_llama


@pytest.fixture
def corpus(model, tmp_path):
    prompts = [[1, 10 + i, 20 + i] for i in range(4)]
    answers = generate(model, [Ask(ids, 30) for ids in prompts], stop_ids=[2])
    documents = [
        Document(torch.tensor(ids + one.ids), torch.arange(3 + len(one.ids)) >= 3)
        for ids, one in zip(prompts, answers, strict=True)
    ]
    texts = [one.ids.tolist() for one in documents]
    return documents, extract(model, texts, (1, 3), tmp_path / "features.bin")


def test_features_are_the_outputs_of_the_named_layers(model, tmp_path):
    texts = [[1, 4, 5, 6, 7], [1, 4, 5, 9], [8, 3]]
    features = extract(model, texts, (1, 3), tmp_path / "f.bin")
    plain = tiny_llama()
    for i, ids in enumerate(texts):
        states = plain(torch.tensor([ids]), output_hidden_states=True).hidden_states
        expected = torch.cat([states[2][0], states[4][0]], -1)  # the output of layer L is hidden_states[L + 1]
        torch.testing.assert_close(features.of(i).float(), expected, rtol=1e-2, atol=1e-2)
        shifted = torch.cat([states[1][0], states[3][0]], -1)
        assert not torch.allclose(features.of(i).float(), shifted, rtol=1e-1, atol=1e-1)


def test_features_may_be_read_by_somebody_else(model, tmp_path):
    texts = [[1, 4, 5, 6, 7], [1, 4, 5, 9], [8, 3]]
    own = extract(model, texts, (1, 3), tmp_path / "own.bin", soft={1})
    asked = []

    def read(documents):
        asked.extend(documents)
        return [own.of(texts.index(ids)) + 1 for ids in documents]

    found = extract(model, texts, (1, 3), tmp_path / "found.bin", soft={1}, read=read)
    assert sorted(asked) == sorted([texts[0], texts[2]])  # what is foreseen is the target's alone
    for i in (0, 2):
        assert found.of(i).equal(own.of(i) + 1)
    torch.testing.assert_close(found.of(1), own.of(1))
    torch.testing.assert_close(found.expected[1], own.expected[1])


def test_anchors_lie_within_the_answer_and_blocks_are_the_true_tokens(corpus):
    documents, features = corpus
    batch = draw(documents, features, [0, 2], anchors=9, block_size=4, decay=decay(4, 2.0), seed=0, step=3)
    for row, document in enumerate((documents[0], documents[2])):
        for block in range(batch.ids.shape[1]):
            p = int(batch.at[row, block, 0])
            assert document.supervised[p]
            assert batch.seen[row, block].tolist() == [t < p for t in range(batch.seen.shape[-1])]
            for j in range(1, 4):
                inside = p + j < len(document.ids)
                assert (batch.weights[row, block, j - 1] > 0) == inside
                if inside:
                    assert batch.ids[row, block, j] == document.ids[p + j]


def test_what_the_target_foresaw_is_kept_at_the_token_it_speaks_of(model, tmp_path):
    texts = [[1, 4, 5, 6, 7], [1, 4, 5, 9], [8, 3]]
    features = extract(model, texts, (1, 3), tmp_path / "f.bin", soft={0, 1})
    plain = tiny_llama()
    head = plain.lm_head.weight
    for i, ids in enumerate(texts):
        foreseen = plain(torch.tensor([ids])).logits[0, :-1].softmax(-1) @ head
        if i in features.expected:
            torch.testing.assert_close(features.expected[i][1:].float(), foreseen, rtol=2e-2, atol=2e-2)
    assert sorted(features.expected) == [0, 1]
    documents = [Document(torch.tensor(ids), torch.ones(len(ids), dtype=torch.bool)) for ids in texts]
    batch = draw(documents, features, [1, 2, 0], anchors=9, block_size=4, decay=decay(4, 2.0), seed=0, step=3)
    assert batch.soft.tolist() == [True, False, True]
    for row, document in ((0, 1), (2, 0)):
        for block in range(batch.ids.shape[1]):
            for j in range(1, 4):
                if batch.weights[row, block, j - 1] > 0:
                    token = features.expected[document][int(batch.at[row, block, j])]
                    assert torch.equal(batch.expected[row, block, j], token)


def test_a_cpu_without_units_for_bfloat16_trains_a_bfloat16_target_in_float32(drafter, corpus, monkeypatch):
    documents, features = corpus
    batch = draw(documents, features, [0, 2], anchors=9, block_size=4, decay=decay(4, 2.0), seed=0, step=3)
    rounded = tiny_llama().bfloat16()
    exact, _ = block_loss(drafter, CausalModel(copy.deepcopy(rounded).float()), batch)
    gaps = []
    for units in (True, False):
        for module in (loss, train):
            monkeypatch.setattr(module, "multiplies_bfloat16", lambda device, units=units: units)
        near, _ = block_loss(drafter, CausalModel(copy.deepcopy(rounded)), batch)
        gaps.append(abs(near.item() - exact.item()) / exact.item())
    assert gaps[0] < 1e-2
    assert gaps[1] < 1e-3


def test_an_epoch_visits_every_document_once():
    for epoch in range(2):
        visited = [d for step in range(5) for d in documents_of_step(10, 2, epoch * 5 + step, seed=4)]
        assert sorted(visited) == list(range(10))


def settings(steps: int) -> Train:
    return Train(steps=steps, batch_documents=2, anchors=12, learning_rate=3e-3, checkpoint_every=5)


def test_stopped_and_resumed_equals_undisturbed(model, drafter, corpus, tmp_path):
    documents, features = corpus
    whole, broken = copy.deepcopy(drafter), copy.deepcopy(drafter)
    log = fit(whole, model, documents, features, settings(20), tmp_path / "a", 7)

    class KilledError(Exception):
        pass

    def kill(steps: int, tokens: int, seen: list[int] = []) -> None:  # noqa: B006
        seen.append(steps)
        if sum(seen) == 13:
            raise KilledError

    with pytest.raises(KilledError):
        fit(broken, model, documents, features, settings(20), tmp_path / "b", 7, tick=kill)
    fresh = copy.deepcopy(drafter)
    again = fit(fresh, model, documents, features, settings(20), tmp_path / "b", 7)
    assert again == log
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name]), name


@pytest.mark.parametrize("free", [set(), {1, 2}])
def test_accumulated_batches_give_the_gradient_of_one_large_batch(free, model, drafter, corpus, tmp_path):
    documents, _ = corpus
    # Very unlike in what they weigh: a mean of means would be another number.
    documents = [Document(one.ids[: 8 + 7 * n], one.supervised[: 8 + 7 * n]) for n, one in enumerate(documents)]
    texts = [one.ids.tolist() for one in documents]
    features = extract(model, texts, (1, 3), tmp_path / "f.bin", soft=free)

    def drawn(part: slice):
        return draw(
            documents,
            features,
            [3, 0, 2, 1],
            anchors=9,
            block_size=4,
            decay=decay(4, 2.0),
            seed=0,
            step=3,
            part=part,
        )

    found = []
    for parts in ([slice(0, 4)], [slice(0, 1), slice(1, 2), slice(2, 4)]):
        drafter.zero_grad(set_to_none=True)
        told = gradient(Step(drafter, model), [lambda part=part: drawn(part) for part in parts])
        found.append((told, torch.cat([weight.grad.flatten() for weight in drafter.parameters()])))
    (whole, one), (cut, many) = found
    assert cut == pytest.approx(whole, rel=1e-6)
    assert (one - many).abs().max() < 1e-6 * one.abs().max()
    weights = [float(drawn(slice(n, n + 1)).weights.sum()) for n in range(4)]
    assert max(weights) > 2 * min(weights)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_the_same_however_a_step_is_cut(name, model, drafter, corpus, tmp_path):
    """Weights by span and windows on long samples with it; the second sample weighs nothing at all."""
    torch.manual_seed(0)
    documents = [
        Document(one.ids[: 8 + 7 * n], one.supervised[: 8 + 7 * n], (n != 1) * torch.rand(8 + 7 * n))
        for n, one in enumerate(corpus[0])
    ]
    texts = [one.ids.tolist() for one in documents]
    form = foreseen_as(name)
    kept = extract(
        model, texts, (1, 3), tmp_path / "f.bin", soft={1, 2} if form else (), form=form or "expected"
    )
    asked = Train(objective=name, cross_entropy_share=0.3 if name == "expected_acceptance" else None)

    def drawn(part: slice):
        return draw(
            documents,
            kept,
            [3, 0, 2, 1],
            anchors=9,
            block_size=4,
            decay=position_weights(asked, 4),
            seed=0,
            step=3,
            part=part,
            max_context=12,
        )

    found = []
    for parts in ([slice(0, 4)], [slice(0, 1), slice(1, 3), slice(3, 4)]):
        drafter.zero_grad(set_to_none=True)
        told = gradient(
            Step(drafter, model, asked), [lambda part=part: drawn(part) for part in parts], None, asked
        )
        found.append((told, torch.cat([weight.grad.flatten() for weight in drafter.parameters()])))
    (whole, one), (cut, many) = found
    assert cut == pytest.approx(whole, rel=1e-5)
    assert (one - many).abs().max() < 1e-5 * one.abs().max()
    assert one.abs().max() > 1e-4


def test_a_step_that_weighs_nothing_moves_nothing(model, drafter, corpus):
    documents, features = corpus
    nothing = [Document(one.ids, one.supervised, torch.zeros(len(one.ids))) for one in documents]

    def drawn(part: slice):
        return draw(
            nothing,
            features,
            [0, 1],
            anchors=4,
            block_size=4,
            decay=decay(4, 2.0),
            seed=0,
            step=0,
            part=part,
        )

    for parts in ([slice(0, 2)], [slice(0, 1), slice(1, 2)]):
        drafter.zero_grad(set_to_none=True)
        loss, _ = gradient(Step(drafter, model), [lambda part=part: drawn(part) for part in parts])
        assert loss == 0
        assert not any(weight.grad.any() for weight in drafter.parameters())


def test_accumulating_trains_as_a_batch_so_many_times_as_large(model, drafter, corpus, tmp_path):
    documents, features = corpus
    ends = []
    for size, times in ((4, 1), (2, 2), (1, 4)):
        trained = copy.deepcopy(drafter)
        chosen = settings(10).model_copy(update={"batch_documents": size, "accumulate": times})
        log = fit(trained, model, documents, features, chosen, tmp_path / str(times), 7)
        ends.append([entry.get("loss", 0.0) for entry in log])
    for other in ends[1:]:
        assert other == pytest.approx(ends[0], rel=1e-5)


def test_training_ends_when_it_is_told_to_and_stays_ended(model, drafter, corpus, tmp_path):
    documents, features = corpus

    def stop(log):
        return "enough" if log[-1]["step"] >= 10 else None

    log = fit(drafter, model, documents, features, settings(20), tmp_path, 7, stop=stop)
    assert [(entry["step"], entry.get("stopped")) for entry in log] == [(0, None), (5, None), (10, "enough")]
    before = [weight.clone() for weight in drafter.parameters()]
    assert fit(drafter, model, documents, features, settings(20), tmp_path, 7, stop=stop) == log
    assert all(torch.equal(*pair) for pair in zip(before, drafter.parameters(), strict=True))
    whole = fit(copy.deepcopy(drafter), model, documents, features, settings(10), tmp_path / "b", 7, stop=stop)
    assert "stopped" not in whole[-1]  # it was the last step


def test_what_is_known_of_each_step_is_told(model, drafter, corpus, tmp_path):
    documents, features = corpus
    steps, told = [], []
    fit(
        drafter,
        model,
        documents,
        features,
        settings(5),
        tmp_path,
        7,
        evaluate=lambda current: {"accept_len": {"in_domain": 2.0}},
        tick=lambda n, tokens: steps.append((n, tokens)),
        told=lambda step, numbers: told.append((step, numbers)),
    )
    longest = max(len(one.ids) for one in documents)
    assert [n for n, _ in steps] == [0, 1, 1, 1, 1, 1]
    assert all(0 < tokens <= 2 * longest for _, tokens in steps[1:])
    assert [step for step, _ in told] == [1, 2, 3, 4, 5, 5]
    assert told[0][1].keys() == {"loss", "first_guess", "learning_rate", "gradient_norm"}
    assert told[-1][1] == {"accept_len/in_domain": 2.0}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_training_makes_every_objective_small(name, model, drafter, corpus, tmp_path):
    documents, _ = corpus
    texts = [one.ids.tolist() for one in documents]
    form = foreseen_as(name)
    kept = extract(
        model, texts, (1, 3), tmp_path / "f.bin", soft={0, 2} if form else (), form=form or "expected"
    )
    # Expected acceptance alone has hardly a slope for a drafter that knows nothing.
    share = 0.5 if name == "expected_acceptance" else None
    asked = settings(20).model_copy(update={"objective": name, "cross_entropy_share": share})
    log = fit(drafter, model, documents, kept, asked, tmp_path / "fit", 0)
    assert log[-1]["loss"] < log[1]["loss"] - 0.02
    assert log[-1]["first_guess"] > log[1]["first_guess"]


def test_the_last_hidden_state_is_what_the_target_foresaw(model, tmp_path):
    texts = [[1, 4, 5, 6, 7], [1, 4, 5, 9]]
    features = extract(model, texts, (1, 3), tmp_path / "f.bin", soft={1}, form="hidden")
    logits = tiny_llama()(torch.tensor([texts[1]])).logits[0, :-1]
    found = model.logits(features.expected[1][1:].float())
    torch.testing.assert_close(found, logits, rtol=2e-2, atol=5e-2)
    assert not features.expected[1][0].any()


def test_what_it_learnt_by_heart_is_accepted_by_the_target(model, drafter, corpus, tmp_path):
    documents, features = corpus
    fit(drafter, model, documents, features, settings(300), tmp_path / "fit", 0)
    asks = [SpeculativeAsk(one.ids[:3].tolist(), 30) for one in documents]
    traces = decode(model, drafter, asks, stop_ids=[2])
    steps = sum(len(one.accepted) for one in traces)
    assert 1 + sum(sum(one.accepted) for one in traces) / steps > 3.2  # of at most 4


def test_between_two_drafters_every_weight_is_on_the_line():
    one, other = Drafter(drafter_config()), Drafter(drafter_config())
    found = between(one, other, 0.25)
    for weight, before, after in zip(found.parameters(), one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(weight, 0.75 * before + 0.25 * after)
    assert all(
        torch.equal(*pair)
        for pair in zip(between(one, other, 1.0).parameters(), other.parameters(), strict=True)
    )


def row(**changes):
    spans = [{"kind": "forced", "start": 1, "end": 2}, {"kind": "value", "start": 2, "end": 3}]
    return {"id": "r", "input_ids": [1, 2, 3], "loss_mask": [0, 1, 1], "spans": spans} | changes


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "holds no samples"),
        ([row(loss_mask=[0, 0, 0])], "supervises nothing"),
        ([row(), row(loss_mask=[1, 1, 1])], "row 1 .* supervises everything"),
        ([row(loss_mask=[0, 1])], "loss_mask is of 2 tokens and input_ids of 3"),
        ([row(input_ids=[1, 9, 3])], "mask_token_id 9 is a token of the text"),
        ([row(input_ids=[1, 2, 20])], "no token 20, its vocabulary ends at 19"),
        ([row(input_ids=[1, -2, 3])], "no token -2"),
        (
            [row(loss_mask=[1, 0, 1], spans=[{"kind": "value", "start": 0, "end": 3}])],
            "no supervised token has another behind it",
        ),
        ([row(spans=[{"kind": "forced", "start": 1, "end": 2}])], "token 2 is supervised and in no span"),
        ([row(spans=None)], "token 1 is supervised and in no span"),
        ([row(spans=[{"kind": "forced", "start": 1, "end": 4}])], "beyond the row's 3 tokens"),
        ([row(spans=[{"kind": "fixed", "start": 1, "end": 3}])], "of no known kind"),
        ([row(spans=[{"kind": "free", "start": 1, "end": 3}])], "nothing of this row weighs anything"),
    ],
)
def test_sets_that_would_train_nonsense_are_refused(rows, words, tmp_path):
    with pytest.raises(UserError, match=words):
        read_documents(rows, tmp_path / "train.parquet", 9, 20, SpanWeights(free=0, value=0.5))


def test_a_token_weighs_what_its_span_does(tmp_path):
    path = tmp_path / "train.parquet"
    (one,) = read_documents([row()], path, 9, 20, SpanWeights(value=0.25))
    assert one.weights.tolist() == [1.0, 1.0, 0.25]
    # Without weights of their own, rows need no spans.
    (plain,) = read_documents([row(spans=None)], path, 9, 20, SpanWeights())
    assert plain.weights is None
    assert tuple(SpanWeights.model_fields) == SPAN_KINDS


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (["a", "b"], "mixes the answers of 2 targets .a, b.* keep the rows whose lineage.target is a"),
        (["b", "b"], "answered by another target .b. than the spec's .a."),
    ],
)
def test_rows_of_other_targets_are_refused(targets, words, tmp_path):
    rows = [{"lineage": {"target": name}} for name in targets]
    with pytest.raises(UserError, match=words):
        check_target(rows, tmp_path / "train.parquet", "a")
    check_target([{"lineage": {"target": "a"}}], tmp_path / "train.parquet", "a")


def set_up(rows, model, drafter, folder):
    """A training set and a starting drafter in `folder`, and their target."""
    write_rows(folder / "train.parquet", SAMPLES, rows)
    save(drafter, folder / "start")
    about = {"hidden_size": 32, "layers": 6, "vocab_size": VOCABULARY}
    words = Tokenizer(WordLevel({f"word {number}": number for number in range(MASK)}, "word 0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    return SimpleNamespace(model=model, description=about, fingerprint="tiny", tokenizer=tokenizer, stop_ids=[])


def test_a_run_with_all_that_can_be_said_of_the_loss(model, drafter, corpus, tmp_path):
    documents, _ = corpus
    rows = [
        {
            "id": str(number),
            "input_ids": one.ids.clamp(max=MASK - 1).tolist(),
            "loss_mask": one.supervised.int().tolist(),
            "spans": [
                {"kind": "structure", "start": 3, "end": 6},
                {"kind": "value", "start": 6, "end": len(one.ids)},
            ],
            "held": number > 1,
            "lineage": {"target": "tiny"},
        }
        for number, one in enumerate(documents)
    ]
    target = set_up(rows, model, drafter, tmp_path)
    said: list[str] = []
    asked = Train(
        start=str(tmp_path / "start"),
        steps=2,
        batch_documents=3,
        anchors=4,
        objective="lk_lambda",
        span_weights={"value": 0.3},
        by_length=True,
        max_context=10,
    )
    found = midtrain(tmp_path / "train.parquet", target, asked, tmp_path / "out", seed=0, say=said.append)
    TrainingLog.model_validate(found)
    long = sum(len(one.ids) > 10 for one in documents)
    assert found["windowed"]["documents"] == long > 0
    assert 0 < found["windowed"]["dropped"] < found["windowed"]["context"]
    assert len(said) == 2  # of features is said how large they are
    assert f"{long} of 4 samples are longer than train.max_context" in said[0]
    assert isfinite(found["steps"][-1]["loss"])


def test_a_rotary_embedding_that_knows_the_length_is_trained_on_whole_short_texts_alone(
    model, corpus, tmp_path
):
    documents, _ = corpus
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 16}
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, **factors}
    row = {
        "id": "0",
        "input_ids": documents[0].ids.clamp(max=MASK - 1).tolist(),
        "loss_mask": documents[0].supervised.int().tolist(),
        "held": False,
        "lineage": {"target": "tiny"},
    }
    target = set_up([row], model, Drafter(drafter_config(rope_parameters=rope)), tmp_path)
    asked = Train(start=str(tmp_path / "start"), steps=1, max_context=10)
    with pytest.raises(UserError, match=r"\(longrope\) changes with the length of the text"):
        midtrain(tmp_path / "train.parquet", target, asked, tmp_path / "out", seed=0)
    asked = Train(start=str(tmp_path / "start"), steps=1)
    with pytest.raises(UserError, match=r"for texts of more than 12 tokens, and the longest sample has 26"):
        midtrain(tmp_path / "train.parquet", target, asked, tmp_path / "out", seed=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"objective": "dpace", "loss_gamma": 4}, "dpace weighs positions itself; remove loss_gamma"),
        ({"objective": "lk_alpha", "negatives": 100}, "compares whole distributions; remove negatives"),
        ({"cross_entropy_share": 0.5}, "cross_entropy has no such share; remove it"),
        ({"span_weights": {"forced": 0, "structure": 0, "value": 0, "free": 0}}, "nothing to learn; raise one"),
        ({"span_weights": {"value": -1}}, "greater than or equal to 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, words):
    with pytest.raises(ValidationError, match=words):
        Train(**settings)


@pytest.fixture
def small(model, drafter, corpus, tmp_path):
    """What trains the drafter on the corpus into a folder of that name, as the stage does."""
    documents, _ = corpus
    rows = [
        {
            "id": str(number),
            "input_ids": one.ids.clamp(max=MASK - 1).tolist(),
            "loss_mask": one.supervised.int().tolist(),
            "held": False,
            "lineage": {"target": "tiny"},
        }
        for number, one in enumerate(documents)
    ]
    target = set_up(rows, model, drafter, tmp_path)

    def small(name, how, **more):
        settings = Train(start=str(tmp_path / "start"), anchors=4, **how)
        return midtrain(tmp_path / "train.parquet", target, settings, tmp_path / name, seed=0, **more)

    return small


def test_weights_go_only_so_far_from_the_start_as_the_spec_says(small, tmp_path):
    ends = {}
    for share in (1.0, 0.5):
        small(str(share), {"steps": 3, "checkpoint_every": 3, "interpolation": share})
        ends[share] = load(tmp_path / str(share) / "final").state_dict()
    moved = 0.0
    for name, start in load(tmp_path / "start").state_dict().items():
        half = (start + ends[1.0][name]) / 2
        torch.testing.assert_close(ends[0.5][name], half, rtol=1e-2, atol=1e-4)  # checkpoints are bfloat16
        moved += float((ends[1.0][name] - start).abs().sum())
    assert moved > 1


def test_features_say_how_large_they_are_and_too_large_ones_are_refused(small, tmp_path):
    said = []
    with pytest.raises(UserError, match=r"train.features_limit_gb: the features of [0-9]+ tokens need .* GB"):
        small("refused", {"steps": 1, "features_limit_gb": 1e-6}, say=said.append)
    assert not said
    assert not (tmp_path / "refused" / "features.bin").exists()
    small("online", {"steps": 1, "features_limit_gb": 1e-6, "features_cache": "none"}, say=said.append)
    assert not said
    small("kept", {"steps": 1}, say=said.append)
    (line,) = said
    assert "2 layers of 32" in line
    assert str(tmp_path / "kept" / "features.bin") in line


def test_what_the_log_says_is_what_was_kept(small, tmp_path):
    """With the mean of the weights on, that is measured and kept; and a stop ends in the log."""
    seen = []

    def evaluate(current):
        seen.append({name: weight.to(torch.bfloat16) for name, weight in current.state_dict().items()})
        return {}

    settings = {"steps": 9, "checkpoint_every": 2, "interpolation": 0.5, "learning_rate": 1e-2}

    def stop(log):
        return "drift" if log[-1]["step"] == 4 else None

    found = small("mean", settings | {"ema": 0.9}, evaluate=evaluate, stop=stop)
    assert [(entry["step"], entry.get("stopped")) for entry in found["steps"]] == [
        (0, None),
        (2, None),
        (4, "drift"),
    ]
    assert TrainingLog.model_validate(found).steps[-1].stopped == "drift"
    small("plain", settings, stop=stop)
    final, plain = (load(tmp_path / name / "final").state_dict() for name in ("mean", "plain"))
    for name, weight in final.items():
        assert torch.equal(weight.to(torch.bfloat16), seen[-1][name])
    assert any(not torch.equal(final[name], plain[name]) for name in final)


def test_a_training_that_diverges_says_so(small):
    with pytest.raises(UserError, match=r"train.learning_rate: at step [0-9]+ the gradient is no number"):
        small("diverged", {"steps": 9, "checkpoint_every": 9, "learning_rate": 1e30, "warmup": 0.0})
