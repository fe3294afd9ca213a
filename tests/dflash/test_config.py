from __future__ import annotations

import json

import pytest

from synthspec.dflash.checkpoint import save
from synthspec.dflash.config import SLIDING, read_config, tap_layers
from synthspec.dflash.model import Drafter
from synthspec.errors import UserError
from tests.dflash.conftest import drafter_config


@pytest.fixture
def changed(tmp_path):
    """Write a drafter's config.json with some fields changed; give its folder."""

    def write(**fields):
        content = drafter_config().to_json() | fields
        (tmp_path / "config.json").write_text(json.dumps(content))
        return tmp_path

    return write


ROPE = {"rope_type": "default", "rope_theta": 10_000.0}


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({}, 8),
        ({"partial_rotary_factor": 0.5}, 4),
        ({"rope_parameters": {**ROPE, "partial_rotary_factor": 0.25}}, 2),
        ({"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.5}, 4),
        ({"rope_parameters": {**ROPE, "rope_dim": 6, "partial_rotary_factor": 0.25}}, 6),  # as for SGLang
        ({"rope_parameters": {**ROPE, "rope_type": "proportional", "partial_rotary_factor": 0.5}}, 8),
    ],
)
def test_how_much_of_a_head_turns_is_found_wherever_it_stands(changed, fields, width):
    config = read_config(changed(**fields))
    assert config.rotary_width == width
    folder = changed(**config.to_json())
    assert read_config(folder) == config  # and is written so that it is found again


def test_a_partial_factor_is_written_where_each_engine_looks_for_it(changed):
    """SGLang 0.5.23 reads the top level of config.json alone, vLLM `rope_parameters` alone."""
    written = read_config(changed(partial_rotary_factor=0.5)).to_json()
    assert written["partial_rotary_factor"] == written["rope_parameters"]["partial_rotary_factor"] == 0.5


def test_old_and_new_ways_to_write_a_scaling_mean_the_same(changed):
    scaling = {"factor": 4, "original_max_position_embeddings": 64}
    new = read_config(changed(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, **scaling}))
    for name in ("rope_type", "type"):
        old = changed(rope_parameters=None, rope_scaling={name: "yarn", **scaling}, rope_theta=1e4)
        assert read_config(old) == new
    assert isinstance(new.rope_parameters["factor"], float)  # SGLang takes a whole number for a list of factors


def test_what_only_images_need_is_left_out(changed):
    rope = {**ROPE, "mrope_section": [1, 1, 2], "mrope_interleaved": True}
    assert read_config(changed(rope_parameters=rope)).rope_parameters == ROPE


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope_parameters": {**ROPE, "rope_type": "su"}}, "rope_type is su; this drafter's arithmetic knows"),
        ({"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}}, "differ by kind of layer"),
        ({"rope_parameters": {**ROPE, "rope_type": "linear"}}, "rope_type linear need the field factor"),
        (
            {"rope_parameters": {**ROPE, "rope_type": "llama3", "factor": 8.0}},
            "llama3 need the field low_freq_factor",
        ),
        (
            {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.25}, "partial_rotary_factor": 0.5},
            "SGLang reads the first and vLLM the second",
        ),
        ({"partial_rotary_factor": 0.1}, "0.1 of head_dim 8 is no even width"),
        ({"rope_parameters": {**ROPE, "rope_dim": 3}}, "is no even width"),
        (
            {"rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5}},
            "attention_factor of rope_type yarn is 1.5; engines agree on 1.13863",
        ),
        (
            {"rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 4.0, "mscale": 1.0}},
            "one of mscale and mscale_all_dim",
        ),
        (
            {"rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 4.0, "alpha": 2.0}},
            "alpha of rope_type dynamic is 2",
        ),
        (
            {
                "rope_parameters": {
                    **ROPE,
                    "rope_type": "longrope",
                    "short_factor": [1.0] * 3,
                    "long_factor": [1.0] * 4,
                    "original_max_position_embeddings": 64,
                }
            },
            "short_factor has 3 numbers for 4 turning pairs",
        ),
        ({"is_causal": True}, "is_causal is true"),
        ({"is_causal": False, "layer_types": [SLIDING] * 2, "sliding_window": 8}, "is_causal is false"),
        ({"layer_types": [SLIDING] * 2, "sliding_window": 3}, "sliding_window 3 is shorter than a block of 4"),
        ({"draft_vocab_size": 50}, "reduced vocabulary"),
        ({"target_hidden_size": 64}, "target_hidden_size is 64 and hidden_size 32"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3]}, "would tap different layers"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu"),
        ({"quantization_config": {"quant_algo": "fp8"}}, "quantization_config is"),
        ({"conv_kernel_size": 4}, "conv_kernel_size is 4"),
    ],
)
def test_what_the_model_does_not_compute_is_refused_by_name(changed, fields, words):
    with pytest.raises(UserError) as told:
        read_config(changed(**fields))
    assert words in str(told.value)
    assert "config.json" in str(told.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("selector_rank", 64),
        ("projector_type", "domino"),
        ("attention_sink_bias", True),
        ("attention_value_scale", 0.5),
        ("output_multiplier", 2.0),
        ("use_swa", True),
    ],
)
def test_so_is_what_stands_in_dflash_config(changed, name, value):
    inner = drafter_config().to_json()["dflash_config"] | {name: value}
    with pytest.raises(UserError, match=f"{name} is"):
        read_config(changed(dflash_config=inner))


def test_not_being_causal_is_what_full_layers_are(changed):
    assert read_config(changed(is_causal=False)) == drafter_config()


def test_without_a_list_of_taps_they_are_those_of_the_dflash_code(changed):
    """SGLang's `build_target_layer_ids`, for a config that names none."""
    fields = {"dflash_config": {"mask_token_id": 96}, "num_target_layers": 36, "num_hidden_layers": 5}
    config = read_config(changed(**fields, layer_types=None))
    assert config.target_layer_ids == (1, 9, 17, 25, 33)
    assert tap_layers(36, 1) == (18,)


def test_a_number_of_layers_without_end_is_told_before_its_taps_are_listed(changed):
    fields = {"dflash_config": {"mask_token_id": 96}, "num_hidden_layers": 10**15, "layer_types": None}
    with pytest.raises(UserError, match="num_hidden_layers is 1000000000000000"):
        read_config(changed(**fields))


def test_without_a_list_of_kinds_they_are_those_of_qwen3(changed):
    fields = {"layer_types": None, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    assert read_config(changed(**fields)).layer_types == ("full_attention", SLIDING)


def test_fields_of_z_labs_code_are_carried_along(changed):
    inner = drafter_config().to_json()["dflash_config"]
    folder = changed(dflash_config={**inner, "input_embedding_scale": 4.0, "final_logit_softcapping": 30.0})
    config = read_config(folder)
    assert config.to_json()["dflash_config"] == {
        **inner,
        "input_embedding_scale": 4.0,
        "final_logit_softcapping": 30.0,
    }


@pytest.mark.parametrize(
    "shape",
    [
        {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64},
        {"hidden_size": 40, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10},
        {"block_size": 16, "target_layer_ids": (0, 1, 2, 3, 4)},
        {"num_hidden_layers": 1, "layer_types": (SLIDING,), "sliding_window": 4},
        {"attention_bias": True},
    ],
)
def test_any_shape_comes_back_as_it_was(tmp_path, shape):
    config = drafter_config(**shape)
    save(Drafter(config), tmp_path)
    assert read_config(tmp_path) == config
