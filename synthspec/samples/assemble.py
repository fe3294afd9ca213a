"""Assemble: samples in, a training set and the sets that judge it out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from synthspec.files import write_text
from synthspec.samples.dedup import clusters, near, repeats, text_shingles, token_shingles
from synthspec.samples.schema import DEV, SAMPLES, write_rows
from synthspec.samples.split import hold_out
from synthspec.spec import Spec

Row = dict[str, Any]

TRAIN = "train"
HELDOUT_PROMPTS = "heldout_prompts"
DEV_OF_GRAMMAR, DEV_OF_REPLAY = 8, 12  # requests of the dev set, at most

# Jaccard's index from which two of them count as the same.
PROMPT_TWIN = 0.5  # one request with another place or date in it: 1 in 17 of the demo's prompts
SAMPLE_TWIN = 0.8  # prompt and completion together: little to learn from the second
COMPLETION_TWIN = 0.9  # all completions of a tool share its structure: only a nearly verbatim one counts


def assemble(
    samples: Sequence[Row],
    prompts: Iterable[Row],
    spec: Spec,
    tick: Callable[[int], None] = lambda n: None,
) -> tuple[dict[str, list[Row]], list[str]]:
    """Sort samples into the training set and the evaluation sets.

    In this order: repeats go (the same completion, or a near-twin, within the trained grammars, replay
    and each other set); held-out grammars and out-of-distribution sets are set apart; of the trained
    grammars clusters of prompts are held out, some of them for `dev`, which chooses the checkpoint; of
    what is left, all that stands nearly verbatim in an evaluation set goes; and replay fills its share.

    Args:
        samples: rows of `SAMPLES` of all purposes.
        prompts: rows of `PROMPTS`, those that the samples came from at least.
        spec: holdout, replay and out-of-distribution sets.
        tick: called with the number of samples sorted.

    Returns:
        The sets by name, each in the order of its ids: `train`, then `dev`, `heldout_prompts`,
        `grammar_<name>` of each held-out grammar and each out-of-distribution set, empty ones included;
        and one state for
        each sample, in the order given: kept (trained on), heldout (in an evaluation set), duplicate,
        contaminated, or surplus (over the share of replay, or over `holdout.requests`).
    """
    texts = {row["id"]: row["text"] for row in prompts}
    order = sorted(range(len(samples)), key=lambda place: samples[place]["id"])
    rows = [samples[place] for place in order]
    asked = [text_shingles(texts[row["lineage"]["prompt_id"]]) for row in rows]
    written = [token_shingles(row["input_ids"][row["prompt_tokens"] :]) for row in rows]
    pools: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        pools[_pool(row, spec)].append(place)

    states = [""] * len(rows)
    for pool, places in pools.items():
        both = [_both(asked[place], written[place]) for place in places]
        ends = [tuple(rows[place]["input_ids"][rows[place]["prompt_tokens"] :]) for place in places]
        seen: set[tuple[int, ...]] = set()
        for place, end, repeat in zip(places, ends, repeats(both, SAMPLE_TWIN), strict=True):
            states[place] = "duplicate" if repeat or end in seen else ""
            seen.add(end)
        pools[pool] = [place for place in places if not states[place]]

    trained = pools.pop(HELDOUT_PROMPTS, [])
    replay = pools.pop("replay", [])
    held = hold_out(
        [rows[place]["lineage"]["prompt_id"] for place in trained],
        [rows[place]["grammar"] for place in trained],
        clusters([asked[place] for place in trained], PROMPT_TWIN),
        spec.holdout.prompts,
        spec.holdout.requests,
        spec.seed,
    )
    pools[HELDOUT_PROMPTS] = [place for place, out in zip(trained, held, strict=True) if out]
    train = [place for place, out in zip(trained, held, strict=True) if not out]
    chosen_by = hold_out(
        [rows[place]["lineage"]["prompt_id"] for place in train],
        [rows[place]["grammar"] for place in train],
        clusters([asked[place] for place in train], PROMPT_TWIN),
        spec.holdout.prompts / 2,
        DEV_OF_GRAMMAR,
        spec.seed + 1,
    )
    some = min(DEV_OF_REPLAY, len(replay) // 10)
    pools[DEV] = sorted([place for place, out in zip(train, chosen_by, strict=True) if out] + replay[:some])
    train = [place for place, out in zip(train, chosen_by, strict=True) if not out]
    replay = replay[some:]
    for name in spec.holdout.grammars:
        places = pools[_of_grammar(name)]
        pools[_of_grammar(name)] = places[: spec.holdout.requests]
        for place in places[spec.holdout.requests :]:
            states[place] = "surplus"

    judged = [place for places in pools.values() for place in places]
    for place in judged:
        states[place] = "heldout"
    candidates = [*train, *replay]
    for place, by_prompt, by_completion in zip(
        candidates,
        near([asked[place] for place in candidates], [asked[place] for place in judged], PROMPT_TWIN),
        near([written[place] for place in candidates], [written[place] for place in judged], COMPLETION_TWIN),
        strict=True,
    ):
        states[place] = "contaminated" if by_prompt or by_completion else "kept"
    train = [place for place in train if states[place] == "kept"]
    replay = [place for place in replay if states[place] == "kept"]
    shares = spec.replay.sources or {"": spec.replay.share}  # of all replay, where there is one source
    taken = []
    for source, share in shares.items():
        own = [place for place in replay if source in ("", rows[place]["lineage"]["source"])]
        taken += own[: round(len(train) * share / (1 - sum(shares.values())))]
    for place in {*replay} - {*taken}:
        states[place] = "surplus"

    names = [DEV, HELDOUT_PROMPTS, *map(_of_grammar, spec.holdout.grammars), *(ood.name for ood in spec.ood)]
    sets = {TRAIN: sorted(train + taken), **{name: pools.get(name, []) for name in names}}
    tick(len(rows))
    as_given = [state for _, state in sorted(zip(order, states, strict=True))]
    return {name: [rows[place] for place in places] for name, places in sets.items()}, as_given


def write(run: Path, sets: Mapping[str, Sequence[Row]], card: str) -> None:
    """Write `trainset/train.parquet` and its card, and `sets/<name>.parquet`, into a run folder."""
    for name, rows in sets.items():
        if name != TRAIN:
            write_rows(run / "sets" / f"{name}.parquet", SAMPLES, rows)
    write_rows(run / "trainset" / "train.parquet", SAMPLES, sets[TRAIN])
    write_text(run / "trainset" / "README.md", card)


def _pool(row: Row, spec: Spec) -> str:
    """Where a sample belongs before the split; those of trained grammars start in `heldout_prompts`."""
    if row["purpose"] == "ood":
        return str(row["set"])
    if row["purpose"] == "replay":
        return "replay"
    return _of_grammar(row["grammar"]) if row["grammar"] in spec.holdout.grammars else HELDOUT_PROMPTS


def _of_grammar(name: str) -> str:
    return f"grammar_{name}"


def _both(prompt: set[str], completion: set[str]) -> set[str]:
    """Shingles of a whole sample; the words of a prompt and the ids of a completion kept apart."""
    return {f"p {shingle}" for shingle in prompt} | {f"c {shingle}" for shingle in completion}
