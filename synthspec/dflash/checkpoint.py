"""Drafter folders: config.json and model.safetensors, checked name by name, and who they were made for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from synthspec.dflash.config import DrafterConfig, read_config, read_raw, taps_outside
from synthspec.dflash.model import Drafter
from synthspec.dflash.speculators import OF_THE_TARGET, to_speculators
from synthspec.errors import UserError, first_line
from synthspec.files import file_digest, is_folder, whole, write_json

WEIGHTS = "model.safetensors"
MASK_EMBEDDING = (
    "mask_embedding.pt"  # a trained embedding of the mask, which engines put in place of the target's
)
Format = Literal["sglang", "vllm", "transformers"]
FORMATS: tuple[Format, ...] = ("sglang", "vllm", "transformers")


def save(drafter: Drafter, folder: Path) -> None:
    """Write a drafter as bfloat16 weights and a config in the z-lab layout; each file appears whole."""
    _write(drafter, folder, drafter.config.to_json())


def _write(drafter: Drafter, folder: Path, config: dict[str, Any]) -> None:
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in drafter.state_dict().items()
    }
    with whole(folder / WEIGHTS) as part:
        part.write_bytes(to_bytes(tensors, metadata={"format": "pt"}))
    write_json(folder / "config.json", config)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Drafter:
    """Read a drafter folder in the z-lab layout, or in that of speculators.

    Raises:
        UserError: a file is missing or cut short, or a weight is missing, unknown, of another shape, or no
            finite number.
    """
    config = read_config(folder)
    check_files(folder)
    path = folder / WEIGHTS
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError):
        raise UserError(f"{path} is cut short or no safetensors file: copy it again") from None
    if "speculators_model_type" in read_raw(folder):
        tensors = {name: tensor for name, tensor in tensors.items() if name not in OF_THE_TARGET}
    drafter = Drafter(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in drafter.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(wanted.keys() - found.keys()):
        raise UserError(f"{path}: the weight {name} is missing, so this is not the drafter of config.json")
    for name in sorted(found.keys() - wanted.keys()):
        raise UserError(f"{path}: the weight {name} is unknown to a DFlash drafter of config.json's shape")
    for name, shape in sorted(wanted.items()):
        if found[name] != shape:
            raise UserError(f"{path}: the weight {name} is {found[name]}; config.json makes it {shape}")
        if not tensors[name].is_floating_point():
            raise UserError(
                f"{path}: the weight {name} is of {str(tensors[name].dtype).removeprefix('torch.')}: a "
                "quantised drafter cannot be trained, take the one that it was made from"
            )
        if not tensors[name].isfinite().all():
            raise UserError(
                f"{path}: the weight {name} holds what is no finite number: take another checkpoint"
            )
    drafter.load_state_dict(tensors)
    return drafter.to(dtype)


def check_files(folder: Path) -> None:
    """See that a drafter's weights are there, in one file, and with nothing beside that changes them.

    Raises:
        UserError: they are missing, spread over files, or need a mask embedding of their own.
    """
    if not (folder / WEIGHTS).is_file():
        if (folder / f"{WEIGHTS}.index.json").is_file():
            raise UserError(f"{folder}: the weights are spread over several files: save them as one {WEIGHTS}")
        raise UserError(f"{folder} holds no weights: {WEIGHTS} is missing")
    if (folder / MASK_EMBEDDING).is_file():
        raise UserError(
            f"{folder / MASK_EMBEDDING}: this drafter has a mask embedding of its own, which training here "
            "would not use: take a drafter without one"
        )


def find(start: str, root: Path | None = None) -> Path:
    """The folder of a drafter to start from; one of the hub is fetched, or taken from the cache.

    Args:
        start: `smollm2`, a folder, or a hub id with its commit, `owner/name@commit`.
        root: what a relative folder is relative to.

    Raises:
        UserError: there is no such drafter, or it cannot be fetched.
    """
    if start == "smollm2":
        return Path(str(files("synthspec.examples") / "starting-drafter"))
    folder = (root or Path()) / start
    if is_folder(folder):
        return folder
    named = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@(\w+))?", start)
    if named and named[2]:
        return _fetch(named[1], named[2])
    raise UserError(
        f"train.start: there is no folder {folder}; give a drafter's folder, a hub id with its commit "
        "(owner/name@commit), or smollm2"
    )


def _fetch(repository: str, commit: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = ["config.json", "*.safetensors", "*.safetensors.index.json", "manifest.json", MASK_EMBEDDING]
    name = f"train.start: {repository}@{commit}"
    try:
        return Path(snapshot_download(repository, revision=commit, allow_patterns=wanted))
    except GatedRepoError:
        raise UserError(f"{name} is not open to all: ask for access there, and give hub.key") from None
    except RevisionNotFoundError:
        raise UserError(f"{name}: the hub has no such commit of it; look at its history there") from None
    except RepositoryNotFoundError:
        raise UserError(f"{name}: the hub has no such model, or not for this key (hub.key)") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise UserError(
            f"{name} is not in the cache and the hub cannot be reached: fetch it where there is a network, or "
            "give its folder"
        ) from None
    except Exception as error:  # a network fails in a hundred ways
        raise UserError(
            f"{name} cannot be fetched ({first_line(error)}): try again, or give its folder"
        ) from None


def check_fits(
    config: DrafterConfig,
    folder: Path,
    *,
    hidden_size: int,
    layers: int,
    vocabulary: int,
    target: dict[str, Any] | None = None,
) -> None:
    """Refuse a drafter that was made for another target.

    Args:
        target: `targets.load.describe_target`, to hold against the manifest that an export of ours has.

    Raises:
        UserError: naming the first thing that differs.
    """
    for name, ours, theirs in (
        ("hidden_size", config.hidden_size, hidden_size),
        ("num_target_layers", config.num_target_layers, layers),
        ("vocab_size", config.vocab_size, vocabulary),
    ):
        if ours != theirs and ours is not None:
            raise UserError(
                f"{folder} is a drafter for another target: its {name} is {ours}, this target's is {theirs}"
            )
    for wrong in taps_outside(config, layers):
        raise UserError(f"{folder} is a drafter for another target: its {wrong}")
    if target is None:
        return
    scale, given = config.input_embedding_scale, target.get("embedding_scale", 1.0)
    if scale is not None and not math.isclose(scale, given, rel_tol=1e-2):
        raise UserError(
            f"{folder}: input_embedding_scale is {scale:g}, and this target multiplies its embeddings by "
            f"{given:g} before a drafter sees them: take a drafter that was trained so"
        )
    _check_manifest(folder / "manifest.json", target)


def _check_manifest(path: Path, target: dict[str, Any]) -> None:
    """Refuse an export of ours that names another target."""
    try:
        made_for = json.loads(path.read_text(encoding="utf-8"))["target"]
        facts = {
            name: made_for.get(name) for name in ("model", "tokenizer_sha256", "weights_sha256", "revision")
        }
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} makes no sense: restore it, or remove it and with it what it says") from None
    known = facts["weights_sha256"] and target.get("weights_sha256")
    for name in ("tokenizer_sha256", "weights_sha256" if known else "revision"):
        ours, theirs = facts[name], target.get(name)
        if ours and theirs and ours != theirs:
            raise UserError(
                f"{path}: the drafter was trained for {facts['model']} with {name} {ours[:12]}, and this "
                f"target's is {theirs[:12]}: take the drafter of this target; to start from this one all the "
                "same, copy it without its manifest.json"
            )


def check_mask(config: DrafterConfig, folder: Path, tokenizer: Any, stop_ids: Collection[int] = ()) -> None:
    """Refuse a mask token that the target writes: an ordinary piece of text, or the end of an answer.

    Args:
        tokenizer: the target's.

    Raises:
        UserError: naming the token.
    """
    mask = config.mask_token_id
    ordinary = mask < len(tokenizer) and mask not in tokenizer.added_tokens_decoder
    if ordinary or mask in (tokenizer.bos_token_id, tokenizer.eos_token_id, *stop_ids):
        raise UserError(
            f"{folder}: mask_token_id {mask} is {tokenizer.convert_ids_to_tokens(mask)!r} to this target's "
            "tokenizer, a token that it writes; a mask must be a token that is never written"
        )


def export(drafter: Path, out: Path, target: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write the folder that SGLang serves: config, weights, and a manifest that binds them to a target.

    Args:
        drafter: the folder to export; it is read and checked first.
        target: `targets.load.describe_target` of the target it was trained for.
        facts: what else the manifest should say (run, gate, overridden or not).
    """
    save(load(drafter), out)
    _bind(out, {"version": 1}, target, facts)


def _bind(out: Path, first: dict[str, Any], target: dict[str, Any], facts: dict[str, Any]) -> None:
    digests = {
        "weights_sha256": file_digest(out / WEIGHTS),
        "config_sha256": file_digest(out / "config.json"),
    }
    write_json(out / "manifest.json", {**first, **digests, "target": target, **facts})


def export_as(
    kind: Format, exported: Path, out: Path, *, target: str, architectures: Sequence[str], scale: float
) -> None:
    """Write an export again, in the layout of another engine; its manifest goes along.

    Args:
        kind: `sglang`, the z-lab layout as it is; `vllm`, that of speculators; `transformers`, the z-lab layout
            with what z-lab's package needs to know of the target.
        exported: a folder that `export` wrote.
        target: the target's folder or hub id.
        architectures: as the target's config.json names them.
        scale: what the target multiplies its embeddings by.

    Raises:
        UserError: that engine would compute something else.
    """
    drafter = load(exported)
    manifest = json.loads((exported / "manifest.json").read_text(encoding="utf-8"))
    config = drafter.config
    if kind == "vllm":
        if scale != 1.0:
            raise UserError(
                f"{exported}: this target multiplies its embeddings by {scale:g}, which vLLM does behind the "
                "embedding that it lends to a drafter: serve it with SGLang"
            )
        content = to_speculators(config, target, architectures)
    else:
        content = config.to_json()
    if kind == "transformers":
        if config.rope_parameters["rope_type"] == "dynamic":
            raise UserError(
                f"{exported}: with rope_type dynamic, z-lab's code turns slower as a text grows, unlike this "
                "drafter and the engines that serve it: serve it with SGLang or vLLM"
            )
        if config.rotary_width < config.head_dim:
            raise UserError(
                f"{exported}: z-lab's code can only turn a whole head, and of this drafter's {config.head_dim} "
                f"dimensions {config.rotary_width} turn: serve it with SGLang or vLLM"
            )
        if scale != 1.0:
            content["dflash_config"]["input_embedding_scale"] = scale
    _write(drafter, out, content)
    names = ("version", "weights_sha256", "config_sha256", "target")
    rest = {name: value for name, value in manifest.items() if name not in names}
    _bind(out, {"version": 1, "format": kind}, manifest["target"], rest)
