"""A drafter to begin with: the target's own last layers, rewired to read its features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from synthspec.dflash.config import FULL, DrafterConfig
from synthspec.dflash.model import Drafter
from synthspec.targets.causal import CausalModel
from synthspec.targets.generate import prefill


def tap_layers(layers: int, count: int) -> tuple[int, ...]:
    """`count` target layers, evenly from the 2nd to the third last (DFlash, section 4.1)."""
    first, last = 1, layers - 3
    return tuple(round(first + (last - first) * i / (count - 1)) for i in range(count))


@torch.no_grad()
def from_target(
    model: CausalModel,
    *,
    layers: int,
    taps: Sequence[int],
    block_size: int,
    mask_token_id: int,
    text_ids: Sequence[Sequence[int]],
) -> Drafter:
    """Build a drafter whose layers are copies of the target's last ones.

    The copies keep the target's function as far as the drafter's form allows: the norms before the
    projections are folded into them (x · w through P is x through P · diag(w)), because a drafter's
    context keys skip `input_layernorm`; `fc` passes the deepest tap through; and the gains of the query
    and key norms are set to the sizes that the target's own queries and keys have on `text_ids`.

    Args:
        layers: how many of the target's last layers to copy.
        text_ids: a few texts of the target, as token ids.
    """
    target = model.config
    depth, hidden = len(model.layers), target.hidden_size
    heads = target.num_attention_heads
    width = getattr(target, "head_dim", None) or hidden // heads
    config = DrafterConfig(
        hidden_size=hidden,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=width,
        vocab_size=target.vocab_size,
        block_size=block_size,
        num_target_layers=depth,
        target_layer_ids=tuple(taps),
        mask_token_id=mask_token_id,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope_parameters=dict(target.rope_parameters),
        layer_types=(FULL,) * layers,
    )
    drafter = Drafter(config)
    drafter.fc.weight.zero_()
    drafter.fc.weight[:, -hidden:] = torch.eye(hidden)
    drafter.norm.weight.copy_(model.model.get_decoder().norm.weight)
    first = depth - layers
    sizes = _query_key_sizes(model, range(first, depth), text_ids, width)
    for i, layer in enumerate(drafter.layers):
        source: Any = model.layers[first + i]
        before, between = source.input_layernorm.weight, source.post_attention_layernorm.weight
        ours: Any = layer
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(ours.self_attn, name).weight.copy_(getattr(source.self_attn, name).weight * before)
        ours.self_attn.o_proj.weight.copy_(source.self_attn.o_proj.weight)
        for name in ("gate_proj", "up_proj"):
            getattr(ours.mlp, name).weight.copy_(getattr(source.mlp, name).weight * between)
        ours.mlp.down_proj.weight.copy_(source.mlp.down_proj.weight)
        queries, keys = sizes[first + i]
        ours.self_attn.q_norm.weight.fill_(queries)
        ours.self_attn.k_norm.weight.fill_(keys)
    return drafter


def _query_key_sizes(
    model: CausalModel, which: range, text_ids: Sequence[Sequence[int]], width: int
) -> dict[int, tuple[float, float]]:
    """Root mean square of the target's queries and keys in some layers, over some texts."""
    seen: dict[tuple[int, str], float] = {}
    hooks = []
    for layer in which:
        for name in ("q_proj", "k_proj"):

            def keep(module: Any, args: Any, output: torch.Tensor, at: tuple[int, str] = (layer, name)) -> None:
                seen[at] = float(output.float().unflatten(-1, (-1, width)).square().mean().sqrt())

            projection: Any = getattr(model.layers[layer].self_attn, name)
            hooks.append(projection.register_forward_hook(keep))
    shortest = min(map(len, text_ids))
    prefill(model, [ids[:shortest] for ids in text_ids], model.new_cache(shortest))
    for hook in hooks:
        hook.remove()
    return {layer: (seen[layer, "q_proj"], seen[layer, "k_proj"]) for layer in which}
