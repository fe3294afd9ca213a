"""Batched generation with a model in this process, free or under a constraint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from synthspec.targets.causal import CausalModel
from synthspec.targets.ragged import RaggedCache


class TokenRule(Protocol):
    """What may follow, token by token; one per request."""

    def fill(self, bitmask: Tensor, row: int) -> None:
        """Write the tokens allowed next into row `row` of an int32 bitmask [rows, ⌈vocabulary / 32⌉]."""

    def accept(self, token: int) -> None:
        """Move on by one token, which must be an allowed one."""


@dataclass(frozen=True)
class Ask:
    """One prompt to continue.

    Args:
        ids: the prompt's token ids.
        max_new_tokens: the most tokens to write.
        constraint: what may be written, or None for anything.
        temperature: 0 takes the likeliest token, more samples.
        seed: of this row's own random numbers, so that an answer does not depend on its neighbours'.
        top_p, top_k: as in `sample`.
        logprobs: give the log-probability of every token too.
    """

    ids: Sequence[int]
    max_new_tokens: int
    constraint: TokenRule | None = None
    temperature: float = 0.0
    seed: int = 0
    top_p: float = 1.0
    top_k: int | None = None
    logprobs: bool = False


@dataclass(frozen=True)
class Answer:
    """What was written, the end token included, and why it ended: `stop` or `length`.

    Args:
        logprobs: of each token, at temperature 1 and among those that the constraint left, if asked for.
    """

    ids: list[int]
    finish_reason: str
    logprobs: list[float] | None = None


def prefill(
    model: CausalModel,
    prompts: Sequence[Sequence[int]],
    cache: RaggedCache | None,
    taps: Sequence[int] = (),
) -> tuple[Tensor, Tensor | None]:
    """Read prompts into an empty cache; what all of them begin with is computed once.

    Args:
        prompts: token ids of each row; none may be empty.
        cache: None keeps nothing, and shares no beginning.
        taps: as in `CausalModel.forward`.

    Returns:
        Final hidden states of every row's last token [rows, hidden], and the taps of all tokens
        [rows, longest, width], right-padded with values that mean nothing, or None.
    """
    common = _common(prompts) if cache is not None and len(prompts) > 1 else 0
    device = model.device
    before = None
    if common:
        assert cache is not None
        ids = torch.tensor([list(prompts[0][:common])], device=device)
        _, before = model.forward(ids, torch.arange(common, device=device)[None], cache, taps)
        cache.share()
    rest = [list(ids[common:]) for ids in prompts]
    longest = max(map(len, rest))
    ids = torch.tensor([row + row[-1:] * (longest - len(row)) for row in rest], device=device)
    positions = torch.arange(common, common + longest, device=device).expand(len(rest), -1)
    hidden, tapped = model.forward(ids, positions, cache, taps)
    if before is not None and tapped is not None:
        tapped = torch.cat([before.expand(len(rest), -1, -1), tapped], 1)
    last = torch.tensor([len(row) - 1 for row in rest], device=device)
    return hidden[torch.arange(len(rest), device=device), last], tapped


def _common(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with, less than the shortest has: each row keeps one to read."""
    low, high = min(prompts, key=list), max(prompts, key=list)
    shortest = min(map(len, prompts)) - 1
    return next((i for i in range(shortest) if low[i] != high[i]), shortest)


def generate(
    model: CausalModel,
    asks: Sequence[Ask],
    *,
    stop_ids: Sequence[int],
    tick: Callable[[int], None] = lambda n: None,
) -> list[Answer]:
    """Continue one batch of prompts.

    Rows that end leave the batch once a quarter of it has ended.  The arithmetic depends on the batch
    alone, so equal batches give equal answers.

    Args:
        stop_ids: tokens that end an answer; the one written is kept.
        tick: called after every token with the number of requests that it ended.
    """
    capacity = max(len(ask.ids) + ask.max_new_tokens for ask in asks)
    cache = model.new_cache(capacity)
    hidden, _ = prefill(model, [ask.ids for ask in asks], cache)
    live = list(range(len(asks)))
    lengths = [len(ask.ids) for ask in asks]
    written: list[list[int]] = [[] for _ in asks]
    told: list[list[float] | None] = [[] if ask.logprobs else None for ask in asks]
    ends: list[str | None] = [None] * len(asks)
    stop = frozenset(stop_ids)
    dice = [torch.Generator().manual_seed(ask.seed) for ask in asks]
    words = (model.config.vocab_size + 31) // 32
    while True:
        logits = model.logits(hidden)
        constrained = [i for i, row in enumerate(live) if asks[row].constraint and not ends[row]]
        if constrained:
            bitmask = torch.full((len(live), words), -1, dtype=torch.int32)
            for i in constrained:
                asks[live[i]].constraint.fill(bitmask, i)  # type: ignore[union-attr]
            mask_logits(logits, bitmask)
        choice = logits.argmax(-1).tolist()
        for i, row in enumerate(live):
            if asks[row].temperature > 0:
                ask = asks[row]
                choice[i] = sample(logits[i], ask.temperature, dice[row], ask.top_p, ask.top_k)
        ended = 0
        for i, row in enumerate(live):
            if ends[row]:
                continue
            token = choice[i]
            written[row].append(token)
            if (logprobs := told[row]) is not None:
                logprobs.append(float(logits[i].float().log_softmax(-1)[token]))
            if token in stop:
                ends[row] = "stop"
            elif len(written[row]) == asks[row].max_new_tokens:
                ends[row] = "length"
            elif (constraint := asks[row].constraint) is not None:
                constraint.accept(token)
            ended += ends[row] is not None
        tick(ended)
        keep = [i for i, row in enumerate(live) if not ends[row]]
        if not keep:
            break
        if len(keep) <= 0.75 * len(live):
            cache.select(torch.tensor(keep, device=model.device))
            live = [live[i] for i in keep]
        ids = torch.tensor([[written[row][-1]] for row in live], device=model.device)
        at = [[lengths[row] + len(written[row]) - 1] for row in live]
        hidden, _ = model.forward(ids, torch.tensor(at, device=model.device), cache)
        hidden = hidden[:, 0]
    return [Answer(ids, end or "length", odds) for ids, end, odds in zip(written, ends, told, strict=True)]


def sample(
    logits: Tensor, temperature: float, dice: torch.Generator, top_p: float = 1.0, top_k: int | None = None
) -> int:
    """Draw a token from the softmax of `logits` [vocabulary] / temperature.

    A race of exponential times: where token i waits e_i / p_i, e_i drawn from Exp(1), i comes first with the
    probability p_i.  A time belongs to a token, not to its rank, so that logits which another batch rounds
    otherwise give the same token.

    Args:
        top_p: of the likeliest tokens only those that are needed for this share of the odds together.
        top_k: only so many of the likeliest tokens; None: all.
    """
    odds = torch.softmax(logits.float().cpu() / temperature, -1)
    times = torch.empty_like(odds).exponential_(generator=dice)
    if top_k is None and top_p >= 1:
        return int((odds / times).argmax())
    odds, tokens = odds.sort(descending=True, stable=True)
    odds, tokens = odds[:top_k], tokens[:top_k]
    odds = odds * (odds.cumsum(-1) - odds < top_p)  # the first one always stays
    return int(tokens[(odds / times[tokens]).argmax()])


def mask_logits(logits: Tensor, bitmask: Tensor) -> None:
    """Set the logits of tokens whose bit is 0 to minus infinity, in place.

    Args:
        logits: [rows, vocabulary].
        bitmask: int32 [rows, ⌈vocabulary / 32⌉] on the CPU, little end first.
    """
    forbidden = np.unpackbits(~bitmask.numpy().view(np.uint8), axis=1, bitorder="little")
    mask = torch.from_numpy(forbidden[:, : logits.shape[-1]]).view(torch.bool)
    logits.masked_fill_(mask.to(logits.device), float("-inf"))
