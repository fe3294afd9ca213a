"""Which blocks a step trains on: documents in a shuffled order, anchors drawn within each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import Tensor

from synthspec.dflash.features import Features


@dataclass(frozen=True)
class Document:
    """A sample as training reads it: its tokens, which of them are supervised, and what each weighs."""

    ids: Tensor  # int64 [tokens]
    supervised: Tensor  # bool [tokens]
    weights: Tensor | None = None  # float32 [tokens]; by default all weigh 1

    def anchors(self) -> Tensor:
        """int64: every supervised position that has a supervised token behind it.

        An anchor is a token that the target has written: at serving time the block begins with it.
        """
        both = self.supervised[:-1] & self.supervised[1:]
        return both.nonzero()[:, 0]


@dataclass(frozen=True)
class Batch:
    """Blocks of B documents; shapes as in `model`: N blocks each, S tokens a block, T context tokens.

    The features are packed: those of one document behind those of the other, so that nothing is padded but what
    attention reads.
    """

    features: Tensor  # [Σ lengths, K·H]
    lengths: Tensor  # int64 [B], context tokens of each document; T is the largest
    ids: Tensor  # int64 [B, N, S], the true tokens of each block, anchor first
    at: Tensor  # int64 [B, N, S], their positions, counted from the row's first context token
    seen: Tensor  # bool [B, N, T]
    real: Tensor  # bool [B, N, S − 1], which guesses stand for a supervised token
    weights: Tensor  # float32 [B, N, S − 1], 0 where there is nothing to guess
    expected: Tensor  # [B, N, S, H] of the features' dtype, `Features.expected` of each token; H is 0 if none
    soft: Tensor  # bool [B], whether the document has them

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


POOL = 32  # steps whose documents are sorted by length together


def documents_of_step(count: int, batch: int, step: int, seed: int, lengths: Tensor | None = None) -> list[int]:
    """The documents of a step; every epoch is a new shuffle, and no state is kept between steps.

    Args:
        lengths: int64 [count]: documents of a step are then of like length. An epoch still visits each once:
            the shuffle is cut into pools of 32 steps, each is sorted, and its steps are shuffled.
    """
    chosen = []
    for place in range(step * batch, (step + 1) * batch):
        epoch, offset = divmod(place, count)
        chosen.append(int(_order(count, batch, seed, epoch, lengths)[offset]))
    return chosen


@lru_cache(maxsize=2)  # a step may end one epoch and begin the next; a tensor is known by its identity
def _order(count: int, batch: int, seed: int, epoch: int, lengths: Tensor | None) -> Tensor:
    dice = _dice(seed, epoch)
    order = torch.randperm(count, generator=dice)
    return order if lengths is None else _alike(order, lengths, batch, epoch, dice)


def _alike(order: Tensor, lengths: Tensor, batch: int, epoch: int, dice: torch.Generator) -> Tensor:
    """A shuffle whose steps hold documents of like length."""
    first = -epoch * len(order) % batch  # documents that fill the last step of the epoch before
    found = [order[:first]]
    for pool in order[first:].split(POOL * batch):
        steps = pool[lengths[pool].argsort(stable=True)].split(batch)
        whole = len(pool) // batch  # what is left goes with the next epoch's first
        found += [steps[i] for i in torch.randperm(whole, generator=dice)]
        found += steps[whole:]
    return torch.cat(found)


def _dice(seed: int, turn: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + turn)


@dataclass(frozen=True)
class Windowed:
    """What `max_context` drops of a training set; the unit is a context token that an anchor could look at."""

    documents: int  # longer than max_context
    anchors: int  # that have more context than max_context
    dropped: int  # context tokens, over all anchors, that are not looked at
    context: int  # context tokens, over all anchors, that there are


def windowed(documents: Sequence[Document], max_context: int) -> Windowed:
    """Count what is dropped where no block looks at more than `max_context` tokens before its anchor."""
    anchors = torch.cat([document.anchors() for document in documents])
    over = (anchors - max_context).clamp(min=0)
    long = sum(len(document.ids) > max_context for document in documents)
    return Windowed(long, int((over > 0).sum()), int(over.sum()), int(anchors.sum()))


def draw(
    documents: Sequence[Document],
    features: Features,
    chosen: Sequence[int],
    *,
    anchors: int,
    block_size: int,
    decay: Tensor,
    seed: int,
    step: int,
    part: slice = slice(None),
    max_context: int | None = None,
) -> Batch:
    """Draw anchors in the chosen documents and gather their blocks.

    Anchors are drawn without repetition, anew at every step, as many in each document as asked or as it
    has.  Blocks that hang over the end of a document weigh nothing there.

    In a document of more than `max_context` tokens those of one step are drawn from one stretch of so many
    tokens, chosen by how many anchors it has, and each block looks at the `max_context` tokens before its
    anchor; so no row holds more than twice as many, and anchors come about as often as without.  Its
    positions are counted from the first of them: rotary attention knows differences only.

    Args:
        decay: float32 [S − 1], the weight of each guess.
        part: gather these of the chosen documents alone; their blocks are the same as if all were gathered.
        max_context: the most context tokens that a block looks at; by default all that are before it.
    """
    dice = _dice(seed + 1, step)
    drawn, spans = [], []
    for document in chosen:
        possible = documents[document].anchors()
        if max_context is not None and len(documents[document].ids) > max_context:
            possible = _of_one_stretch(possible, max_context, dice)
        starts = possible[torch.randperm(len(possible), generator=dice)[:anchors]].sort().values
        drawn.append(starts)
        first = 0 if max_context is None else max(0, int(starts[0]) - max_context)
        spans.append(range(first, int(starts[-1])))  # what is behind the last anchor is seen by no block
    chosen, drawn, spans = chosen[part], drawn[part], spans[part]
    blocks = max(map(len, drawn))
    longest = max(map(len, spans))
    rows = len(chosen)
    offsets = torch.arange(block_size)
    at = torch.zeros(rows, blocks, block_size, dtype=torch.long)
    ids = torch.zeros_like(at)
    real = torch.zeros(rows, blocks, block_size - 1, dtype=torch.bool)
    weights = torch.zeros(rows, blocks, block_size - 1)
    context = torch.cat([features.of(i)[span.start : span.stop] for i, span in zip(chosen, spans, strict=True)])
    lengths = torch.tensor([len(span) for span in spans])
    soft = torch.tensor([document in features.expected for document in chosen])
    hidden = next(iter(features.expected.values())).shape[-1] if features.expected else 0
    expected = context.new_zeros(rows, blocks, block_size, hidden)
    for row, document in enumerate(chosen):
        one, starts, span = documents[document], drawn[row], spans[row]
        tokens = len(one.ids)
        places = starts[:, None] + offsets
        inside = places.clamp(max=tokens - 1)
        at[row, : len(starts)] = places - span.start
        ids[row, : len(starts)] = one.ids[inside]
        real[row, : len(starts)] = ((places < tokens) & one.supervised[inside])[:, 1:]
        weights[row, : len(starts)] = real[row, : len(starts)] * decay
        if one.weights is not None:
            weights[row, : len(starts)] *= one.weights[inside[:, 1:]]
        if soft[row]:
            expected[row, : len(starts)] = features.expected[document][inside]
    slots = torch.arange(longest)
    seen = slots < at[:, :, :1]
    if max_context is not None:
        seen &= slots >= at[:, :, :1] - max_context
    return Batch(context, lengths, ids, at, seen, real, weights, expected, soft)


def _of_one_stretch(possible: Tensor, size: int, dice: torch.Generator) -> Tensor:
    """The anchors of one stretch of `size` tokens, drawn by how many it has.

    Where stretches begin is drawn too, so that no anchor is always in a short one at an end.
    """
    shift, pick = (int(torch.randint(most, (), generator=dice)) for most in (size, len(possible)))
    stretch = (possible + shift) // size
    return possible[stretch == stretch[pick]]
