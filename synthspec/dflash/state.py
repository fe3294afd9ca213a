"""What training goes on from when it was killed: one file, the same whatever ranks wrote it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.optim import AdamW, Optimizer

from synthspec.dflash import ranks
from synthspec.dflash.model import Drafter
from synthspec.dflash.optimize import Named
from synthspec.errors import UserError
from synthspec.files import whole

STATE = "state.safetensors"

Row = dict[str, Any]


def save_state(
    drafter: Drafter, moved_by: Sequence[Optimizer], mean: Named | None, log: list[Row], out: Path
) -> None:
    """Write weights, what the optimizers keep, the weights' mean if there is one, and the log; rank 0 does.

    Raises:
        Stopped: the disk is full; what was written before is as it was.
    """
    tensors: Named = {}
    for name, weight in drafter.named_parameters():
        tensors[f"weight.{name}"] = weight.detach()
        for key, value in _state_of(moved_by, weight).items():
            tensors[f"{key}.{name}"] = value.detach()
        if mean is not None:
            tensors[f"mean.{name}"] = mean[name]
    flat = {}
    for name, tensor in tensors.items():
        full = ranks.whole(tensor)
        if ranks.rank() == 0:
            flat[name] = full.to("cpu").contiguous()

    def write() -> None:
        with whole(out / STATE) as part:
            part.write_bytes(to_bytes(flat, {"log": json.dumps(log)}))

    ranks.on_first(write)


def resume(drafter: Drafter, moved_by: Sequence[Optimizer], mean: Named | None, out: Path) -> list[Row]:
    """Take up the last state in `out`, if there is one; return its log.

    Raises:
        UserError: it is damaged, or was written with another optimizer or drafter, or without the mean.
    """
    path = out / STATE
    if not path.exists():
        return []
    try:
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            log: list[Row] = json.loads(file.metadata()["log"])
    except (SafetensorError, OSError, KeyError, ValueError):
        raise UserError(f"{path} is damaged: remove it, and training begins again") from None
    wanted: Named = {f"weight.{name}": weight for name, weight in drafter.named_parameters()}
    if mean is not None:
        wanted |= {f"mean.{name}": one for name, one in mean.items()}
    kept = [
        (f"{key}.{name}", weight)
        for name, weight in drafter.named_parameters()
        for key in _kept_by(_owner(moved_by, weight))
    ]
    same = tensors.keys() == wanted.keys() | {name for name, _ in kept}
    if not same or any(tensors[name].shape != tensor.shape for name, tensor in wanted.items()):
        raise UserError(
            f"{path} was written by a training with other settings: remove it, and training begins again"
        )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(ranks.like(tensors[name], tensor))
    for name, weight in kept:
        key = name.partition(".")[0]
        _owner(moved_by, weight).state[weight][key] = ranks.like(tensors[name], weight)
    return log


def _owner(moved_by: Sequence[Optimizer], weight: Tensor) -> Optimizer:
    return next(
        optimizer
        for optimizer in moved_by
        if any(weight is one for group in optimizer.param_groups for one in group["params"])
    )


def _state_of(moved_by: Sequence[Optimizer], weight: Tensor) -> Row:
    state: Row = _owner(moved_by, weight).state[weight]
    return state


def _kept_by(optimizer: Optimizer) -> tuple[str, ...]:
    """The names of what an optimizer keeps of each weight."""
    return ("step", "exp_avg", "exp_avg_sq") if isinstance(optimizer, AdamW) else ("momentum_buffer",)
