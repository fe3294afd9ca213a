from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from synthspec.dflash.config import read_config
from synthspec.dflash.model import Drafter, rotate
from synthspec.dflash.rotary import Rotary
from tests.dflash.conftest import drafter_config

THETA = {"rope_theta": 10_000.0}
ORIGINAL = {"original_max_position_embeddings": 64}
LONG = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 4.0, 6.0, 8.0], **ORIGINAL}
SCALINGS = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, **ORIGINAL},
    "yarn with mscale": {"factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.8, **ORIGINAL},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
    "longrope": LONG,
}


def rope(kind: str) -> dict:
    return {"rope_type": kind.split()[0], **THETA, **SCALINGS[kind]}


def reference(kind: str, positions: torch.Tensor):
    """Angles of z-lab's reference, which are transformers' Qwen3's."""
    settings = Qwen3Config(
        hidden_size=32,
        num_attention_heads=4,
        head_dim=8,
        max_position_embeddings=256,
        rope_parameters=rope(kind),
    )
    return Qwen3RotaryEmbedding(settings)(torch.empty(0), positions)


@pytest.mark.parametrize("kind", [kind for kind in SCALINGS if kind != "dynamic"])
@pytest.mark.parametrize("first", [0, 60])
def test_angles_are_those_of_transformers_bit_for_bit(kind, first):
    positions = torch.arange(first, first + 20)[None].expand(2, -1)
    for ours, theirs in zip(
        Rotary(drafter_config(rope_parameters=rope(kind)))(positions), reference(kind, positions), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_dynamic_scaling_is_fixed_at_its_longest_text_as_engines_fix_it():
    """base · (factor · longest / original − factor + 1) ^ (R / (R − 2)), longest = factor · original: SGLang's
    and vLLM's DynamicNTKScalingRotaryEmbedding."""
    base = 10_000.0 * (4.0 * 4.0 - 3.0) ** (8 / 6)
    wanted = 1 / base ** (torch.arange(0, 8, 2) / 8)
    for positions in (torch.arange(5)[None], torch.arange(300)[None]):
        cos, sin = Rotary(drafter_config(rope_parameters=rope("dynamic")))(positions)
        turns = positions[..., None] * wanted
        torch.testing.assert_close(cos[..., :4], turns.cos())
        torch.testing.assert_close(sin[..., 4:], turns.sin())


def test_long_texts_take_the_long_factors_and_short_ones_the_short():
    rotary = Rotary(drafter_config(rope_parameters=rope("longrope")))
    short, long = rotary(torch.arange(64)[None])[0], rotary(torch.arange(65)[None])[0]
    assert not torch.allclose(short[0, 1], long[0, 1])


@pytest.mark.parametrize("kind", ["default", "linear", "yarn", "llama3"])
def test_a_part_of_a_head_turns_as_a_narrower_head_would(kind):
    positions = torch.arange(9)[None]
    partial = Rotary(drafter_config(rope_parameters=rope(kind) | {"partial_rotary_factor": 0.5}))(positions)
    narrow = Rotary(drafter_config(head_dim=4, rope_parameters=rope(kind)))(positions)
    for ours, theirs in zip(partial, narrow, strict=True):
        assert torch.equal(ours, theirs)


def test_proportional_rotary_turns_pairs_over_the_whole_head():
    """Gemma 4: the first share of all pairs turns, by exponents over the whole head, the rest by nothing."""
    config = drafter_config(rope_parameters=rope_of_gemma())
    cos, sin = Rotary(config)(torch.tensor([[3]]))
    turned = rotate(torch.arange(8.0)[None, None], cos, sin)[0, 0]
    wanted = torch.arange(8.0)
    for pair, angle in enumerate((3.0, 3.0 * 10_000.0**-0.25)):
        left, right = wanted[pair].item(), wanted[pair + 4].item()
        wanted[pair] = left * math.cos(angle) - right * math.sin(angle)
        wanted[pair + 4] = right * math.cos(angle) + left * math.sin(angle)
    torch.testing.assert_close(turned, wanted)


def rope_of_gemma() -> dict:
    return {"rope_type": "proportional", **THETA, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize("kind", SCALINGS)
def test_a_scaled_drafter_comes_back_from_its_config(kind, tmp_path):
    config = drafter_config(rope_parameters=rope(kind))
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    assert read_config(tmp_path) == config


def test_frequencies_are_not_rounded_with_the_weights():
    drafter = Drafter(drafter_config())
    positions = torch.arange(200, 230)[None]
    before = drafter.angles(positions)
    for changed in (copy.deepcopy(drafter).to(torch.bfloat16), copy.deepcopy(drafter).double()):
        for ours, theirs in zip(changed.angles(positions), before, strict=True):
            assert torch.equal(ours, theirs)


def test_a_partly_turning_drafter_sees_positions_in_the_turning_part_alone():
    """Moved as a whole, a block and its context give the same: only distances count."""
    torch.manual_seed(1)
    drafter = Drafter(drafter_config(rope_parameters=rope("yarn") | {"partial_rotary_factor": 0.5}))
    torch.manual_seed(2)
    features, block = torch.randn(1, 6, 64), torch.randn(1, 1, 4, 32)
    outs = []
    for moved in (0, 37):
        at = torch.arange(6, 10)[None, None] + moved
        with torch.no_grad():
            context = drafter.inject(features, torch.arange(6)[None] + moved)
            outs.append(drafter(block, at, context, torch.ones(1, 1, 6, dtype=torch.bool)))
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-4, atol=1e-5)


# What SGLang's DFlash attention does with a drafter's config, without the rest of a server.
IN_SGLANG = """
import json, sys, torch
from transformers import AutoConfig
try:
    from sglang.srt.layers.rotary_embedding import get_rope
except ImportError as error:
    sys.exit(print(json.dumps(str(error))))
turned = {}
torch.manual_seed(0)
heads = torch.randn(30, 2 * 8)
for folder in sys.argv[1:]:
    config = AutoConfig.from_pretrained(folder)
    scaling = config.rope_parameters
    turn = get_rope(
        config.head_dim,
        rotary_dim=config.head_dim,
        max_position=config.max_position_embeddings,
        base=scaling["rope_theta"],
        rope_scaling=scaling,
        is_neox_style=True,
        partial_rotary_factor=float(getattr(config, "partial_rotary_factor", 1.0)),
        dtype=torch.float32,
    )
    turn = getattr(turn, "forward_native", turn.forward)
    turned[folder] = turn(torch.arange(30), heads.clone(), heads.clone())[1].reshape(30, 16).tolist()
print(json.dumps(turned))
"""


@pytest.mark.slow
def test_sglang_turns_as_we_do_from_the_config_that_we_write(tmp_path):
    """Every scaling, of a whole head and of half a one, number for number."""
    configs = {}
    for kind in SCALINGS:
        for share in (1.0, 0.5):
            if kind != "longrope" or share == 1.0:
                part = {} if share == 1.0 else {"partial_rotary_factor": share}
                configs[f"{kind} {share}"] = drafter_config(rope_parameters=rope(kind) | part)
    configs["proportional"] = drafter_config(rope_parameters=rope_of_gemma())
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config.to_json()))
    told = subprocess.run(
        [sys.executable, "-c", IN_SGLANG, *(str(tmp_path / name) for name in configs)],
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    turned = json.loads(told.stdout.splitlines()[-1])
    if isinstance(turned, str):
        pytest.skip(f"SGLang is not here: {turned}")
    torch.manual_seed(0)
    heads = torch.randn(30, 2 * 8).view(1, 30, 2, 8)
    for name, config in configs.items():
        cos, sin = Rotary(config)(torch.arange(30)[None])
        ours = rotate(heads, cos[:, :, None], sin[:, :, None])[0].flatten(1)
        assert torch.equal(ours, torch.tensor(turned[str(tmp_path / name)])), name
