"""Drafter folders: config.json and model.safetensors in the z-lab layout, checked name by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from synthspec.dflash.config import DrafterConfig, read_config
from synthspec.dflash.model import Drafter
from synthspec.errors import UserError
from synthspec.files import file_digest, whole, write_json

WEIGHTS = "model.safetensors"


def save(drafter: Drafter, folder: Path) -> None:
    """Write a drafter as bfloat16 weights and a config; each file appears whole."""
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in drafter.state_dict().items()
    }
    with whole(folder / WEIGHTS) as part:
        part.write_bytes(to_bytes(tensors, metadata={"format": "pt"}))
    write_json(folder / "config.json", drafter.config.to_json())


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Drafter:
    """Read a drafter folder.

    Raises:
        UserError: a file is missing or cut short, or a weight is missing, unknown or of another shape.
    """
    config = read_config(folder)
    path = folder / WEIGHTS
    if not path.exists():
        raise UserError(f"{folder} holds no weights: {WEIGHTS} is missing")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError):
        raise UserError(f"{path} is cut short or no safetensors file: copy it again") from None
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
    drafter.load_state_dict(tensors)
    return drafter.to(dtype)


def check_fits(config: DrafterConfig, folder: Path, *, hidden_size: int, layers: int, vocabulary: int) -> None:
    """Refuse a drafter that was made for another target.

    Raises:
        UserError: naming the first number that differs.
    """
    for name, ours, theirs in (
        ("hidden_size", config.hidden_size, hidden_size),
        ("num_target_layers", config.num_target_layers, layers),
        ("vocab_size", config.vocab_size, vocabulary),
    ):
        if ours != theirs:
            raise UserError(
                f"{folder} is a drafter for another target: its {name} is {ours}, this target's is {theirs}"
            )


def export(drafter: Path, out: Path, target: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write the folder that an engine serves: config, weights, and a manifest that binds them to a target.

    Args:
        drafter: the folder to export; it is read and checked first.
        target: `targets.load.describe_target` of the target it was trained for.
        facts: what else the manifest should say (run, gate, overridden or not).
    """
    save(load(drafter), out)
    write_json(
        out / "manifest.json",
        {
            "version": 1,
            "weights_sha256": file_digest(out / WEIGHTS),
            "config_sha256": file_digest(out / "config.json"),
            "target": target,
            **facts,
        },
    )
