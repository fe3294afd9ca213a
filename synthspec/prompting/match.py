"""Match: pair each public prompt with the grammar that it can exercise."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN_PLUS
from numpy.typing import NDArray

from synthspec.files import content_id
from synthspec.grammar.model import Grammar
from synthspec.spec import Spec

Row = dict[str, Any]
_Ranked = tuple[float, str, str | None]  # score, prompt id, tool
_STOPWORDS = frozenset(STOPWORDS_EN_PLUS)
_REPLAY_SLACK = 1.05  # a few replay answers fall out later as duplicates or as degenerate


def match(
    prompts: Sequence[Row],
    grammars: Sequence[Grammar],
    spec: Spec,
    tick: Callable[[int], None] = lambda n: None,
) -> tuple[list[Row], list[str]]:
    """Decide what every prompt is used for; each is used once at most.

    A prompt of the spec's `match` sources goes to the grammar that holds the tool nearest to it (see
    `nearness`), if that is near enough; then to a grammar that takes any prompt. A grammar takes its
    tools in turns, the nearest prompt of each first, up to its quota: `rows_per_grammar`, or
    `holdout.requests` where the grammar is held out whole. Replay and out-of-distribution sets take
    their sources' prompts in the order of their ids.

    Args:
        prompts: rows of `PROMPTS`.
        grammars: all grammars of the spec.
        spec: names the sources, the quotas and the sets.
        tick: called with the number of prompts decided.

    Returns:
        Rows of `MATCHES` in the order of their ids, and one state for each prompt, in the order given:
        kept, surplus (its grammar or set was full) or unmatched (nothing asks for it).
    """
    rows: list[Row] = []
    states = dict.fromkeys((row["id"] for row in prompts), "unmatched")
    by_source: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(prompts, key=lambda row: row["id"]):
        by_source[row["source"]].append(row)

    def take(
        prompt_id: str,
        purpose: str,
        *,
        grammar: str | None = None,
        tool: str | None = None,
        name: str | None = None,
        score: float = 0.0,
    ) -> None:
        states[prompt_id] = "kept"
        rows.append(
            {
                "id": content_id("match", prompt_id, purpose, grammar, name),
                "prompt_id": prompt_id,
                "purpose": purpose,
                "grammar": grammar,
                "tool": tool,
                "set": name,
                "score": score,
            }
        )

    candidates = sorted((row for name in spec.match for row in by_source[name]), key=lambda row: row["id"])
    pairs, near = _assign(candidates, grammars, spec)
    states.update(dict.fromkeys(near, "surplus"))
    for prompt_id, grammar, tool, score in pairs:
        take(prompt_id, "grammar", grammar=grammar, tool=tool, score=score)
    trained = sum(row["grammar"] not in spec.holdout.grammars for row in rows)
    replay = replay_samples(spec, math.ceil(trained * (1 - spec.holdout.prompts)) * _REPLAY_SLACK)
    for source, wanted in replay.items():
        for prompt_id in _first(by_source[source], wanted, states):
            take(prompt_id, "replay")
    for ood in spec.ood:
        for prompt_id in _first(by_source[ood.source], ood.requests, states):
            take(prompt_id, "ood", name=ood.name)
    tick(len(prompts))
    return sorted(rows, key=lambda row: row["id"]), [states[row["id"]] for row in prompts]


def quota(spec: Spec, grammar: Grammar) -> int:
    """The most prompts that a grammar takes."""
    if grammar.name in spec.holdout.grammars:
        return spec.holdout.requests
    return max(1, round(spec.rows_per_grammar * grammar.weight))


def replay_samples(spec: Spec, grammar_samples: float) -> dict[str, int]:
    """How many samples of each replay source make up its share of a training set with so many of grammars."""
    shares = spec.replay.shares
    rest = 1 - sum(shares.values())
    return {source: math.ceil(grammar_samples * share / rest) for source, share in shares.items()}


def nearness(texts: Sequence[str], tools: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
    """How near each text is to each tool: BM25 of the tool's words in the texts.

    Args:
        texts: the prompts; how rare a word is, is counted here.
        tools: for each tool the text that says what it does, and that of its parameters, whose words
            count half, since many tools share them.

    Returns:
        [tools, texts], in units of a word that a single one of the texts holds: two prompts are the
        same distance from a tool whether they are two of a thousand or of a million.
    """
    vocabulary: dict[str, int] = {}
    ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in words(text)] for text in texts]
    scores = np.zeros((len(tools), len(texts)), np.float32)
    if not vocabulary:
        return scores
    index = bm25s.BM25()
    index.index(bm25s.tokenization.Tokenized(ids, vocabulary), show_progress=False)
    unit = 2 * math.log(1 + (len(texts) - 0.5) / 1.5)
    for row, (does, takes) in enumerate(tools):
        main, side = (
            dict.fromkeys(word for word in words(text) if word in vocabulary) for text in (does, takes)
        )
        query = [*main, *main, *(word for word in side if word not in main)]
        if query:
            scores[row] = index.get_scores(query) / unit
    return scores


def words(text: str) -> list[str]:
    """Lower-case words without endings of plurals; `snake_case` and `camelCase` come apart."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).replace("_", " ").lower()
    return [_singular(word) for word in re.findall(r"[^\W\d]{2,}", apart) if word not in _STOPWORDS]


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] not in "sui" else word


def _assign(
    prompts: Sequence[Row], grammars: Sequence[Grammar], spec: Spec
) -> tuple[list[tuple[str, str, str | None, float]], list[str]]:
    """Prompt id, grammar, tool and score of every pair; and the ids that were near enough, taken or not."""
    order = sorted(grammars, key=lambda grammar: grammar.name)
    quotas = {grammar.name: quota(spec, grammar) for grammar in order}
    pairs: list[tuple[str, str, str | None, float]] = []
    near: list[str] = []
    tools = [
        (grammar, tool, text)
        for grammar in order
        if not grammar.match.any
        for tool, text in zip(_tool_names(grammar), texts(grammar), strict=True)
    ]
    if tools and prompts:
        scores = nearness([row["text"] for row in prompts], [text for _, _, text in tools])
        least = np.array([grammar.match.min_score for grammar, _, _ in tools], np.float32)
        scores[scores < least[:, None]] = 0
        queues: dict[str, dict[int, list[tuple[float, str]]]] = defaultdict(lambda: defaultdict(list))
        for column, (row, tool) in enumerate(zip(prompts, scores.argmax(axis=0).tolist(), strict=True)):
            score = round(float(scores[tool, column]), 4)
            if score > 0:
                queues[tools[tool][0].name][tool].append((-score, row["id"]))
                near.append(row["id"])
        for name, by_tool in sorted(queues.items()):
            turns = _in_turns(
                [
                    [(score, row, tools[tool][1]) for score, row in sorted(by_tool[tool])]
                    for tool in sorted(by_tool)
                ]
            )
            pairs += [(prompt_id, name, tool, -score) for score, prompt_id, tool in turns[: quotas[name]]]
    taken = {prompt_id for prompt_id, _, _, _ in pairs}
    rest = [row["id"] for row in prompts if row["id"] not in taken]
    for grammar in order:
        if grammar.match.any:
            pairs += [(prompt_id, grammar.name, None, 0.0) for prompt_id in rest[: quotas[grammar.name]]]
            rest = rest[quotas[grammar.name] :]
            near += rest
    return pairs, near


def _tool_names(grammar: Grammar) -> list[str | None]:
    return [tool.name for tool in grammar.tools] or [None]


def texts(grammar: Grammar) -> list[tuple[str, str]]:
    """For each tool, what it does and takes; without tools, what the grammar is about and its fields."""
    about = grammar.match.about or ""
    if not grammar.tools:
        return [(f"{grammar.description} {about}", _fields(grammar.schema_ or {}))]
    return [(f"{tool.name} {tool.description} {about}", _fields(tool.parameters)) for tool in grammar.tools]


def _fields(schema: dict[str, Any]) -> str:
    """Names, descriptions and listed values of a schema's properties."""
    said: list[str] = []
    for name, field in schema.get("properties", {}).items():
        if isinstance(field, dict):
            listed = [value for value in field.get("enum", []) if isinstance(value, str)]
            said += [name, field.get("description", ""), *listed, _fields(field)]
    return " ".join(said)


def _in_turns(queues: Sequence[Sequence[_Ranked]]) -> list[_Ranked]:
    """The first of each queue, then the second of each, and so on."""
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _first(prompts: Sequence[Row], wanted: int, states: dict[str, str]) -> list[str]:
    """Ids of the first prompts that are still free; the others are marked as surplus."""
    free = [row["id"] for row in prompts if states[row["id"]] != "kept"]
    states.update(dict.fromkeys(free, "surplus"))
    return free[:wanted]
