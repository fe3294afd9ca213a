"""The same features, kept or not, and in whatever precision."""

from __future__ import annotations

import re

import pytest
import torch

from synthspec.dflash.batches import Document, draw
from synthspec.dflash.features import ROWS_AT_ONCE, Online, extract, read_together, size_in_bytes
from synthspec.dflash.loss import decay
from synthspec.spec import Train
from synthspec.targets.causal import CausalModel
from tests.dflash.conftest import tiny_llama
from tests.dflash.loop import documents, settings, train

TAPS = (0, 2, 4)
SOFT = {1, 4}


def assert_near(one, other):
    """Equal but for 1e-5 of the largest: what is small beside it was rounded with it."""
    assert one.shape == other.shape
    assert (one - other).abs().max() <= 1e-5 * other.abs().max()


@pytest.fixture
def texts():
    return [one.ids.tolist() for one in documents()]


@pytest.mark.parametrize("form", ["expected", "hidden"])
def test_online_and_kept_features_agree_in_float32(form, model, texts, tmp_path):
    kept = extract(model, texts, TAPS, tmp_path / "f.bin", soft=SOFT, form=form, dtype=torch.float32)
    assert kept.states.dtype == torch.float32
    online = Online(model, texts, TAPS, SOFT, form)
    for chosen in ([0], [4, 3], [9, 1, 2, 1], range(10)):
        found = online.only(chosen)
        assert found.expected.keys() == SOFT & set(chosen)
        for i in chosen:
            assert_near(found.of(i), kept.of(i))
            if i in SOFT:
                assert_near(found.expected[i], kept.expected[i])


def test_what_is_kept_in_bfloat16_is_what_was_read_but_for_its_rounding(model, texts, tmp_path):
    wide = extract(model, texts, TAPS, tmp_path / "wide.bin", soft=SOFT, dtype=torch.float32)
    kept = extract(model, texts, TAPS, tmp_path / "kept.bin", soft=SOFT)
    assert torch.equal(kept.states, wide.states.to(torch.bfloat16))
    for i in SOFT:
        assert torch.equal(kept.expected[i], wide.expected[i].to(torch.bfloat16))


def test_every_tap_of_a_target_in_bfloat16_is_nearly_that_of_one_in_float32(texts, tmp_path):
    """Of each token, with weights that are a third of the usual ones here, as in trained models."""
    llama = tiny_llama()
    with torch.no_grad():
        for weight in llama.parameters():
            if weight.ndim == 2:
                weight.div_(3)
    exact = extract(CausalModel(llama), texts, TAPS, tmp_path / "exact.bin", dtype=torch.float32)
    taps = [tap.clone() for tap in exact.states.chunk(3, -1)]
    rounded = CausalModel(llama.to(torch.bfloat16))
    kept, online = extract(rounded, texts, TAPS, tmp_path / "kept.bin"), Online(rounded, texts, TAPS)
    for found in (kept, online.only(range(10))):
        assert found.states.dtype == torch.bfloat16
        ours = found.states.float().chunk(3, -1)
        for one, other in zip(taps, ours, strict=True):
            assert torch.cosine_similarity(one, other, dim=-1).min() >= 0.999
        assert torch.cosine_similarity(taps[1], ours[0], dim=-1).mean() < 0.9  # another tap is another thing


def test_both_train_alike(tmp_path):
    """In float32, losses of a training that keeps its features and of one that does not."""
    logs = []
    for cache in ("float32", "none"):
        train(tmp_path / cache, settings(features_cache=cache))
        logs.append((tmp_path / cache / "log.json").read_text())
    numbers = [[float(n) for n in re.findall(r"-?\d+\.\d+", log)] for log in logs]
    assert len(numbers[0]) > 5
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-5)
    assert not (tmp_path / "none" / "features.bin").exists()


def test_a_batch_of_online_features_is_the_batch_of_kept_ones(model, texts, tmp_path):
    kept = extract(model, texts, TAPS, tmp_path / "f.bin", soft=SOFT, dtype=torch.float32)
    online = Online(model, texts, TAPS, SOFT)
    read: list[Document] = documents()
    for part in (slice(0, 2), slice(2, 5)):
        chosen = [4, 7, 1, 0, 4]
        one, other = (
            draw(
                read,
                features.only(chosen[part]),
                chosen,
                anchors=5,
                block_size=4,
                decay=decay(4, 2.0),
                seed=0,
                step=1,
                part=part,
            )
            for features in (kept, online)
        )
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.soft, other.soft)
        assert_near(one.features, other.features)
        assert_near(one.expected, other.expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_estimate_is_the_size_of_the_file(dtype, model, texts, tmp_path):
    path = tmp_path / "f.bin"
    extract(model, texts, TAPS, path, soft=SOFT, dtype=dtype)
    soft = sum(len(texts[i]) for i in SOFT)
    assert path.stat().st_size == size_in_bytes(sum(map(len, texts)), 3, 32, soft=soft, dtype=dtype)


def test_a_server_and_no_cache_do_not_go_together():
    with pytest.raises(ValueError, match="features of a server are kept on disk"):
        Train(features={"url": "http://gpu-1:30001"}, features_cache="none")


def test_batches_hold_documents_that_begin_alike():
    a, b = list(range(30)), list(range(30, 60))
    documents = [beginning + [n] * (n % 7) for n in range(50) for beginning in (a, b)]
    strangers = [[900 + n] * 40 for n in range(5)]
    found = read_together(documents + strangers)
    assert sorted(place for places in found for place in places) == list(range(105))
    kinds = [{(documents + strangers)[place][0] for place in places} for places in found]
    assert all(len(kind) == 1 for kind in kinds[:-1])
    assert kinds[-1] == {900 + n for n in range(5)}
    for places in found:
        lengths = [len((documents + strangers)[place]) for place in places]
        assert lengths == sorted(lengths)
        assert len(places) <= ROWS_AT_ONCE
