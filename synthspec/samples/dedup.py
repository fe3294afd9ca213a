"""Near-duplicates: which texts, or which token sequences, say nearly the same.

Two items are as alike as their sets of shingles (runs of neighbouring words or tokens): Jaccard's index,
the share of all their shingles that both have. MinHash proposes the pairs, the index itself decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

import rensa

_PERMUTATIONS = 128
_BANDS = 64  # of two hashes each: of pairs that share half of their shingles, one in 10⁸ is missed
_SEED = 1

Shingles = AbstractSet[str]


def text_shingles(text: str) -> set[str]:
    """The words of a text and its pairs of neighbouring words, whatever their case and punctuation."""
    found = re.findall(r"\w+", text.lower()) or [text]
    return {*found, *(f"{one} {two}" for one, two in pairwise(found))}


def token_shingles(ids: Sequence[int], length: int = 3) -> set[str]:
    """Runs of `length` token ids; of a shorter sequence the whole."""
    starts = range(max(1, len(ids) - length + 1))
    return {" ".join(map(str, ids[start : start + length])) for start in starts}


def jaccard(one: Shingles, two: Shingles) -> float:
    """Shared shingles by all shingles, 0 to 1; 1 for two empty sets."""
    return len(one & two) / len(one | two) if one or two else 1.0


def near(items: Sequence[Shingles], among: Sequence[Shingles], threshold: float) -> list[list[int]]:
    """For each item, the places in `among`, ascending, of those that are at least `threshold` alike.

    An item that stands in both is near itself.
    """
    index = rensa.RMinHashLSH(0.0, _PERMUTATIONS, _BANDS)
    for place, signature in enumerate(_signatures(among)):
        index.insert(place, signature)
    found = []
    for item, signature in zip(items, _signatures(items), strict=True):
        places = sorted(set(index.query(signature)))
        found.append([place for place in places if jaccard(item, among[place]) >= threshold])
    return found


def repeats(items: Sequence[Shingles], threshold: float) -> list[bool]:
    """Which items are near an earlier one that is not itself a repeat."""
    repeat = [False] * len(items)
    for place, others in enumerate(near(items, items, threshold)):
        repeat[place] = any(other < place and not repeat[other] for other in others)
    return repeat


def clusters(items: Sequence[Shingles], threshold: float) -> list[int]:
    """For each item the first place of its cluster; items that are near each other share one."""
    parent = list(range(len(items)))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for place, others in enumerate(near(items, items, threshold)):
        for other in others:
            one, two = sorted((root(place), root(other)))
            parent[two] = one
    return [root(place) for place in range(len(items))]


def _signatures(items: Sequence[Shingles]) -> list[rensa.RMinHash]:
    signatures: list[rensa.RMinHash] = rensa.RMinHash.from_token_sets(
        [sorted(item) for item in items], _PERMUTATIONS, _SEED
    )
    return signatures
