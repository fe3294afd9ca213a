from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from synthspec.dflash.checkpoint import (
    MASK_EMBEDDING,
    WEIGHTS,
    check_fits,
    check_mask,
    export,
    find,
    load,
    save,
)
from synthspec.dflash.config import read_config
from synthspec.errors import UserError
from tests.dflash.conftest import drafter_config


def test_what_is_saved_comes_back(drafter, tmp_path):
    drafter = drafter.to(torch.bfloat16)
    save(drafter, tmp_path)
    again = load(tmp_path, torch.bfloat16)
    assert again.config == drafter.config
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


def test_the_layout_is_the_one_that_engines_read(drafter, tmp_path):
    save(drafter, tmp_path)
    names = set(load_file(tmp_path / WEIGHTS))
    assert {"fc.weight", "hidden_norm.weight", "norm.weight", "layers.0.self_attn.q_norm.weight"} <= names
    assert not [name for name in names if "embed" in name or "lm_head" in name or "rotary" in name]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"] == {"target_layer_ids": [1, 3], "mask_token_id": 96}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop("norm.weight"), "norm.weight is missing"),
        (lambda tensors: tensors.update({"layers.9.x": torch.ones(1)}), "layers.9.x is unknown"),
        (lambda tensors: tensors.update({"norm.weight": torch.ones(3)}), "norm.weight is (3,)"),
        (
            lambda tensors: tensors.update({"norm.weight": torch.full((32,), float("nan"))}),
            "norm.weight holds what is no finite number",
        ),
        (
            lambda tensors: tensors.update({"norm.weight": torch.ones(32, dtype=torch.int8)}),
            "norm.weight is of int8: a quantised drafter",
        ),
    ],
)
def test_wrong_weights_are_refused_by_name(drafter, tmp_path, change, words):
    save(drafter, tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    change(tensors)
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(UserError) as told:
        load(tmp_path)
    assert words in str(told.value)


def test_a_file_cut_short_is_refused(drafter, tmp_path):
    save(drafter, tmp_path)
    path = tmp_path / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="cut short"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("block_size", 1, "block_size is 1"),
        ("num_hidden_layers", 3, "layer_types names 2 layers of 3"),
        ("num_target_layers", 4, r"target_layer_ids \[3\] are outside 0 to 2"),
        ("vocab_size", 96, "mask_token_id 96 is outside"),
        ("num_key_value_heads", 3, "no multiple"),
    ],
)
def test_impossible_configs_are_refused(drafter, tmp_path, field, value, words):
    save(drafter, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(UserError, match=words):
        read_config(tmp_path)


@pytest.mark.parametrize("missing", ["block_size", "hidden_size"])
def test_a_missing_field_is_named(drafter, tmp_path, missing):
    save(drafter, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config[missing]
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"field {missing} is missing"):
        read_config(tmp_path)


def test_a_drafter_of_another_target_is_refused(drafter, tmp_path):
    with pytest.raises(UserError, match="num_target_layers is 6, this target's is 30"):
        check_fits(drafter.config, tmp_path, hidden_size=32, layers=30, vocabulary=97)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (WEIGHTS, "holds no weights: model.safetensors is missing"),
        (f"{WEIGHTS}.index.json", "spread over several files"),
        (MASK_EMBEDDING, "a mask embedding of its own"),
    ],
)
def test_files_that_are_missing_or_too_many_are_told(drafter, tmp_path, name, words):
    save(drafter, tmp_path)
    if name != MASK_EMBEDDING:
        (tmp_path / WEIGHTS).unlink()
    if name != WEIGHTS:
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=words):
        load(tmp_path)


TARGET = {"model": "ours", "tokenizer_sha256": "t" * 64, "weights_sha256": "w" * 64, "revision": None}
SIZES = {"hidden_size": 32, "layers": 6, "vocabulary": 97}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"tokenizer_sha256": "u" * 64},
            "for ours with tokenizer_sha256 tttttttttttt, and",
        ),
        ({"weights_sha256": "x" * 64}, "with weights_sha256 wwwwwwwwwwww"),
        ({"embedding_scale": 5.0}, None),
    ],
)
def test_an_export_of_ours_is_taken_for_its_own_target_only(drafter, tmp_path, change, words):
    save(drafter, tmp_path / "final")
    export(tmp_path / "final", tmp_path / "export", TARGET, {})
    check_fits(drafter.config, tmp_path / "export", **SIZES, target=TARGET)
    if words is None:
        check_fits(drafter.config, tmp_path / "export", **SIZES, target=TARGET | change)
        return
    with pytest.raises(UserError) as told:
        check_fits(drafter.config, tmp_path / "export", **SIZES, target=TARGET | change)
    assert words in str(told.value)
    assert "copy it without its manifest.json" in str(told.value)


def test_commits_are_held_against_each_other_where_weights_have_no_digest(drafter, tmp_path):
    save(drafter, tmp_path / "final")
    of_the_hub = TARGET | {"weights_sha256": None, "revision": "a" * 40}
    export(tmp_path / "final", tmp_path / "export", of_the_hub, {})
    with pytest.raises(UserError, match="with revision aaaaaaaaaaaa"):
        check_fits(drafter.config, tmp_path / "export", **SIZES, target=of_the_hub | {"revision": "b" * 40})


def test_a_manifest_that_makes_no_sense_is_told(drafter, tmp_path):
    save(drafter, tmp_path)
    (tmp_path / "manifest.json").write_text("[1]")
    with pytest.raises(UserError, match=r"manifest\.json makes no sense"):
        check_fits(drafter.config, tmp_path, **SIZES, target=TARGET)


def test_embeddings_scaled_otherwise_than_the_targets_are_refused(tmp_path):
    config = drafter_config(input_embedding_scale=1.0)
    with pytest.raises(UserError, match=r"this target multiplies its embeddings by 5\.65"):
        check_fits(config, tmp_path, **SIZES, target=TARGET | {"embedding_scale": 32**0.5})
    check_fits(config, tmp_path, **SIZES, target=TARGET | {"embedding_scale": 1.0})


def test_taps_beyond_this_targets_layers_are_refused(tmp_path):
    config = drafter_config(num_target_layers=None, target_layer_ids=(1, 5))
    with pytest.raises(UserError, match=r"target_layer_ids \[5\] are outside 0 to 4"):
        check_fits(config, tmp_path, **SIZES)


@pytest.mark.parametrize("mask", ["an ordinary word", "the end"])
def test_a_mask_that_the_target_writes_is_refused(tmp_path, smollm2_tokenizer, mask):
    written = {
        "an ordinary word": smollm2_tokenizer.convert_tokens_to_ids("Ġthe"),
        "the end": smollm2_tokenizer.eos_token_id,
    }
    config = drafter_config(vocab_size=49_152, mask_token_id=written[mask])
    with pytest.raises(UserError, match=f"mask_token_id {written[mask]} is"):
        check_mask(config, tmp_path, smollm2_tokenizer)
    check_mask(drafter_config(vocab_size=49_152, mask_token_id=16), tmp_path, smollm2_tokenizer)
    check_mask(drafter_config(vocab_size=60_000, mask_token_id=59_000), tmp_path, smollm2_tokenizer)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("nowhere", "there is no folder"),
        ("owner/name", "a hub id with its commit"),
        ("../owner/name@abc", "there is no folder"),
    ],
)
def test_a_start_that_is_nothing_is_told(tmp_path, start, words):
    with pytest.raises(UserError, match=words):
        find(start, tmp_path)


def test_a_drafter_of_the_hub_comes_from_the_cache_and_offline_is_told_in_a_sentence(
    drafter, tmp_path, monkeypatch
):
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "cache"))
    commit = "a" * 40
    with pytest.raises(UserError, match="is not in the cache and the hub cannot be reached"):
        find(f"owner/name@{commit}")
    snapshot = tmp_path / "cache/models--owner--name/snapshots" / commit
    save(drafter, snapshot)
    assert load(find(f"owner/name@{commit}")).config == drafter.config


def test_an_export_names_its_target(drafter, tmp_path):
    save(drafter, tmp_path / "final")
    export(tmp_path / "final", tmp_path / "export", {"model": "m", "tokenizer_sha256": "t"}, {"run": "r"})
    manifest = json.loads((tmp_path / "export" / "manifest.json").read_text())
    assert manifest["target"]["tokenizer_sha256"] == "t"
    assert load(tmp_path / "export").config == drafter.config


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": [1]},
        {"rope_scaling": "x", "rope_parameters": None},
        {"dflash_config": [1]},
        {"architectures": 5},
        {"num_key_value_heads": 0},
        {"num_attention_heads": 0, "head_dim": None},
        {"hidden_size": -5},
        {"hidden_size": 10**9},
        {"block_size": 10**9},
        {"layer_types": [[1]]},
    ],
)
def test_a_config_that_makes_no_sense_is_told_in_words(drafter, tmp_path, change):
    save(drafter, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=r"config\.json"):
        read_config(tmp_path)
