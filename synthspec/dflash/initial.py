"""A drafter to begin with: the target's own last layers, rewired to read its features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from synthspec.dflash.config import FULL, DrafterConfig
from synthspec.dflash.model import Drafter
from synthspec.errors import UserError
from synthspec.targets.causal import CausalModel
from synthspec.targets.generate import prefill

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


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
    and key norms are those of the target or, where it has none, the sizes that its own queries and keys have
    on `text_ids`.

    Args:
        layers: how many of the target's last layers to copy.
        text_ids: a few texts of the target, as token ids.

    Raises:
        UserError: its layers are of another kind than a drafter's.
    """
    target = model.config
    _refuse_other_layers(model, len(model.layers) - layers)
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
        attention_bias=any(name.endswith("_proj.bias") for name, _ in model.layers[-1].named_parameters()),
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
        for name in PROJECTIONS if config.attention_bias else ():
            bias = getattr(source.self_attn, name).bias
            getattr(ours.self_attn, name).bias.copy_(torch.zeros(()) if bias is None else bias)
        for name, size in zip(("q_norm", "k_norm"), sizes[first + i], strict=True):
            norm = getattr(source.self_attn, name, None)
            getattr(ours.self_attn, name).weight.copy_(torch.tensor(size) if norm is None else norm.weight)
    return drafter


def _refuse_other_layers(model: CausalModel, first: int) -> None:
    """A drafter's layer is that of Llama or Qwen3: what a target has beyond it would be lost in the copy."""
    target = model.config
    wanted = {*(f"self_attn.{name}" for name in PROJECTIONS), "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
    have = {name for layer in model.layers[first:] for name, _ in layer.named_modules()}
    norms = {name for name in have if name.endswith("norm")} - {
        "input_layernorm",
        "post_attention_layernorm",
        "self_attn.q_norm",
        "self_attn.k_norm",
    }
    rope = getattr(target, "rope_parameters", None) or {}
    alike = not norms and wanted <= have and "rope_type" in rope and target.hidden_act == "silu"
    if not alike or model.recurrent:
        raise UserError(
            f"target.model: no drafter can be made from layers of {target.model_type}, which are built "
            "otherwise than a drafter's: start from a released drafter of it (train.start)"
        )


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
