"""Mid-training: a drafter that works already learns the traffic of the training set."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from synthspec.dflash import ranks
from synthspec.dflash.batches import Batch, Document, documents_of_step, draw
from synthspec.dflash.features import Features, Online
from synthspec.dflash.loss import Among, draw_among, multiplies_bfloat16
from synthspec.dflash.model import Drafter, KeysValues
from synthspec.dflash.objectives import (
    OBJECTIVES,
    Guesses,
    alphas,
    cross_entropy_share,
    divisor,
    position_weights,
)
from synthspec.dflash.optimize import Named, follow, learning_rate, optimizers, set_learning_rate
from synthspec.dflash.state import resume, save_state
from synthspec.errors import UserError
from synthspec.spec import Train

if TYPE_CHECKING:
    from synthspec.targets.causal import CausalModel

Row = dict[str, Any]


def block_loss(
    drafter: Drafter,
    model: CausalModel,
    batch: Batch,
    among: Among | None = None,
    settings: Train | None = None,
    means: Tensor | None = None,
) -> tuple[Tensor, float]:
    """The objective of a batch's guesses, and the mean probability of the right first token.

    Args:
        among: the tokens that a softmax runs over; by default all.
        settings: name the objective, one of `objectives.OBJECTIVES`; by default decayed cross entropy.
        means: as in `objectives.Guesses`.
    """
    settings = settings or Train()
    guesses = replace(_guesses(drafter, model, batch, among), means=means)
    loss, odds = OBJECTIVES[settings.objective](guesses, cross_entropy_share(settings))
    first = torch.zeros_like(batch.real)
    first[..., 0] = True
    return loss, float(odds[first[batch.real]].mean())


def _guesses(drafter: Drafter, model: CausalModel, batch: Batch, among: Among | None) -> Guesses:
    """What the drafter guesses of a batch."""
    tokens = batch.ids.clone()
    tokens[:, :, 1:] = drafter.config.mask_token_id
    device = batch.features.device
    dtype = model.dtype if multiplies_bfloat16(device) else torch.promote_types(model.dtype, torch.float32)
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        context = _injected(drafter, batch.features.to(dtype), batch.lengths, batch.seen.shape[-1])
        hidden = drafter(model.embedding(tokens).to(dtype), batch.at, context, batch.seen)
    real = batch.real
    return Guesses(
        hidden=hidden[:, :, 1:][real],
        head=model.head.weight,
        labels=batch.ids[:, :, 1:][real],
        real=real,
        weights=batch.weights,
        foreseen=batch.expected[:, :, 1:][real],
        soft=batch.soft[:, None, None].expand_as(real)[real],
        among=among,
        cap=model.cap,
    )


def _injected(drafter: Drafter, features: Tensor, lengths: Tensor, longest: int) -> list[KeysValues]:
    """The keys and values of packed documents, [B, G, T, D] each; padding is in them alone, as zeros."""
    slots = torch.arange(longest, device=features.device)
    real = slots < lengths[:, None]  # [B, T]

    def apart(packed: Tensor) -> Tensor:
        _, heads, _, width = packed.shape
        padded = packed.new_zeros(*real.shape, heads, width)
        padded[real] = packed[0].transpose(0, 1)
        return padded.transpose(1, 2)

    packed = drafter.inject(features[None], slots.expand_as(real)[real][None])
    return [(apart(keys), apart(values)) for keys, values in packed]


class Step(nn.Module):
    """Drafter and loss as one module, whose forward pass is all of a step: what ranks spread."""

    def __init__(self, drafter: Drafter, model: CausalModel, settings: Train | None = None) -> None:
        super().__init__()
        self.drafter = drafter
        self._model = model
        self._settings = settings

    def forward(
        self, batch: Batch, among: Among | None, means: Tensor | None = None, *, count: bool = False
    ) -> tuple[Tensor, float] | tuple[Tensor, Tensor]:
        """What `block_loss` gives, or, to `count`, what `objectives.alphas` does."""
        if count:
            return alphas(_guesses(self.drafter, self._model, batch, among))
        return block_loss(self.drafter, self._model, batch, among, self._settings, means)


def gradient(
    step: nn.Module,
    batches: Sequence[Callable[[], Batch]],
    among: Among | None = None,
    settings: Train | None = None,
) -> tuple[float, float]:
    """Leave in every weight of a `Step` the gradient of the objective over all batches of all ranks.

    It is that of all guesses together, Σ total / Σ divisor, so it does not depend on how they are cut into
    batches and ranks: each adds the gradient of its total, and the sum is divided in the end.

    Args:
        batches: give this rank's batches, on the target's device, one after the other; of `lk_lambda`, whose λ
            is of all guesses, they are drawn twice.
        settings: those of the `Step`.

    Returns:
        The objective, and the mean probability of the right first token.
    """
    if len(batches) == 1 and ranks.count() == 1:
        loss, odds = step(batches[0](), among)
        loss.backward()
        return float(loss.detach()), odds
    objective = (settings or Train()).objective
    means = _means(step, batches, among) if objective == "lk_lambda" else None
    sums = [0.0] * 4
    for number, drawn in enumerate(batches):
        batch = drawn()
        weight, firsts = float(divisor(objective, batch)), float(batch.real[..., 0].sum())
        with ranks.alone(step) if number + 1 < len(batches) else nullcontext():
            loss, odds = step(batch, among, means)
            (loss * weight).backward()
        parts = float(loss.detach()) * weight, weight, odds * firsts if firsts else 0.0, firsts
        sums = [one + more for one, more in zip(sums, parts, strict=True)]
    total, weight, odds, firsts = ranks.total(sums)
    weight = weight or 1.0  # nothing weighs anything, and all gradients are 0
    for parameter in step.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(ranks.count() / weight)  # ranks have left the mean of theirs
    return total / weight, odds / firsts


def _means(step: nn.Module, batches: Sequence[Callable[[], Batch]], among: Among | None) -> Tensor:
    """The mean of α over the k-th guesses of all batches of all ranks, [S − 1]."""
    with torch.no_grad():
        found = [torch.stack(step(drawn(), among, count=True)) for drawn in batches]
    both = torch.stack(found).sum(0)
    sums, counts = torch.tensor(ranks.total(both.flatten().tolist())).view(2, -1)
    means: Tensor = sums / counts.clamp(min=1)
    return means.to(both.device)


def fit(
    drafter: Drafter,
    model: CausalModel,
    documents: Sequence[Document],
    features: Features | Online,
    settings: Train,
    out: Path,
    seed: int,
    *,
    evaluate: Callable[[Drafter], Row] | None = None,
    keep: Callable[[Drafter, int], None] | None = None,
    stop: Callable[[Sequence[Row]], str | None] = lambda log: None,
    tick: Callable[[int, int], None] = lambda n, tokens: None,
    told: Callable[[int, dict[str, float]], None] | None = None,
) -> list[Row]:
    """Train a drafter, in place, and return the log.

    Killed and started again it goes on from its last checkpoint; a step draws everything from the seed and
    its own number, so on a CPU it ends with the same weights, bit for bit.  On several ranks each takes its
    share of a step's documents; rank 0 alone calls what is given here, and writes.

    Args:
        documents: what to learn from, with their `features` in the same order.
        out: folder of the resumable state.
        evaluate: gives what the log shall say of a drafter's acceptance; called at each checkpoint.
        keep: called at each checkpoint with the drafter and its step.  With `settings.ema` both get the mean of
            the weights on their way.
        stop: says from the log, at each checkpoint, why training shall end before its last step, if it shall.
        tick: called with the number of steps done and the tokens of their documents.
        told: called after each step, and at each checkpoint, with the step and what is known then by name.

    Returns:
        One entry a checkpoint, and one for step 0: `step`, `loss` and `first_guess` (means since the
        entry before), what `evaluate` gave, and `stopped`, why it was the last.

    Raises:
        UserError: there are more ranks than documents in a batch, the state in `out` is of another drafter or
            optimizer, or the gradient is no number.
        Stopped: the disk is full; the state written before is as it was.
    """
    size = settings.batch_documents
    ranks.on_first(partial(ranks.check_share, size))
    block_size = drafter.config.block_size
    weights = position_weights(settings, block_size)
    lengths = torch.tensor([len(document.ids) for document in documents]) if settings.by_length else None
    step_of = ranks.spread(Step(drafter, model, settings), model.device, shard=settings.shard)
    moved_by = optimizers(drafter, settings)
    mean: Named | None = None
    if settings.ema:
        mean = {name: weight.detach().clone() for name, weight in drafter.named_parameters()}
    known = torch.cat([document.ids for document in documents]).unique()

    def judged() -> Drafter:
        """What is measured and kept; every rank must ask."""
        if mean is None and not (settings.shard and ranks.count() > 1):
            return drafter
        return _gathered(drafter, dict(drafter.named_parameters()) if mean is None else mean)

    log = ranks.together(lambda: resume(drafter, moved_by, mean, out))
    if not log:
        start = judged()
        log = [ranks.on_first(lambda: {"step": 0} | (evaluate(start) if evaluate else {}))]
    if "stopped" in log[-1]:
        return log
    first = log[-1]["step"]
    if ranks.rank() == 0:
        tick(first, 0)
    losses: list[float] = []
    guesses: list[float] = []
    for step in range(first, settings.steps):
        set_learning_rate(moved_by, rate := learning_rate(step, settings))
        chosen = documents_of_step(len(documents), size * settings.accumulate, step, seed, lengths)
        among = None
        if settings.negatives is not None:
            dice = torch.Generator().manual_seed(seed * 1_000_003 + step)
            among = draw_among(known, drafter.config.vocab_size, settings.negatives, dice)

        def batch(place: int, chosen: list[int] = chosen, step: int = step) -> Batch:
            """This rank's share of the documents from a place in the step's."""
            mine = ranks.share(size)
            part = slice(place + mine.start, place + mine.stop)
            return draw(
                documents,
                features.only(chosen[part]),
                chosen,
                anchors=settings.anchors,
                block_size=block_size,
                decay=weights,
                seed=seed,
                step=step,
                part=part,
                max_context=settings.max_context,
            ).to(model.device)

        for optimizer in moved_by:
            optimizer.zero_grad(set_to_none=True)
        parts = [partial(batch, place) for place in range(0, len(chosen), size)]
        loss, odds = gradient(step_of, parts, among, settings)
        norm = float(ranks.whole(nn.utils.clip_grad_norm_(drafter.parameters(), settings.clip)))
        if not math.isfinite(norm):  # on every rank alike, and said by one
            ranks.on_first(partial(_diverged, step + 1, settings))
        for optimizer in moved_by:
            optimizer.step()
        if mean is not None and settings.ema:
            follow(mean, drafter.named_parameters(), step, settings.ema)
        losses.append(loss)
        guesses.append(odds)
        if ranks.rank() == 0:
            tick(1, sum(len(documents[document].ids) for document in chosen))
            if told:
                numbers = {"loss": loss, "first_guess": odds, "learning_rate": rate}
                told(step + 1, numbers | {"gradient_norm": norm})
        if (step + 1) % settings.checkpoint_every == 0 or step + 1 == settings.steps:
            entry: Row = {
                "step": step + 1,
                "loss": sum(losses) / len(losses),
                "first_guess": sum(guesses) / len(guesses),
            }
            losses, guesses = [], []
            may_stop = stop if step + 1 < settings.steps else None
            judge = partial(_judge, judged(), entry, log, evaluate, keep, may_stop, told)
            log.append(ranks.on_first(judge))
            save_state(drafter, moved_by, mean, log, out)
            if "stopped" in log[-1]:
                break
    return log


def _diverged(step: int, settings: Train) -> None:
    raise UserError(
        f"train.learning_rate: at step {step} the gradient is no number any more: lower it from "
        f"{settings.learning_rate:g}, or raise train.warmup"
    )


def _gathered(drafter: Drafter, weights: Named) -> Drafter:
    """On rank 0, a drafter with these weights, each of them whole."""
    found = Drafter(drafter.config).to(drafter.fc.weight.device) if ranks.rank() == 0 else None
    own = dict(found.named_parameters()) if found else {}
    for name, weight in weights.items():
        full = ranks.whole(weight.detach())
        if found:
            own[name].data.copy_(full)
    return found or drafter


def _judge(
    drafter: Drafter,
    entry: Row,
    log: Sequence[Row],
    evaluate: Callable[[Drafter], Row] | None,
    keep: Callable[[Drafter, int], None] | None,
    stop: Callable[[Sequence[Row]], str | None] | None,
    told: Callable[[int, dict[str, float]], None] | None,
) -> Row:
    """The entry of a checkpoint, with what is measured of its drafter and whether training ends with it."""
    if evaluate:
        entry |= evaluate(drafter)
    if keep:
        keep(drafter, entry["step"])
    if told and "accept_len" in entry:
        told(entry["step"], {f"accept_len/{name}": value for name, value in entry["accept_len"].items()})
    if stop and (why := stop([*log, entry])):
        entry["stopped"] = why
    return entry
