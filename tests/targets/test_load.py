from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaConfig

from synthspec.errors import UserError
from synthspec.spec import Target as Settings
from synthspec.targets.load import choose_device, describe_target, find, load_target, load_tokenizer
from tests.dflash.conftest import tiny_llama


@pytest.fixture
def folder(tmp_path, smollm2_tokenizer):
    """A tiny model with a real tokenizer, as a person would have one on disk."""
    tiny_llama(vocab_size=49152).save_pretrained(tmp_path / "model")
    smollm2_tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_is_described_without_its_weights_and_loads(folder):
    settings = Settings(model=str(folder))
    about = describe_target(settings)
    assert (about["layers"], about["hidden_size"], about["vocab_size"]) == (6, 32, 49152)
    target = load_target(settings)
    assert about["parameters"] == sum(one.numel() for one in target.model.model.parameters())
    assert target.stop_ids == [2]


def test_another_template_tokenizer_or_weight_is_another_target(folder):
    before = load_target(Settings(model=str(folder))).fingerprint
    assert load_target(Settings(model=str(folder))).fingerprint == before
    template = folder / "chat_template.jinja"
    text = template.read_text()
    template.write_text(text + " ")
    assert load_target(Settings(model=str(folder))).fingerprint != before
    template.write_text(text)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    third = len(content) // 3  # the samples of a file see what changes in a layer, not in a byte
    content[third : 2 * third] = content[third : 2 * third][::-1]
    weights.write_bytes(content)
    assert load_target(Settings(model=str(folder))).fingerprint != before


def test_weights_cut_short_are_told_in_words(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UserError, match="weights of model cannot be loaded"):
        _ = load_target(Settings(model=str(folder))).model


def test_weights_of_another_config_are_told_in_words(folder):
    config = LlamaConfig.from_pretrained(folder)
    config.intermediate_size = 64
    config.save_pretrained(folder)
    with pytest.raises(UserError, match="weights of model cannot be loaded"):
        _ = load_target(Settings(model=str(folder))).model


@pytest.mark.parametrize("layers", [5, 7])
def test_weights_of_more_or_fewer_layers_are_told_in_words(folder, layers):
    config = LlamaConfig.from_pretrained(folder)
    config.num_hidden_layers = layers
    config.save_pretrained(folder)
    with pytest.raises(UserError, match="weights of model cannot be loaded"):
        _ = load_target(Settings(model=str(folder))).model


@pytest.mark.parametrize(
    "change",
    [{"num_attention_heads": 0}, {"hidden_act": "none"}, {"vocab_size": None}],
)
def test_a_config_that_makes_no_sense_is_told_in_words(folder, change):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match="is no causal language model"):
        describe_target(Settings(model=str(folder)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"target\.device: cuda is not available"):
        choose_device(Settings(device="cuda"))


@pytest.mark.parametrize(
    ("model", "words"), [("./none", "there is no folder"), ("a/b", "needs a commit; give the one")]
)
def test_a_model_that_cannot_be_found_is_told_in_words(model, words):
    with pytest.raises(UserError, match=words):
        find(Settings(model=model))


def test_code_that_a_model_brings_along_is_neither_run_nor_offered(tmp_path, monkeypatch, capfd):
    (tmp_path / "evil.py").write_text("raise SystemExit(9)\nclass Evil: pass\n")
    auto = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Evil", "auto_map": auto}))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr("builtins.input", lambda *words: "y")
    with pytest.raises(UserError, match="no tokenizer can be loaded"):
        load_tokenizer(Settings(model=str(tmp_path)))
    assert "custom code" not in capfd.readouterr().out
