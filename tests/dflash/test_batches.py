"""What a block may depend on, which documents a step takes, and what a window drops."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch

from synthspec.dflash.batches import Document, documents_of_step, draw, windowed
from synthspec.dflash.config import FULL, SLIDING
from synthspec.dflash.features import Features
from synthspec.dflash.loss import decay
from synthspec.dflash.model import Drafter
from synthspec.dflash.objectives import OBJECTIVES, foreseen_as
from synthspec.dflash.train import block_loss
from synthspec.spec import Train
from tests.dflash.conftest import MASK, drafter_config

SIZE, TOKENS = 4, 26


def text(tokens: int = TOKENS, prompt: int = 6, seed: int = 0) -> Document:
    torch.manual_seed(seed)
    return Document(torch.randint(3, MASK, (tokens,)), torch.arange(tokens) >= prompt)


def features_of(documents: list[Document], soft: bool = False, seed: int = 1) -> Features:
    torch.manual_seed(seed)
    starts = [0]
    for one in documents:
        starts.append(starts[-1] + len(one.ids))
    foreseen = {i: torch.randn(len(one.ids), 32).bfloat16() for i, one in enumerate(documents)}
    return Features(torch.randn(starts[-1], 64).bfloat16(), starts, foreseen if soft else {})


def drafter_of(kinds: tuple[str, ...]) -> Drafter:
    torch.manual_seed(2)
    return Drafter(drafter_config(layer_types=kinds, sliding_window=5 if SLIDING in kinds else None))


def batch_of(document: Document, features: Features, **changes):
    asked = {"anchors": 8, "block_size": SIZE, "decay": decay(SIZE, 2.0), "seed": 0, "step": 0}
    return draw([document], features, [0], **(asked | changes))


def told(drafter, model, batch, settings, block: int, guesses: slice) -> torch.Tensor:
    """Loss and all gradients of some guesses of one block, as one vector."""
    weights, real = torch.zeros_like(batch.weights), torch.zeros_like(batch.real)
    weights[0, block, guesses] = batch.weights[0, block, guesses]
    real[0, block] = batch.real[0, block]  # alone, since the λ of lk_lambda is a mean over blocks
    drafter.zero_grad()
    loss, _ = block_loss(drafter, model, replace(batch, weights=weights, real=real), None, settings)
    loss.backward()
    return torch.cat([loss.detach()[None], *(p.grad.flatten() for p in drafter.parameters())])


@pytest.mark.parametrize("kinds", [(FULL, FULL), (SLIDING, FULL)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_guess_depends_on_what_comes_after_its_anchor(model, name, kinds):
    """Of the tokens from the anchor on, a guess knows the anchor; its label is the one in its place."""
    settings = Train(objective=name)
    drafter, document = drafter_of(kinds), text()
    features = features_of([document], soft=foreseen_as(name) is not None)
    batch = batch_of(document, features)
    # The prefix is a matter of the whole block, so that its guesses count together.
    whole = name in ("dpace", "expected_acceptance")
    for block in (0, 3, 5):
        p = int(batch.at[0, block, 0])
        for k in [slice(0, SIZE - 1)] if whole else [slice(0, 1), slice(2, 3)]:
            if not batch.real[0, block, k].all():
                continue
            own = range(p + 1, p + SIZE) if whole else [p + 1 + k.start]

            def changed(states: range, tokens: list[int], block: int = block, k: slice = k) -> torch.Tensor:
                other, ids = copy.deepcopy(features), document.ids.clone()
                other.states[states.start : states.stop] += 3
                for at in tokens:
                    ids[at] = (ids[at] + 40) % (MASK - 3) + 3
                    if other.expected:
                        other.expected[0][at] += 3
                drawn = batch_of(Document(ids, document.supervised), other)
                assert torch.equal(drawn.at, batch.at)
                return told(drafter, model, drawn, settings, block, k)

            base = changed(range(0), [])
            later = [at for at in range(p + 1, TOKENS) if at not in own]
            torch.testing.assert_close(changed(range(p, TOKENS), later), base, rtol=1e-5, atol=1e-7)
            before, anchor, label = (
                changed(range(p - 1, p), []),
                changed(range(0), [p]),
                changed(range(0), [own[0]]),
            )
            for other in (before, anchor, label):
                assert (other - base).abs().max() > 1e-3


def test_a_token_weighs_by_its_document():
    document = text()
    weights = torch.rand(TOKENS)
    features = features_of([document])
    plain = batch_of(document, features)
    weighed = batch_of(Document(document.ids, document.supervised, weights), features)
    assert torch.equal(plain.real, weighed.real)
    for block in range(plain.at.shape[1]):
        for j in range(1, SIZE):
            at = int(plain.at[0, block, j])
            ours = weights[at] if at < TOKENS else 0.0
            assert weighed.weights[0, block, j - 1] == plain.weights[0, block, j - 1] * ours
    ones = batch_of(Document(document.ids, document.supervised, torch.ones(TOKENS)), features)
    assert torch.equal(ones.weights, plain.weights)


def test_a_long_document_is_seen_through_a_window():
    prompt, window = 9, 8
    long = Document(torch.arange(90), torch.arange(90) >= prompt)  # every token tells its place
    short = Document(torch.arange(7), torch.arange(7) >= 3)
    documents = [long, short]
    features = features_of(documents)
    for step in range(30):
        batch = draw(
            documents,
            features,
            [0, 1],
            anchors=5,
            block_size=SIZE,
            decay=decay(SIZE, 2.0),
            seed=0,
            step=step,
            max_context=window,
        )
        assert int(batch.lengths.max()) <= 2 * window
        contexts = batch.features.split(batch.lengths.tolist())
        for row in (0, 1):
            for block in range(batch.ids.shape[1]):
                if not batch.real[row, block].any():
                    continue
                p = int(batch.ids[row, block, 0])
                looked = contexts[row][batch.seen[row, block, : batch.lengths[row]]]
                assert torch.equal(looked, features.of(row)[max(0, p - window) : p])
                assert (
                    batch.ids[row, block][1:][batch.real[row, block]]
                    == torch.arange(p + 1, p + SIZE)[batch.real[row, block]]
                ).all()


def test_all_anchors_of_a_long_document_come_alike():
    long = Document(torch.arange(40), torch.arange(40) >= 9)
    features = features_of([long])
    found = Counter(
        int(p)
        for step in range(1000)
        for p in batch_of(long, features, anchors=3, step=step, max_context=10).ids[0, :, 0]
    )
    assert sorted(found) == list(range(9, 39))
    mean = sum(found.values()) / len(found)
    assert all(0.6 * mean < count < 1.4 * mean for count in found.values())


def test_a_drafter_that_slides_loses_nothing_in_a_wide_enough_window():
    """Counted from the window's beginning, positions differ as they did."""
    drafter = drafter_of((SLIDING, SLIDING))
    long = Document(torch.arange(90), torch.arange(90) >= 9)
    features = features_of([long])

    def outputs(**how) -> dict[int, torch.Tensor]:
        batch = batch_of(long, features, **how)
        at = torch.arange(len(batch.features))[None]
        torch.manual_seed(3)
        embedded = torch.randn(90, 32)[batch.ids]
        with torch.no_grad():
            out = drafter(embedded, batch.at, drafter.inject(batch.features[None].float(), at), batch.seen)
        return {int(p): out[0, n] for n, p in enumerate(batch.ids[0, :, 0]) if batch.real[0, n].all()}

    whole = outputs(anchors=90)
    for step in range(5):
        for p, out in outputs(anchors=5, step=step, max_context=12).items():
            torch.testing.assert_close(out, whole[p], rtol=1e-4, atol=1e-4)


def test_what_a_window_drops_is_counted():
    documents = [text(40), text(9), text(23, prompt=20)]
    found = windowed(documents, 10)
    context = dropped = over = 0
    for one in documents:
        for p in range(len(one.ids) - 1):
            if one.supervised[p] and one.supervised[p + 1]:
                context += p
                dropped += max(0, p - 10)
                over += p > 10
    assert (found.documents, found.anchors, found.dropped, found.context) == (2, over, dropped, context)


def test_steps_of_like_length_visit_every_document_once_an_epoch():
    torch.manual_seed(0)
    lengths = torch.randint(10, 1000, (203,))
    asked = [documents_of_step(203, 4, step, 5, lengths) for step in range(203)]  # four epochs
    places = [document for step in asked for document in step]
    for epoch in range(4):
        assert sorted(places[203 * epoch : 203 * (epoch + 1)]) == list(range(203))
    assert places[:203] != places[203:406]
    assert documents_of_step(203, 4, 77, 5, lengths) == asked[77]  # whatever was asked before

    def padding(steps: list[list[int]]) -> float:
        padded = sum(len(step) * int(lengths[step].max()) for step in steps)
        return 1 - sum(int(lengths[step].sum()) for step in steps) / padded

    shuffled = [documents_of_step(203, 4, step, 5) for step in range(203)]
    assert padding(asked) < 0.1 < 0.25 < padding(shuffled)


def test_part_of_a_step_is_drawn_as_the_whole_is():
    documents = [text(tokens, seed=tokens) for tokens in (60, 14, 40, 33)]
    kept = features_of(documents, soft=True)
    asked = {"anchors": 5, "block_size": SIZE, "decay": decay(SIZE, 2.0), "seed": 0, "max_context": 12}
    for step in range(5):
        chosen = documents_of_step(4, 4, step, 1, torch.tensor([len(one.ids) for one in documents]))
        whole = draw(documents, kept, chosen, step=step, **asked)
        for part in (slice(0, 1), slice(1, 3), slice(3, 4)):
            some = draw(documents, kept, chosen, step=step, part=part, **asked)
            blocks, longest = some.seen.shape[1:]
            for name in ("ids", "at", "real", "weights", "expected"):
                assert getattr(some, name).equal(getattr(whole, name)[part, :blocks]), name
            assert some.seen.equal(whole.seen[part, :blocks, :longest])
            assert some.features.equal(torch.cat(whole.features.split(whole.lengths.tolist())[part]))
            assert some.soft.equal(whole.soft[part])
            assert not whole.real[part, blocks:].any()
            assert not whole.seen[part, :, longest:].any()
