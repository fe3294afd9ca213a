"""Which blocks a step trains on: documents in a shuffled order, anchors drawn within each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from synthspec.dflash.features import Features


@dataclass(frozen=True)
class Document:
    """A sample as training reads it: its tokens and which of them are supervised."""

    ids: Tensor  # int64 [tokens]
    supervised: Tensor  # bool [tokens]

    def anchors(self) -> Tensor:
        """int64: every supervised position that has a supervised token behind it.

        An anchor is a token that the target has written: at serving time the block begins with it.
        """
        both = self.supervised[:-1] & self.supervised[1:]
        return both.nonzero()[:, 0]


@dataclass(frozen=True)
class Batch:
    """Blocks of B documents; shapes as in `model`: N blocks each, S tokens a block, T context tokens."""

    features: Tensor  # [B, T, K·H]
    ids: Tensor  # int64 [B, N, S], the true tokens of each block, anchor first
    at: Tensor  # int64 [B, N, S], their positions
    seen: Tensor  # bool [B, N, T]
    weights: Tensor  # float32 [B, N, S − 1], 0 where there is nothing to guess
    expected: Tensor  # bfloat16 [B, N, S, H], `Features.expected` of each token; H is 0 if there are none
    soft: Tensor  # bool [B], whether the document has them

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


def documents_of_step(count: int, batch: int, step: int, seed: int) -> list[int]:
    """The documents of a step; every epoch is a new shuffle, and no state is kept between steps."""
    chosen = []
    for place in range(step * batch, (step + 1) * batch):
        epoch, offset = divmod(place, count)
        chosen.append(int(_shuffle(count, seed, epoch)[offset]))
    return chosen


_shuffled: dict[tuple[int, int, int], Tensor] = {}


def _shuffle(count: int, seed: int, epoch: int) -> Tensor:
    key = (count, seed, epoch)
    if key not in _shuffled:
        _shuffled.clear()
        _shuffled[key] = torch.randperm(count, generator=_dice(seed, epoch))
    return _shuffled[key]


def _dice(seed: int, turn: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + turn)


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
) -> Batch:
    """Draw anchors in the chosen documents and gather their blocks.

    Anchors are drawn without repetition, anew at every step, as many in each document as asked or as it
    has.  Blocks that hang over the end of a document weigh nothing there.

    Args:
        decay: float32 [S − 1], the weight of each guess.
        part: gather these of the chosen documents alone; their blocks are the same as if all were gathered.
    """
    dice = _dice(seed + 1, step)
    drawn = []
    for document in chosen:
        possible = documents[document].anchors()
        drawn.append(possible[torch.randperm(len(possible), generator=dice)[:anchors]].sort().values)
    chosen, drawn = chosen[part], drawn[part]
    blocks = max(map(len, drawn))
    longest = max(len(documents[document].ids) for document in chosen)
    rows = len(chosen)
    offsets = torch.arange(block_size)
    at = torch.zeros(rows, blocks, block_size, dtype=torch.long)
    ids = torch.zeros_like(at)
    weights = torch.zeros(rows, blocks, block_size - 1)
    context = torch.zeros(rows, longest, features.states.shape[-1], dtype=features.states.dtype)
    soft = torch.tensor([document in features.expected for document in chosen])
    hidden = next(iter(features.expected.values())).shape[-1] if features.expected else 0
    expected = context.new_zeros(rows, blocks, block_size, hidden)
    for row, document in enumerate(chosen):
        one, starts = documents[document], drawn[row]
        tokens = len(one.ids)
        context[row, :tokens] = features.of(document)
        places = starts[:, None] + offsets
        inside = places.clamp(max=tokens - 1)
        at[row, : len(starts)] = places
        ids[row, : len(starts)] = one.ids[inside]
        real = (places < tokens) & one.supervised[inside]
        weights[row, : len(starts)] = real[:, 1:] * decay
        if soft[row]:
            expected[row, : len(starts)] = features.expected[document][inside]
    seen = torch.arange(longest) < at[:, :, :1]
    return Batch(context, ids, at, seen, weights, expected, soft)
