"""The shape of a drafter and its config.json, in the z-lab layout that SGLang and vLLM read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthspec.errors import UserError

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class DrafterConfig:
    """Every number that the drafter's arithmetic depends on.

    Args:
        block_size: tokens of a block, the anchor included; block_size − 1 are proposed.
        target_layer_ids: 0-based decoder layers of the target whose outputs are the features.
        mask_token_id: what stands in a block where a token is to be guessed.
        layer_types: per layer, `full_attention` (the whole block sees itself) or `sliding_attention`
            (causal, over the last `sliding_window` tokens).
        rope_parameters: rotary settings as transformers writes them (`rope_theta`, `rope_type`, …).
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    block_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    layer_types: tuple[str, ...]
    sliding_window: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "dtype": "bfloat16",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
            "dflash_config": {
                "target_layer_ids": list(self.target_layer_ids),
                "mask_token_id": self.mask_token_id,
            },
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_parameters["rope_theta"],
            "rope_parameters": self.rope_parameters,
            "layer_types": list(self.layer_types),
            "sliding_window": self.sliding_window,
            "use_sliding_window": SLIDING in self.layer_types,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": False,
        }


def read_config(folder: Path) -> DrafterConfig:
    """Read `config.json` of a drafter folder.

    Raises:
        UserError: the file is missing, no JSON, no DFlash config, or a field is missing or wrong.
    """
    try:
        return _read(folder)
    except (TypeError, ValueError, AttributeError, KeyError, ArithmeticError, RecursionError) as error:
        kind = type(error).__name__
        raise UserError(
            f"{folder / 'config.json'} makes no sense ({kind}): restore it from where the drafter came"
        ) from None


def _read(folder: Path) -> DrafterConfig:
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} holds no drafter: config.json is missing") from None
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read as JSON: restore it from where the drafter came") from None
    if not isinstance(raw, dict) or "DFlashDraftModel" not in (raw.get("architectures") or []):
        raise UserError(f"{path}: architectures does not name DFlashDraftModel, so this is no DFlash drafter")
    raw = raw | (raw.get("dflash_config") or {})
    for key, usual in _UNSUPPORTED.items():
        if raw.get(key, usual) not in (usual, None):
            raise UserError(f"{path}: {key} is {raw[key]}; this drafter's arithmetic knows only {usual}")
    layers = raw.get("num_hidden_layers", 0)
    rope = raw.get("rope_parameters") or {"rope_type": "default"} | (raw.get("rope_scaling") or {})
    rope.setdefault("rope_theta", raw.get("rope_theta"))
    if not rope["rope_theta"]:
        raise UserError(f"{path}: the field rope_theta is missing")
    try:
        config = DrafterConfig(
            **{key: int(raw[key]) for key in _WHOLE},
            head_dim=int(raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]),
            target_layer_ids=tuple(int(layer) for layer in raw["target_layer_ids"]),
            rms_norm_eps=float(raw["rms_norm_eps"]),
            rope_parameters=rope,
            layer_types=tuple(raw.get("layer_types") or [FULL] * layers),
            sliding_window=raw.get("sliding_window"),
        )
    except KeyError as missing:
        raise UserError(f"{path}: the field {missing.args[0]} is missing") from None
    except (TypeError, ValueError):
        raise UserError(f"{path}: a field has a value of the wrong type") from None
    for wrong in _mistakes(config):
        raise UserError(f"{path}: {wrong}")
    return config


# Fields that change what an engine computes, and the only value that the model here computes with.  To
# read past another value would train one drafter and serve a different one.
_UNSUPPORTED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "partial_rotary_factor": 1.0,
    "rope_dim": None,
    "rope_is_neox_style": True,
    "use_gemma_norm": False,
    "is_causal": False,
    "attention_value_scale": None,
    "attention_sink": False,
}
_WHOLE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "block_size",
    "num_target_layers",
    "mask_token_id",
    "max_position_embeddings",
)


LARGEST = {
    "hidden_size": 1 << 16,
    "intermediate_size": 1 << 18,
    "num_hidden_layers": 256,
    "num_attention_heads": 1024,
    "num_key_value_heads": 1024,
    "head_dim": 1024,
    "vocab_size": 1 << 22,
    "block_size": 256,
    "max_position_embeddings": 1 << 26,
}


def _mistakes(config: DrafterConfig) -> list[str]:
    found = []
    if config.block_size < 2:
        found.append(f"block_size is {config.block_size}; a block needs its anchor and at least one guess")
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
    for name in (*sizes, "num_key_value_heads", "vocab_size", "block_size", "max_position_embeddings"):
        if not 0 < getattr(config, name) <= LARGEST[name]:
            found.append(f"{name} is {getattr(config, name)}; it lies between 1 and {LARGEST[name]:,}")
    if found:
        return found
    if not config.target_layer_ids:
        found.append("target_layer_ids is empty; name at least one layer of the target")
    # The last layer cannot be tapped: engines hand out what goes *into* the next layer.
    wrong = [tap for tap in config.target_layer_ids if not 0 <= tap < config.num_target_layers - 1]
    if wrong:
        found.append(f"target_layer_ids {wrong} are outside 0 to {config.num_target_layers - 2}")
    if not 0 <= config.mask_token_id < config.vocab_size:
        found.append(f"mask_token_id {config.mask_token_id} is outside the vocabulary of {config.vocab_size}")
    if len(config.layer_types) != config.num_hidden_layers:
        found.append(f"layer_types names {len(config.layer_types)} layers of {config.num_hidden_layers}")
    if set(config.layer_types) - {FULL, SLIDING}:
        found.append(f"layer_types may hold {FULL} and {SLIDING} only")
    if SLIDING in config.layer_types and not config.sliding_window:
        found.append("layer_types has sliding layers, but sliding_window is missing")
    if config.num_attention_heads % config.num_key_value_heads:
        found.append("num_attention_heads is no multiple of num_key_value_heads")
    return found
