"""Speculative decoding of our own: draft a block, verify it, keep what the target would have written.

Lossless, greedy or sampled: every token is the target's own choice, so the text is that of plain decoding
with the same seed; the drafter decides only how many target passes it takes.

Sampled, this is rejection sampling (arXiv 2211.17192) for a drafter that names one token a place, which is
how DFlash is served: a draft d is accepted with the probability p(d) that the target gives it, and a refused
one leaves a token x ≠ d with p(x) / (1 − p(d)).  Drawing x from p, and accepting d where x = d, is the same
law: x = d has probability p(d), and given x ≠ d it is drawn from the rest.  p is what the constraint,
temperature, top_k and top_p leave of the target's softmax.

What can be promised depends on the target's dtype.  The target reads a block in one pass and plain decoding
a token at a time, and the two round differently.  In float32 that is some 1e-5 of a logit: texts are equal,
but for a tie so close.  In bfloat16 the last bit of a logit of 16 alone is 1/8: every token still is the
target's choice in the pass that read it, but where two tokens come close the text may part from plain
decoding's, and from that of another batch.  Equality token by token cannot be promised there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from synthspec.dflash.model import Drafter, KeysValues
from synthspec.targets.causal import CausalModel
from synthspec.targets.generate import TokenRule, mask_logits, prefill, sample


class RevocableRule(TokenRule, Protocol):
    """A constraint that can also take tokens back, as verifying a draft needs."""

    def allows(self, token: int) -> bool:
        """Whether the token may come next."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""


@dataclass(frozen=True)
class SpeculativeAsk:
    """One prompt to continue; its fields are those of `synthspec.targets.generate.Ask`."""

    ids: Sequence[int]
    max_new_tokens: int
    constraint: RevocableRule | None = None
    temperature: float = 0.0
    seed: int = 0
    top_p: float = 1.0
    top_k: int | None = None


@dataclass
class Trace:
    """What one request's decoding did.

    Args:
        ids: the tokens written, the end token included.
        accepted: per verify step, how many drafted tokens the target agreed with, before the answer is
            cut at its end token or its longest length.
        places: per verify step, the index in `ids` that its first drafted token stood for.
        finish_reason: `stop` or `length`.
    """

    ids: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    finish_reason: str = ""


class _DrafterCache:
    """Context keys and values of every drafter layer for a batch, by position."""

    def __init__(self, drafter: Drafter, rows: int, capacity: int, like: Tensor) -> None:
        config = drafter.config
        shape = (rows, config.num_key_value_heads, capacity, config.head_dim)
        self.drafter = drafter
        self.layers: list[KeysValues] = [(like.new_zeros(shape), like.new_zeros(shape)) for _ in drafter.layers]

    def add(self, features: Tensor, positions: Tensor) -> None:
        """Write features [rows, tokens, K·H] at positions int64 [rows, tokens]."""
        index = torch.arange(len(positions), device=positions.device)[:, None]
        for (keys, values), (new_keys, new_values) in zip(
            self.layers, self.drafter.inject(features, positions), strict=True
        ):
            keys[index, :, positions] = new_keys.transpose(1, 2)
            values[index, :, positions] = new_values.transpose(1, 2)

    def until(self, span: int) -> list[KeysValues]:
        return [(keys[:, :, :span], values[:, :, :span]) for keys, values in self.layers]

    def select(self, rows: Tensor) -> None:
        self.layers = [(keys[rows], values[rows]) for keys, values in self.layers]


@torch.no_grad()
def decode(
    model: CausalModel,
    drafter: Drafter,
    asks: Sequence[SpeculativeAsk],
    *,
    stop_ids: Sequence[int],
    tick: Callable[[int], None] = lambda n: None,
) -> list[Trace]:
    """Continue one batch of prompts, drafting a block a step.

    A step drafts block_size − 1 tokens behind the last known one, runs the target over all of them at
    once, and keeps the longest prefix that the target agrees with plus the target's own next token.
    Under a constraint the target chooses among allowed tokens only; drafts are not constrained.

    A row draws from random numbers of its own, one token after the other as plain decoding does, so its
    text depends neither on its neighbours nor on the drafter.

    Args:
        drafter: in the target's dtype, on its device.
        tick: called before every step with the number of requests that the one before has ended.

    Raises:
        UserError: the target is recurrent, see `CausalModel.new_cache`.
    """
    taps, size, mask_id = (
        drafter.config.target_layer_ids,
        drafter.config.block_size,
        drafter.config.mask_token_id,
    )
    capacity = max(len(ask.ids) + ask.max_new_tokens for ask in asks) + size
    cache = model.new_cache(capacity)
    hidden, tapped = prefill(model, [ask.ids for ask in asks], cache, taps)
    assert tapped is not None
    device = model.device
    memory = _DrafterCache(drafter, len(asks), capacity, tapped)
    memory.add(tapped, torch.arange(tapped.shape[1], device=device).expand(len(asks), -1))
    stop = frozenset(stop_ids)
    traces = [Trace() for _ in asks]
    live = list(range(len(asks)))

    dice = [torch.Generator().manual_seed(ask.seed) for ask in asks]
    first = _choose(model.logits(hidden)[:, None], asks, dice, [[] for _ in asks], stop)
    for trace, ask, (token,) in zip(traces, asks, first, strict=True):
        _extend(trace, ask, [token], stop)

    offsets = torch.arange(size, device=device)
    while True:
        kept = [i for i, row in enumerate(live) if not traces[row].finish_reason]
        tick(len(live) - len(kept))
        if len(kept) < len(live):
            if not kept:
                return traces
            rows = torch.tensor(kept, device=device)
            cache.select(rows)
            memory.select(rows)
            live = [live[i] for i in kept]
        # The last known token stands at position p; the target has not read it yet.
        p = torch.tensor([len(asks[row].ids) + len(traces[row].ids) - 1 for row in live], device=device)
        at = p[:, None] + offsets  # [rows, S]
        block = torch.full((len(live), size), mask_id, device=device)
        block[:, 0] = torch.tensor([traces[row].ids[-1] for row in live], device=device)
        span = int(p.max())
        seen = torch.arange(span, device=device) < p[:, None]  # [rows, T]
        guesses = drafter(model.embedding(block)[:, None], at[:, None], memory.until(span), seen[:, None])
        block[:, 1:] = model.logits(guesses[:, 0, 1:]).argmax(-1)
        hidden, tapped = model.forward(block, at, cache, taps)
        assert tapped is not None
        drafts = block[:, 1:].tolist()
        logits = model.logits(hidden)
        chosen = _choose(logits, [asks[row] for row in live], [dice[row] for row in live], drafts, stop)
        memory.add(tapped, at)
        for i, row in enumerate(live):
            trace, agreed = traces[row], len(chosen[i]) - 1
            trace.accepted.append(agreed)
            trace.places.append(len(trace.ids))
            _extend(trace, asks[row], chosen[i], stop)


def _choose(
    logits: Tensor,
    asks: Sequence[SpeculativeAsk],
    dice: Sequence[torch.Generator],
    drafts: Sequence[Sequence[int]],
    stop: frozenset[int],
) -> list[list[int]]:
    """Walk each row's drafts with the target's choices: the agreed ones, and the target's next token.

    Args:
        logits: [rows, S, vocabulary]; offset j speaks of the token that draft j stands for.
        dice: of each row; a number is drawn for each token chosen, and none for what lies behind.
        drafts: S − 1 drafted tokens a row.
    """
    rows, size, vocabulary = logits.shape
    reach = [size - 1] * rows
    if any(ask.constraint for ask in asks):
        bitmask = torch.full((rows * size, (vocabulary + 31) // 32), -1, dtype=torch.int32)
        for i, ask in enumerate(asks):
            if ask.constraint is not None:
                reach[i] = _mask_along(ask.constraint, drafts[i], bitmask, i * size, stop)
        mask_logits(logits.view(rows * size, vocabulary), bitmask)
    likeliest = logits.argmax(-1).tolist()
    chosen: list[list[int]] = []
    for i, (ask, draft) in enumerate(zip(asks, drafts, strict=True)):
        tokens: list[int] = []
        for place in range(reach[i] + 1):
            if ask.temperature > 0:
                token = sample(logits[i, place], ask.temperature, dice[i], ask.top_p, ask.top_k)
            else:
                token = likeliest[i][place]
            tokens.append(token)
            if place < reach[i] and token != draft[place]:
                break
        chosen.append(tokens)
    return chosen


def _mask_along(
    constraint: RevocableRule,
    draft: Sequence[int],
    bitmask: Tensor,
    row: int,
    stop: frozenset[int],
) -> int:
    """Fill the masks of a draft's places from `row` on; say how many drafted tokens could be agreed with.

    Behind a token that the grammar forbids, or that ends the answer, nothing can be agreed with.
    """
    walked = 0
    constraint.fill(bitmask, row)
    for token in draft:
        if not constraint.allows(token):
            break
        walked += 1
        if token in stop:
            constraint.rollback(walked - 1)
            return walked
        constraint.accept(token)
        constraint.fill(bitmask, row + walked)
    constraint.rollback(walked)
    return walked


def _extend(trace: Trace, ask: SpeculativeAsk, tokens: Sequence[int], stop: frozenset[int]) -> None:
    """Add tokens to an answer until it ends, and move its constraint along."""
    for token in tokens:
        trace.ids.append(token)
        if token in stop:
            trace.finish_reason = "stop"
        elif len(trace.ids) == ask.max_new_tokens:
            trace.finish_reason = "length"
        elif ask.constraint is not None:
            ask.constraint.accept(token)
        if trace.finish_reason:
            return
