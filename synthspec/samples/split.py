"""Split: which samples are held out, so that near-twins never stand on both sides."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from synthspec.files import content_id


def hold_out(
    ids: Sequence[str],
    grammars: Sequence[str],
    clusters: Sequence[int],
    share: float,
    most: int,
    seed: int,
) -> list[bool]:
    """Choose the held-out samples: whole clusters, drawn by a hash of their smallest id.

    Of each grammar about `share` of its samples are held out, rounded up, and `most` of them at most. A
    cluster that would go over that of any grammar is trained on, so a grammar that has only large
    clusters gets fewer.

    Args:
        ids: a content id for each sample.
        grammars: the grammar of each sample.
        clusters: the cluster of each sample; one cluster may hold samples of several grammars.
        share: 0 to 1.
        most: samples of a grammar.
        seed: another seed draws other clusters.

    Returns:
        For each sample whether it is held out; neither the order nor the labels of clusters matter.
    """
    open_places = {name: min(math.ceil(share * n), most) for name, n in Counter(grammars).items()}
    members: dict[int, list[int]] = defaultdict(list)
    for place, cluster in enumerate(clusters):
        members[cluster].append(place)
    drawn = sorted(members.values(), key=lambda group: content_id("split", seed, min(ids[i] for i in group)))
    held = [False] * len(ids)
    for group in drawn:
        needs = Counter(grammars[place] for place in group)
        if all(n <= open_places[name] for name, n in needs.items()):
            for place in group:
                held[place] = True
            for name, n in needs.items():
                open_places[name] -= n
    return held
