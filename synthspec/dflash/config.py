"""The shape of a drafter and its config.json, in the z-lab layout that SGLang and vLLM read."""

from __future__ import annotations

import json
import math
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
        num_target_layers: decoder layers of the target; None where the folder does not say.
        rope_parameters: rotary settings as transformers writes them (`rope_theta`, `rope_type`,
            `partial_rotary_factor`, …), in a form that SGLang, vLLM and transformers read alike.
        attention_bias: whether the four projections of attention add a bias.
        input_embedding_scale: what z-lab's code multiplies the target's embeddings by before they enter the
            drafter; None where the folder does not say.
        final_logit_softcapping: what z-lab's code caps the drafter's logits with, which changes no greedy
            draft; kept for it, and not computed here.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    block_size: int
    num_target_layers: int | None
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    layer_types: tuple[str, ...]
    sliding_window: int | None = None
    attention_bias: bool = False
    input_embedding_scale: float | None = None
    final_logit_softcapping: float | None = None

    @property
    def rotary_width(self) -> int:
        """R: how many of a head's `head_dim` dimensions turn, from the first one on."""
        if self.rope_parameters["rope_type"] == "proportional":  # the rest turns by nothing
            return self.head_dim
        return int(self.head_dim * self.rope_parameters.get("partial_rotary_factor", 1.0))

    def to_json(self) -> dict[str, Any]:
        """config.json in the z-lab layout."""
        more = {
            name: getattr(self, name)
            for name in ("input_embedding_scale", "final_logit_softcapping")
            if getattr(self, name) is not None
        }
        rotary = {"rope_theta": self.rope_parameters["rope_theta"], "rope_parameters": self.rope_parameters}
        if "partial_rotary_factor" in self.rope_parameters:  # SGLang reads it here alone, vLLM there alone
            rotary["partial_rotary_factor"] = self.rope_parameters["partial_rotary_factor"]
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
                **more,
            },
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            **rotary,
            "layer_types": list(self.layer_types),
            "sliding_window": self.sliding_window,
            "use_sliding_window": SLIDING in self.layer_types,
            "hidden_act": "silu",
            "attention_bias": self.attention_bias,
            "attention_dropout": 0.0,
            "tie_word_embeddings": False,
        }


def read_config(folder: Path) -> DrafterConfig:
    """Read `config.json` of a drafter folder, in the z-lab layout or in that of speculators.

    Raises:
        UserError: the file is missing, no JSON, no DFlash config, or a field is missing, wrong, or asks for
            arithmetic that the model here does not do.
    """
    path = folder / "config.json"
    try:
        return _read(path, read_raw(folder))
    except (TypeError, ValueError, AttributeError, KeyError, ArithmeticError, RecursionError) as error:
        kind = type(error).__name__
        raise UserError(f"{path} makes no sense ({kind}): restore it from where the drafter came") from None


def read_raw(folder: Path) -> dict[str, Any]:
    """What `config.json` of a drafter folder says, unchecked.

    Raises:
        UserError: the file is missing or holds no JSON object.
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} holds no drafter: config.json is missing") from None
    except (OSError, ValueError, RecursionError):
        raise UserError(f"{path} cannot be read as JSON: restore it from where the drafter came") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} holds no JSON object: restore it from where the drafter came")
    return raw


def _read(path: Path, raw: dict[str, Any]) -> DrafterConfig:
    if "speculators_model_type" in raw:
        from synthspec.dflash.speculators import as_zlab

        raw = as_zlab(raw, path)
    elif "DFlashDraftModel" not in (raw.get("architectures") or []):
        raise UserError(f"{path}: architectures does not name DFlashDraftModel, so this is no DFlash drafter")
    raw = raw | (raw.get("dflash_config") or {})
    for key, usual in _UNSUPPORTED.items():
        if raw.get(key, usual) not in (usual, None):
            raise UserError(f"{path}: {key} is {raw[key]}; this drafter's arithmetic knows only {usual}")
    try:
        width = int(raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"])
        config = DrafterConfig(
            **{key: int(raw[key]) for key in _WHOLE},
            head_dim=width,
            num_target_layers=_whole_or_none(raw, "num_target_layers"),
            target_layer_ids=_taps(raw),
            rms_norm_eps=float(raw["rms_norm_eps"]),
            rope_parameters=_rope(path, raw, width),
            layer_types=_layer_types(raw),
            sliding_window=_whole_or_none(raw, "sliding_window"),
            attention_bias=bool(raw.get("attention_bias")),
            input_embedding_scale=_number_or_none(raw, "input_embedding_scale"),
            final_logit_softcapping=_number_or_none(raw, "final_logit_softcapping"),
        )
    except KeyError as missing:
        raise UserError(f"{path}: the field {missing.args[0]} is missing") from None
    except (TypeError, ValueError):
        raise UserError(f"{path}: a field has a value of the wrong type") from None
    for wrong in [*_mistakes(config), *_contradictions(config, raw)]:
        raise UserError(f"{path}: {wrong}")
    return config


def _whole_or_none(raw: dict[str, Any], name: str) -> int | None:
    return None if raw.get(name) is None else int(raw[name])


def _number_or_none(raw: dict[str, Any], name: str) -> float | None:
    return None if raw.get(name) is None else float(raw[name])


def _taps(raw: dict[str, Any]) -> tuple[int, ...]:
    """The tapped layers; where none are named, those that the DFlash code takes for so many drafter layers."""
    if raw.get("target_layer_ids") is None and raw.get("num_target_layers") and raw.get("num_hidden_layers"):
        count = min(int(raw["num_hidden_layers"]), LARGEST["num_hidden_layers"])  # what is wrong is told later
        return tap_layers(int(raw["num_target_layers"]), count)
    return tuple(int(layer) for layer in raw["target_layer_ids"])


def tap_layers(layers: int, count: int) -> tuple[int, ...]:
    """`count` target layers, evenly from the 2nd to the third last (DFlash, section 4.1); one: the middle."""
    if count == 1:
        return (layers // 2,)
    first, last = 1, layers - 3
    return tuple(round(first + (last - first) * i / (count - 1)) for i in range(count))


def _layer_types(raw: dict[str, Any]) -> tuple[str, ...]:
    """The kind of each layer; without a list, as transformers' Qwen3 decides."""
    layers = int(raw["num_hidden_layers"])
    if raw.get("layer_types"):
        return tuple(raw["layer_types"])
    if not (raw.get("use_sliding_window") and raw.get("sliding_window")):
        return (FULL,) * min(layers, LARGEST["num_hidden_layers"])
    first = int(raw.get("max_window_layers", 28))
    return tuple(SLIDING if i >= first else FULL for i in range(min(layers, LARGEST["num_hidden_layers"])))


# Of each scaling: the fields that it needs, and those that the three engines read alike.
_SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "yarn": (("factor",), ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "longrope": (("short_factor", "long_factor", "original_max_position_embeddings"), ()),
    "proportional": ((), ()),
}
# Positions of text are one number, and for such these change nothing.
_OF_IMAGES = ("mrope_section", "mrope_interleaved")


def _rope(path: Path, raw: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """The rotary settings, from wherever they stand, in the form that `DrafterConfig` keeps.

    Raises:
        UserError: a scaling, or a field of one, that engines read differently or not at all.
    """
    rope = dict(raw.get("rope_parameters") or {"rope_type": "default"} | (raw.get("rope_scaling") or {}))
    rope["rope_theta"] = rope.get("rope_theta") or raw.get("rope_theta")
    if not rope["rope_theta"]:
        raise UserError(f"{path}: the field rope_theta is missing")
    if isinstance(rope["rope_theta"], dict) or {FULL, SLIDING} & rope.keys():
        raise UserError(f"{path}: rope_parameters differ by kind of layer; this drafter's arithmetic knows one")
    kind = rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    if kind not in _SCALINGS:
        raise UserError(
            f"{path}: rope_type is {kind}; this drafter's arithmetic knows {', '.join(sorted(_SCALINGS))}"
        )
    factor = _partial(path, raw, rope, head_dim)
    for name in _OF_IMAGES:
        rope.pop(name, None)
    needed, more = _SCALINGS[kind]
    if kind == "yarn":
        needed = (*needed, "original_max_position_embeddings")
    if kind in ("yarn", "longrope", "llama3"):
        rope.setdefault("original_max_position_embeddings", raw.get("original_max_position_embeddings"))
        if rope["original_max_position_embeddings"] is None:
            rope["original_max_position_embeddings"] = int(raw["max_position_embeddings"])
    for name in needed:
        if rope.get(name) is None:
            raise UserError(f"{path}: rope_parameters of rope_type {kind} need the field {name}")
    _same_everywhere(path, kind, rope, int(raw["max_position_embeddings"]))
    kept = {
        name: rope[name] for name in ("rope_type", "rope_theta", *needed, *more) if rope.get(name) is not None
    }
    for name in ("factor", "low_freq_factor", "high_freq_factor"):  # SGLang takes a whole number for a list
        if name in kept:
            kept[name] = float(kept[name])
    return kept if factor == 1.0 else kept | {"partial_rotary_factor": factor}


def _partial(path: Path, raw: dict[str, Any], rope: dict[str, Any], head_dim: int) -> float:
    """The share of a head that turns; the keys that say so are taken out of `rope`.

    `rope_dim`, a number of dimensions, wins over the others, as it does for SGLang.
    """
    width, inside, outside = (
        rope.pop("rope_dim", None),
        rope.pop("partial_rotary_factor", None),
        raw.get("partial_rotary_factor"),
    )
    if width is not None:
        factor = int(width) / head_dim
        if int(head_dim * factor) != int(width):
            raise UserError(f"{path}: rope_dim {width} is no share of head_dim {head_dim}")
    elif inside is not None and outside is not None and float(inside) != float(outside):
        raise UserError(
            f"{path}: partial_rotary_factor is {outside} in the file and {inside} in its rope_parameters: "
            "SGLang reads the first and vLLM the second, so make them one"
        )
    else:
        factor = float(next((one for one in (inside, outside) if one is not None), 1.0))
    if not 0 < factor <= 1 or int(head_dim * factor) < 2 or int(head_dim * factor) % 2:
        raise UserError(f"{path}: partial_rotary_factor {factor:g} of head_dim {head_dim} is no even width")
    return factor


def _same_everywhere(path: Path, kind: str, rope: dict[str, Any], longest: int) -> None:
    """Refuse what SGLang, vLLM and transformers do not all read of a scaling, unless it changes nothing."""
    usual = {"attn_factor": 1.0, "extrapolation_factor": 1.0, "alpha": None}
    if kind == "yarn":
        factor = float(rope["factor"])
        usual["attention_factor"] = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
        if bool(rope.get("mscale")) != bool(rope.get("mscale_all_dim")):
            raise UserError(f"{path}: rope_parameters of yarn have one of mscale and mscale_all_dim: give both")
        if rope.get("mscale"):
            usual["attention_factor"] = None
    elif kind == "longrope":
        original = float(rope["original_max_position_embeddings"])
        factor = longest / original
        usual["attention_factor"] = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
        usual |= {"factor": factor, "short_mscale": None, "long_mscale": None}
    elif kind == "proportional":
        usual["factor"] = 1.0
    for name, value in usual.items():
        found = rope.get(name)
        if found is not None and (value is None or not math.isclose(float(found), value, rel_tol=1e-6)):
            only = "nothing else" if value is None else f"{value:g}"
            raise UserError(
                f"{path}: {name} of rope_type {kind} is {found}; engines agree on {only} there, so remove it, "
                "or take a drafter without it"
            )


def _contradictions(config: DrafterConfig, raw: dict[str, Any]) -> list[str]:
    """What else engines read of a config, where it means another arithmetic than the rest of it."""
    found = []
    for name in ("is_causal", "causal"):
        if raw.get(name) is not None and (raw[name] or SLIDING in config.layer_types):
            found.append(
                f"{name} is {json.dumps(raw[name])}; here a full layer sees the whole block and a sliding one "
                "only what lies before, so a drafter that was trained otherwise cannot go on"
            )
    others = raw.get("eagle_aux_hidden_state_layer_ids")
    if others and tuple(others) != tuple(tap + 1 for tap in config.target_layer_ids):
        found.append(
            f"eagle_aux_hidden_state_layer_ids {others} are not one more than target_layer_ids "
            f"{list(config.target_layer_ids)}, so engines would tap different layers"
        )
    if raw.get("target_hidden_size") not in (None, config.hidden_size):
        found.append(
            f"target_hidden_size is {raw['target_hidden_size']} and hidden_size {config.hidden_size}; here the "
            "two are one, since embedding and head are the target's"
        )
    if raw.get("draft_vocab_size") not in (None, config.vocab_size):
        found.append(
            f"draft_vocab_size is {raw['draft_vocab_size']} of {config.vocab_size}; a drafter of a reduced "
            "vocabulary has a head of its own, which this one has not"
        )
    return found


# Fields that change what an engine computes (SGLang's `models/dflash.py`, vLLM's `qwen3_dflash.py`, z-lab's
# `model.py`), and the only value that the model here computes with.  To read past another value would train
# one drafter and serve a different one.
_UNSUPPORTED = {
    "hidden_act": "silu",
    "rope_dim": None,
    "rope_is_neox_style": True,
    "is_neox_style": True,
    "use_gemma_norm": False,
    "attention_value_scale": None,
    "attention_sink": False,
    "attention_sink_bias": False,
    "add_swa_attention_sink_bias": False,
    "conv_kernel_size": 0,
    "selector_rank": 0,
    "projector_type": None,
    "output_multiplier": 1.0,
    "logit_scale": 1.0,
    "use_swa": False,
    "swa_window_size": None,
    "use_aux_hidden_state": True,
    "has_embed_tokens": False,
    "has_lm_head": False,
    "sample_from_anchor": False,
    "sliding_window_non_causal": False,
    "quantization_config": None,
}
_WHOLE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "block_size",
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
    found += taps_outside(config, config.num_target_layers)
    if not 0 <= config.mask_token_id < config.vocab_size:
        found.append(f"mask_token_id {config.mask_token_id} is outside the vocabulary of {config.vocab_size}")
    if len(config.layer_types) != config.num_hidden_layers:
        found.append(f"layer_types names {len(config.layer_types)} layers of {config.num_hidden_layers}")
    if set(config.layer_types) - {FULL, SLIDING}:
        found.append(f"layer_types may hold {FULL} and {SLIDING} only")
    for name in ("short_factor", "long_factor"):
        pairs = config.rotary_width // 2
        if len(config.rope_parameters.get(name, [0] * pairs)) != pairs:
            found.append(f"{name} has {len(config.rope_parameters[name])} numbers for {pairs} turning pairs")
    if SLIDING in config.layer_types and not config.sliding_window:
        found.append("layer_types has sliding layers, but sliding_window is missing")
    elif SLIDING in config.layer_types and config.sliding_window < config.block_size:  # type: ignore[operator]
        found.append(f"sliding_window {config.sliding_window} is shorter than a block of {config.block_size}")
    if config.num_attention_heads % config.num_key_value_heads:
        found.append("num_attention_heads is no multiple of num_key_value_heads")
    return found


def taps_outside(config: DrafterConfig, layers: int | None) -> list[str]:
    """What is wrong with the tapped layers for a target of so many layers, if that is known."""
    most = float("inf") if layers is None else layers - 1
    wrong = [tap for tap in config.target_layer_ids if not 0 <= tap < most]
    return [f"target_layer_ids {wrong} are outside 0 to {most - 1}"] if wrong else []
