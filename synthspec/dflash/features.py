"""The target's features of a training set: computed once, kept in one file, read by memory map."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from synthspec.dflash.loss import softmax_of_head
from synthspec.errors import Stopped
from synthspec.targets.causal import CausalModel
from synthspec.targets.generate import prefill

ROWS_AT_ONCE = 16
BEGINNING = 24  # tokens by which documents are told to begin alike


@dataclass(frozen=True)
class Features:
    """Tapped hidden states of many documents, one after the other.

    Args:
        states: bfloat16 [tokens, K · hidden].
        starts: where each document begins in `states`; one more entry ends the last.
        expected: bfloat16 [tokens, hidden], softmax · head of what the target foresaw at each token
            (at a document's first, nothing that means anything), or None.
    """

    states: Tensor
    starts: list[int]
    expected: Tensor | None = None

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
    with_expected: bool = False,
) -> Features:
    """Read every document with the target and keep its tapped layers.

    Documents that begin alike are read together, and their common beginning once.

    Args:
        documents: token ids.
        taps: 0-based decoder layers whose outputs are kept.
        path: the file to write; its former content is replaced.
        tick: called with the number of documents done.
        with_expected: keep what the target foresaw too, in memory.

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
    hidden = model.config.hidden_size
    expected = torch.empty(starts[-1], hidden, dtype=states.dtype) if with_expected else None
    tapped_layers = [*taps, len(model.layers) - 1] if with_expected else taps
    # Equal beginnings together, and among them equal lengths, so that little is padding.
    order = sorted(range(len(documents)), key=lambda i: (list(documents[i][:BEGINNING]), len(documents[i])))
    for first in range(0, len(order), ROWS_AT_ONCE):
        batch = order[first : first + ROWS_AT_ONCE]
        rows = [documents[i] for i in batch]
        cache = model.new_cache(max(map(len, rows)))
        _, tapped = prefill(model, rows, cache, tapped_layers)
        assert tapped is not None
        for i, found in zip(batch, tapped, strict=True):
            own = found[: len(documents[i])]
            states[starts[i] : starts[i + 1]] = own[:, :width].to(states.dtype)
            if expected is not None:
                foreseen = model.model.get_decoder().norm(own[:-1, width:])
                expected[starts[i] + 1 : starts[i + 1]] = softmax_of_head(foreseen, model.head.weight)[0]
        tick(len(batch))
    return Features(states, starts, expected)


def _reserve(path: Path, tokens: int, width: int) -> Tensor:
    """A memory-mapped bfloat16 tensor [tokens, width] whose blocks the disk has promised."""
    with path.open("wb") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, max(2 * tokens * width, 1))
        else:
            stream.truncate(2 * tokens * width)
    flat = torch.from_file(str(path), shared=True, size=tokens * width, dtype=torch.bfloat16)
    return flat.view(tokens, width)
