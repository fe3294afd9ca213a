"""How weights move: optimizers, learning-rate schedules, and the mean of the weights on their way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer

from synthspec.dflash.model import Drafter
from synthspec.spec import Train

Named = dict[str, Tensor]


def learning_rate(step: int, settings: Train) -> float:
    """The learning rate of a step, counted from 0.

    Both schedules rise linearly over `warmup`.  `cosine` then falls to a twentieth.  `wsd` stays where it is
    and falls over the last `cooldown` by 1 − √(share of the fall that is done), the shape that Hägele et al.
    2024 (arXiv 2405.18392) found best.
    """
    warmup = max(1, round(settings.warmup * settings.steps))
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    if settings.schedule == "cosine":
        done = (step - warmup) / max(1, settings.steps - warmup)
        return settings.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
    cooldown = max(1, round(settings.cooldown * settings.steps))
    done = max(0.0, (step + 1 - (settings.steps - cooldown)) / (cooldown + 1))
    return settings.learning_rate * (1 - math.sqrt(done))


def optimizers(drafter: Drafter, settings: Train) -> list[Optimizer]:
    """What moves the weights: AdamW alone, or Muon for the matrices of the layers and AdamW for all else.

    Muon (Jordan et al. 2024) makes the update of a matrix nearly orthogonal.  Its authors leave to AdamW what
    is no matrix, and what stands at a model's entrance or exit; here norms and `fc`.  Its updates are scaled to
    the size of AdamW's (Liu et al. 2025, arXiv 2502.16982), so that one learning rate is good for both.
    """
    named = dict(drafter.named_parameters())
    matrices = [name for name, weight in named.items() if name.startswith("layers.") and weight.ndim == 2]
    found: list[Optimizer] = []
    if settings.optimizer == "muon":
        moved = [named.pop(name) for name in matrices]
        found.append(Muon(moved, lr=settings.learning_rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
    found.append(
        AdamW(named.values(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    )
    return found


def set_learning_rate(moved_by: Sequence[Optimizer], rate: float) -> None:
    for optimizer in moved_by:
        for group in optimizer.param_groups:
            group["lr"] = rate


@torch.no_grad()
def follow(mean: Named, weights: Iterable[tuple[str, Tensor]], step: int, decay: float) -> None:
    """Move the exponential mean of the weights towards where they are after a step, counted from 0.

    mean ← d · mean + (1 − d) · weights, with d = min(decay, (1 + n) / (10 + n)) after n steps: the start, which
    is no better than any other point, would else weigh in a short training as much as all that follows.
    """
    now = min(decay, (2 + step) / (11 + step))
    for name, weight in weights:
        mean[name].lerp_(weight.detach(), 1 - now)
