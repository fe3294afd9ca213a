from __future__ import annotations

import pytest
import torch

from synthspec.dflash.initial import from_target
from synthspec.errors import UserError
from synthspec.targets.causal import CausalModel
from tests.targets.families import VOCABULARY, build

TEXTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]]


def made(model: CausalModel):
    return from_target(model, layers=2, taps=(1, 3), block_size=4, mask_token_id=VOCABULARY - 1, text_ids=TEXTS)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_a_drafter_is_made_of_layers_that_are_built_like_its_own(family):
    model = CausalModel(build(family))
    drafter = made(model)
    source, copied = model.layers[-1], drafter.layers[-1]
    before, between = source.input_layernorm.weight, source.post_attention_layernorm.weight
    for part, names, norm in (
        ("self_attn", ("q_proj", "k_proj", "v_proj"), before),
        ("mlp", ("gate_proj", "up_proj"), between),
    ):
        for name in names:
            own, given = (getattr(getattr(layer, part), name).weight for layer in (copied, source))
            torch.testing.assert_close(own, given * norm)
    torch.testing.assert_close(copied.self_attn.o_proj.weight, source.self_attn.o_proj.weight)
    torch.testing.assert_close(copied.mlp.down_proj.weight, source.mlp.down_proj.weight)
    first, deepest = drafter.fc.weight.chunk(2, -1)  # of both taps
    assert not first.any()
    torch.testing.assert_close(deepest, torch.eye(len(deepest)))
    if family == "qwen3":
        torch.testing.assert_close(copied.self_attn.q_norm.weight, source.self_attn.q_norm.weight)
    assert drafter.config.num_target_layers == len(model.layers)


@pytest.mark.parametrize("family", ["gemma3", "gpt_oss", "qwen3_moe", "qwen3_5"])
def test_other_layers_are_refused_by_name(family):
    with pytest.raises(UserError, match="no drafter can be made from layers of"):
        made(CausalModel(build(family)))
