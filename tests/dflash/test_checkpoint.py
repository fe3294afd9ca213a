from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from synthspec.dflash.checkpoint import WEIGHTS, check_fits, export, load, save
from synthspec.dflash.config import read_config
from synthspec.errors import UserError


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
