"""The target's features of a training set: kept in one file while training lasts, or read anew at each step."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from synthspec.dflash import ranks
from synthspec.dflash.loss import softmax_of_head
from synthspec.errors import Stopped

if TYPE_CHECKING:
    from synthspec.targets.causal import CausalModel

# Takes documents; gives of each the taps, [tokens, K · hidden].
Reader = Callable[[Sequence[Sequence[int]]], Sequence[Tensor]]

# What is kept of what the target foresaw at a token: softmax · head, all that cross entropy with the target's
# distribution needs of it; or the last hidden state after its norm, which gives the distribution itself.
Form = Literal["expected", "hidden"]

ROWS_AT_ONCE = 16
CAPPED_AT_ONCE = 128  # tokens whose capped logits are held at a time
BEGINNING = 24  # tokens by which documents are told to begin alike


@dataclass(frozen=True)
class Features:
    """Tapped hidden states of documents, one after the other.

    Args:
        states: [tokens, K · hidden], bfloat16, float32, or as the target computes.
        starts: where each document begins in `states`, and, at the number behind its own, where it ends.
        expected: by document, [tokens, hidden] of the same kind: what the target foresaw at each token, in one
            `Form`; zeros at the first.
    """

    states: Tensor
    starts: Sequence[int] | Mapping[int, int]
    expected: dict[int, Tensor]

    def of(self, document: int) -> Tensor:
        """[tokens of the document, K · hidden]."""
        return self.states[self.starts[document] : self.starts[document + 1]]

    def only(self, chosen: Collection[int]) -> Features:
        """What is needed for these documents: all is there already."""
        return self


@dataclass(frozen=True)
class Online:
    """Features that are read when a step wants them, and kept nowhere.

    Args:
        model: the target.
        documents: token ids.
        taps: 0-based decoder layers whose outputs are wanted.
        soft: documents of which what the target foresaw is wanted too.
        form: in which it is.
    """

    model: CausalModel
    documents: Sequence[Sequence[int]]
    taps: Sequence[int]
    soft: Collection[int] = ()
    form: Form = "expected"

    def only(self, chosen: Collection[int]) -> Features:
        """Read these documents; their features are of the target's dtype."""
        documents = {i: self.documents[i] for i in sorted(set(chosen))}
        starts: dict[int, int] = {}
        end = 0
        for i, ids in documents.items():
            starts[i], end = end, end + len(ids)
            starts[i + 1] = end
        width, dtype = len(self.taps) * self.model.config.hidden_size, self.model.dtype
        soft = {i for i in documents if i in self.soft}
        expected = {i: torch.empty(len(documents[i]), width // len(self.taps), dtype=dtype) for i in soft}
        found = Features(torch.empty(end, width, dtype=dtype), starts, expected)
        for how, which in _jobs(self.model, documents, self.taps, soft):
            _fill(self.model, found, documents, how, which, self.form)
        return found


def size_in_bytes(tokens: int, taps: int, hidden: int, *, soft: int = 0, dtype: torch.dtype) -> int:
    """Bytes that the features of so many tokens take on disk.

    Args:
        soft: those of the tokens of which what the target foresaw is kept too.
    """
    return (tokens * taps + soft) * hidden * dtype.itemsize


def extract(
    model: CausalModel,
    documents: Sequence[Sequence[int]],
    taps: Sequence[int],
    path: Path,
    tick: Callable[[int], None] = lambda n: None,
    *,
    soft: Collection[int] = (),
    form: Form = "expected",
    read: Reader | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Features:
    """Read every document with the target and keep its tapped layers.

    Documents that begin alike are read together, and their common beginning once.  Several ranks read a share
    each, and all see the whole file.

    Args:
        documents: token ids.
        taps: 0-based decoder layers whose outputs are kept.
        path: the file to write; its former content is replaced.
        tick: called with the number of documents done.
        soft: documents of which to keep, behind all taps, what the target foresaw.
        form: in which that is kept.
        read: gives the taps of those that are not soft; by default the model does.
        dtype: of what is kept.

    Raises:
        Stopped: the disk has too little room.
    """
    starts = [0]
    for ids in documents:
        starts.append(starts[-1] + len(ids))
    hidden = model.config.hidden_size
    size = size_in_bytes(starts[-1], len(taps), hidden, soft=sum(len(documents[i]) for i in soft), dtype=dtype)
    ranks.on_first(lambda: _reserve(path, size))
    kept = torch.from_file(str(path), shared=True, size=size // dtype.itemsize, dtype=dtype).view(-1, hidden)
    first = starts[-1] * len(taps)
    expected: dict[int, Tensor] = {}
    for i in sorted(soft):
        expected[i] = kept[first : first + len(documents[i])]
        first += len(documents[i])
    states = kept[: starts[-1] * len(taps)].view(-1, len(taps) * hidden)
    found = Features(states, starts, expected)
    jobs = _jobs(model, dict(enumerate(documents)), taps, soft, read)

    def work() -> None:
        for place in range(0, len(jobs), ranks.count()):
            row = jobs[place : place + ranks.count()]
            if ranks.rank() < len(row):
                how, which = row[ranks.rank()]
                _fill(model, found, documents, how, which, form)
            tick(sum(len(which) for _, which in row))

    ranks.together(work)
    return found


def _jobs(
    model: CausalModel,
    documents: Mapping[int, Sequence[int]],
    taps: Sequence[int],
    soft: Collection[int],
    read: Reader | None = None,
) -> list[tuple[Reader, list[int]]]:
    """Which documents are read together, and by what."""
    inside = partial(_read, model, [*taps, len(model.layers) - 1] if soft else list(taps))
    elsewhere = [i for i in documents if read and i not in soft]
    here = sorted(documents.keys() - set(elsewhere))
    return [
        (how, [places[n] for n in batch])
        for how, places in ((read or inside, elsewhere), (inside, here))
        for batch in read_together([documents[i] for i in places])
    ]


def _fill(
    model: CausalModel,
    features: Features,
    documents: Mapping[int, Sequence[int]] | Sequence[Sequence[int]],
    how: Reader,
    which: Sequence[int],
    form: Form,
) -> None:
    """Read documents into the places that `features` has for them."""
    width = features.states.shape[-1]
    for i, own in zip(which, how([documents[i] for i in which]), strict=True):
        features.of(i).copy_(own[:, :width])
        if i in features.expected:
            last = model.model.get_decoder().norm(own[:-1, width:])
            features.expected[i][:1] = 0
            features.expected[i][1:] = _foreseen(model, last) if form == "expected" else last


def _read(model: CausalModel, layers: Sequence[int], documents: Sequence[Sequence[int]]) -> list[Tensor]:
    from synthspec.targets.generate import prefill  # transformers is for those who read with a target

    cache = None if model.recurrent else model.new_cache(max(map(len, documents)))
    _, tapped = prefill(model, documents, cache, layers)
    assert tapped is not None
    return [found[: len(ids)] for ids, found in zip(documents, tapped, strict=True)]


def _foreseen(model: CausalModel, hidden: Tensor) -> Tensor:
    """softmax of the target's logits · head, [tokens, hidden] → [tokens, hidden]."""
    head = model.head.weight
    if not model.cap:
        return softmax_of_head(hidden, head)[0]
    parts = [
        model.logits(part).float().softmax(-1).to(head.dtype) @ head for part in hidden.split(CAPPED_AT_ONCE)
    ]
    return torch.cat(parts)


def read_together(documents: Sequence[Sequence[int]]) -> list[list[int]]:
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


def _reserve(path: Path, size: int) -> None:
    """Make a file of so many bytes whose blocks the disk has promised.

    Raises:
        Stopped: it has too few.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as stream:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, max(size, 1))
            else:
                stream.truncate(size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        path.unlink(missing_ok=True)
        raise Stopped(
            f"the features need {size / 1e9:.1f} GB at {path}: free that much, then run again"
        ) from None
