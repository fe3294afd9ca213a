"""The layout of the package speculators, from which vLLM serves a drafter together with its target.

It says the same as the z-lab layout in other words: the drafter's layers are a transformers config of their
own, `aux_hidden_state_layer_ids` count the embedding as 0 and so are one more than `target_layer_ids`, and the
target stands in `speculators_config.verifier`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synthspec.dflash.config import DrafterConfig
from synthspec.errors import UserError

VERSION = "0.9.0"  # of speculators, whose layout this is
# Weights that a folder may hold beside the drafter's own, all of them the target's.
OF_THE_TARGET = (
    "embed_tokens.weight",
    "lm_head.weight",
    "verifier_lm_head.weight",
    "verifier_norm.weight",
    "t2d",
    "d2t",
)
_LAYERS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "partial_rotary_factor",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "hidden_act",
    "attention_bias",
    "attention_dropout",
    "tie_word_embeddings",
)


def to_speculators(config: DrafterConfig, target: str, architectures: Sequence[str]) -> dict[str, Any]:
    """config.json of a drafter in the layout of speculators.

    Args:
        target: the target's folder or hub id, where vLLM looks for it.
        architectures: as the target's own config.json names them.
    """
    layers = config.to_json()
    return {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": VERSION,
        "dtype": layers["dtype"],
        "aux_hidden_state_layer_ids": [tap + 1 for tap in config.target_layer_ids],
        "block_size": config.block_size,
        "draft_vocab_size": config.vocab_size,
        "mask_token_id": config.mask_token_id,
        "num_target_layers": config.num_target_layers,
        "sample_from_anchor": False,
        "sliding_window_non_causal": False,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {name: layers[name] for name in _LAYERS if name in layers},
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": config.block_size - 1,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": target, "architectures": list(architectures)},
        },
    }


def as_zlab(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """A config.json in the layout of speculators as one in the z-lab layout.

    Fields that speculators leaves out have the values that transformers gives a config of that kind.

    Args:
        path: where it stands, for messages.

    Raises:
        UserError: another kind of drafter, or a field is missing or makes no sense.
    """
    from transformers import AutoConfig

    kind = raw["speculators_model_type"]
    if kind != "dflash":
        raise UserError(f"{path}: speculators_model_type is {kind}; only dflash can be trained here")
    given = raw.get("transformer_layer_config")
    if not isinstance(given, dict):
        raise UserError(f"{path}: the field transformer_layer_config is missing")
    if not raw.get("aux_hidden_state_layer_ids"):
        raise UserError(f"{path}: the field aux_hidden_state_layer_ids is missing")
    model_type = given.get("model_type", "qwen3")
    try:
        layers = AutoConfig.for_model(**{"model_type": model_type, **given}).to_dict()
    except Exception as error:  # a config that makes no sense fails in a hundred ways
        raise UserError(
            f"{path}: transformer_layer_config is no config of the kind {model_type} ({type(error).__name__}): "
            "restore it from where the drafter came"
        ) from None
    # What transformers fills in must not hide that the file says it of itself.
    layers |= {name: given[name] for name in ("partial_rotary_factor", "sliding_window") if name in given}
    outer = ("block_size", "mask_token_id", "draft_vocab_size", "num_target_layers", "target_hidden_size")
    more = ("sample_from_anchor", "sliding_window_non_causal")
    return {
        **layers,
        **{name: raw[name] for name in (*outer, *more) if name in raw},
        "target_layer_ids": [int(tap) - 1 for tap in raw["aux_hidden_state_layer_ids"]],
    }
