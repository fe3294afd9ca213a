"""The target's features of a training set: kept in one file while training lasts, read by memory map."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from synthspec.dflash.loss import softmax_of_head
from synthspec.errors import Stopped
from synthspec.targets.causal import CausalModel
from synthspec.targets.generate import prefill

# Takes documents; gives of each the taps, [tokens, K · hidden].
Reader = Callable[[Sequence[Sequence[int]]], Sequence[Tensor]]

ROWS_AT_ONCE = 16
BEGINNING = 24  # tokens by which documents are told to begin alike


@dataclass(frozen=True)
class Features:
    """Tapped hidden states of many documents, one after the other.

    Args:
        states: bfloat16 [tokens, K · hidden].
        starts: where each document begins in `states`; one more entry ends the last.
        expected: by document, bfloat16 [tokens, hidden]: softmax · head of what the target foresaw at each
            token, zeros at the first.
    """

    states: Tensor
    starts: list[int]
    expected: dict[int, Tensor]

    def of(self, document: int) -> Tensor:
        """[tokens of the document, K · hidden]."""
        return self.states[self.starts[document] : self.starts[document + 1]]


def size_in_bytes(tokens: int, taps: int, hidden: int) -> int:
    """Bytes that the features of so many tokens take on disk (bfloat16)."""
    return 2 * tokens * taps * hidden


def extract(
    model: CausalModel,
    documents: Sequence[Sequence[int]],
    taps: Sequence[int],
    path: Path,
    tick: Callable[[int], None] = lambda n: None,
    *,
    soft: Collection[int] = (),
    read: Reader | None = None,
) -> Features:
    """Read every document with the target and keep its tapped layers.

    Documents that begin alike are read together, and their common beginning once.

    Args:
        documents: token ids.
        taps: 0-based decoder layers whose outputs are kept.
        path: the file to write; its former content is replaced.
        tick: called with the number of documents done.
        soft: documents of which to keep, in memory, what the target foresaw.
        read: gives the taps of those that are not soft; by default the model does.

    Raises:
        Stopped: the disk has too little room.
    """
    starts = [0]
    for ids in documents:
        starts.append(starts[-1] + len(ids))
    width = len(taps) * model.config.hidden_size
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        states = _reserve(path, starts[-1], width)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        path.unlink(missing_ok=True)
        need = size_in_bytes(starts[-1], len(taps), model.config.hidden_size) / 1e9
        raise Stopped(f"the features need {need:.1f} GB at {path}: free that much, then run again") from None
    expected: dict[int, Tensor] = {}
    inside = partial(_read, model, [*taps, len(model.layers) - 1] if soft else list(taps))
    elsewhere = [i for i in range(len(documents)) if read and i not in soft]
    here = sorted(set(range(len(documents))) - set(elsewhere))
    for how, places in ((read or inside, elsewhere), (inside, here)):
        for batch in batches([documents[i] for i in places]):
            which = [places[n] for n in batch]
            for i, own in zip(which, how([documents[i] for i in which]), strict=True):
                states[starts[i] : starts[i + 1]] = own[:, :width].to(states.dtype)
                if i in soft:
                    foreseen = model.model.get_decoder().norm(own[:-1, width:])
                    rows_of_head = softmax_of_head(foreseen, model.head.weight)[0]
                    foreseen = torch.cat([torch.zeros_like(rows_of_head[:1]), rows_of_head])
                    expected[i] = foreseen.to(states.dtype)
            tick(len(batch))
    return Features(states, starts, expected)


def _read(model: CausalModel, layers: Sequence[int], documents: Sequence[Sequence[int]]) -> list[Tensor]:
    cache = model.new_cache(max(map(len, documents)))
    _, tapped = prefill(model, documents, cache, layers)
    assert tapped is not None
    return [found[: len(ids)] for ids, found in zip(documents, tapped, strict=True)]


def batches(documents: Sequence[Sequence[int]]) -> list[list[int]]:
    """Places of documents that are read together: those that begin alike, of like length.

    One document that begins otherwise would make all others of its batch be read from their first token; few
    that begin alike are not worth a batch of their own.
    """
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, ids in enumerate(documents):
        alike[tuple(ids[:BEGINNING])].append(place)
    groups = [places for places in alike.values() if len(places) >= ROWS_AT_ONCE // 2]
    groups.append([place for places in alike.values() if len(places) < ROWS_AT_ONCE // 2 for place in places])
    found = []
    for places in groups:
        places.sort(key=lambda place: len(documents[place]))
        found += [places[first : first + ROWS_AT_ONCE] for first in range(0, len(places), ROWS_AT_ONCE)]
    return found


def _reserve(path: Path, tokens: int, width: int) -> Tensor:
    """A memory-mapped bfloat16 tensor [tokens, width] whose blocks the disk has promised."""
    with path.open("wb") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, max(2 * tokens * width, 1))
        else:
            stream.truncate(2 * tokens * width)
    flat = torch.from_file(str(path), shared=True, size=tokens * width, dtype=torch.bfloat16)
    return flat.view(tokens, width)
