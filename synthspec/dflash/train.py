"""Mid-training: a drafter that works already learns the traffic of the training set."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from synthspec.dflash.batches import Batch, Document, documents_of_step, draw
from synthspec.dflash.features import Features
from synthspec.dflash.loss import Among, decay, draw_among, head_cross_entropy, multiplies_bfloat16, usual_gamma
from synthspec.dflash.model import Drafter
from synthspec.errors import UserError
from synthspec.files import whole
from synthspec.spec import Train
from synthspec.targets.causal import CausalModel

STATE = "state.safetensors"


def learning_rate(step: int, settings: Train) -> float:
    """Linear warm-up, then cosine to a twentieth."""
    warmup = max(1, round(settings.warmup * settings.steps))
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, settings.steps - warmup)
    return settings.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


SOFT = 0.5  # share of the target's own distribution in what is learned, where it was kept


def block_loss(
    drafter: Drafter, model: CausalModel, batch: Batch, among: Among | None = None
) -> tuple[Tensor, float]:
    """Mean weighted cross entropy of a batch's guesses, and the mean probability of the right first token.

    L = Σ w · (−Σ q log p) / Σ w over all guesses of all blocks, w from `loss.decay`; q is all on the token
    that was written or, where what the target foresaw was kept, half of it is, and half is as foreseen.

    Args:
        among: the tokens that the softmax runs over; by default all.
    """
    tokens = batch.ids.clone()
    tokens[:, :, 1:] = drafter.config.mask_token_id
    device = batch.features.device
    dtype = model.dtype if multiplies_bfloat16(device) else torch.promote_types(model.dtype, torch.float32)
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        context = drafter.inject(batch.features.to(dtype), _places(batch))
        hidden = drafter(model.embedding(tokens).to(dtype), batch.at, context, batch.seen)
    real = batch.weights > 0
    head, labels = model.head.weight, batch.ids[:, :, 1:][real]
    wanted = None
    if batch.soft.any():
        share = SOFT * batch.soft[:, None, None].expand_as(real)[real][:, None]
        wanted = torch.lerp(head[labels].float(), batch.expected[:, :, 1:][real].float(), share)
    total, odds = head_cross_entropy(hidden[:, :, 1:][real], head, labels, batch.weights[real], wanted, among)
    first = torch.zeros_like(real)
    first[..., 0] = True
    return total / batch.weights.sum(), float(odds[first[real]].mean())


def _places(batch: Batch) -> Tensor:
    rows, longest = batch.features.shape[:2]
    return torch.arange(longest, device=batch.features.device).expand(rows, -1)


def fit(
    drafter: Drafter,
    model: CausalModel,
    documents: Sequence[Document],
    features: Features,
    settings: Train,
    out: Path,
    seed: int,
    *,
    evaluate: Callable[[Drafter], dict[str, Any]] | None = None,
    keep: Callable[[Drafter, int], None] | None = None,
    tick: Callable[[int], None] = lambda n: None,
) -> list[dict[str, Any]]:
    """Train a drafter, in place, and return the log.

    Killed and started again it goes on from its last checkpoint, and ends with the same weights, since
    a step draws everything from the seed and its own number.

    Args:
        documents: what to learn from, with their `features` in the same order.
        out: folder of the resumable state.
        evaluate: gives what the log shall say of a drafter's acceptance; called at each checkpoint.
        keep: called at each checkpoint with the drafter and its step.
        tick: called with the number of steps done.

    Returns:
        One entry a checkpoint, and one for step 0: `step`, `loss` and `first_guess` (means since the
        entry before), and what `evaluate` gave.
    """
    block_size = drafter.config.block_size
    weights = decay(block_size, settings.loss_gamma or usual_gamma(block_size))
    optimizer = torch.optim.AdamW(
        drafter.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    known = torch.cat([document.ids for document in documents]).unique()
    log = _resume(drafter, optimizer, out)
    if not log:
        log = [{"step": 0} | (evaluate(drafter) if evaluate else {})]
    first = log[-1]["step"]
    tick(first)
    losses: list[float] = []
    guesses: list[float] = []
    for step in range(first, settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings)
        chosen = documents_of_step(len(documents), settings.batch_documents, step, seed)
        batch = draw(
            documents,
            features,
            chosen,
            anchors=settings.anchors,
            block_size=block_size,
            decay=weights,
            seed=seed,
            step=step,
        )
        among = None
        if settings.negatives is not None:
            dice = torch.Generator().manual_seed(seed * 1_000_003 + step)
            among = draw_among(known, drafter.config.vocab_size, settings.negatives, dice)
        loss, odds = block_loss(drafter, model, batch.to(model.device), among)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        guesses.append(odds)
        tick(1)
        if (step + 1) % settings.checkpoint_every == 0 or step + 1 == settings.steps:
            entry: dict[str, Any] = {
                "step": step + 1,
                "loss": sum(losses) / len(losses),
                "first_guess": sum(guesses) / len(guesses),
            }
            losses, guesses = [], []
            if evaluate:
                entry |= evaluate(drafter)
            if keep:
                keep(drafter, step + 1)
            log.append(entry)
            _save_state(drafter, optimizer, log, out)
    return log


def _save_state(drafter: Drafter, optimizer: torch.optim.AdamW, log: list[dict[str, Any]], out: Path) -> None:
    tensors = {f"weight.{name}": parameter.detach() for name, parameter in drafter.named_parameters()}
    for name, parameter in drafter.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key}.{name}"] = value.detach()
    with whole(out / STATE) as part:
        flat = {name: tensor.to("cpu").contiguous() for name, tensor in tensors.items()}
        part.write_bytes(to_bytes(flat, {"log": json.dumps(log)}))


def _resume(drafter: Drafter, optimizer: torch.optim.AdamW, out: Path) -> list[dict[str, Any]]:
    """Take up the last state in `out`, if there is one; return its log."""
    path = out / STATE
    if not path.exists():
        return []
    try:
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            log: list[dict[str, Any]] = json.loads(file.metadata()["log"])
    except (SafetensorError, OSError, KeyError, ValueError):
        raise UserError(f"{path} is damaged: remove it, and training begins again") from None
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            parameter.copy_(tensors[f"weight.{name}"])
            keys = ("step", "exp_avg", "exp_avg_sq")
            state = {key: tensors[f"{key}.{name}"] for key in keys}
            optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}
    return log
