"""Values of slots that the target itself writes, before conversations are rendered."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from synthspec.errors import UserError
from synthspec.files import content_id
from synthspec.grammar.model import Grammar
from synthspec.grammar.slots import asked_slots
from synthspec.prompting.render import encode
from synthspec.targets.answer import Asker
from synthspec.targets.load import LoadedTarget

Row = dict[str, Any]

_SENTENCES = re.compile(r".*(?:[.!?…](?=\s|$)|[。！？])", re.DOTALL)


def write_values(
    grammars: Sequence[Grammar],
    target: LoadedTarget,
    ask: Asker,
    seed: int,
    most: int | None = None,
    tick: Callable[[int], None] = lambda n: None,
) -> list[Row]:
    """Let the target write the values of all slots that ask it.

    Answers are sampled, each from a seed of its own, so that on the embedded target the same spec gives the
    same values.

    Args:
        ask: who answers as the target.
        seed: the spec's.
        most: values of a slot, at most.
        tick: called with the number of values written.

    Returns:
        Rows of `samples.schema.SLOT_VALUES`, one an answer; its state is kept, duplicate, truncated (cut before
        the end of its first sentence), degenerate (nothing was written), or error (of the engine).

    Raises:
        UserError: of all that was written for a slot nothing can be used.
    """
    requests: list[Row] = [
        {
            "grammar": grammar.name,
            "set": None,
            "slot": name,
            "prompt_ids": encode(target.tokenizer, [{"role": "user", "content": slot.ask}]),
            "constraint": None,
            "max_new_tokens": slot.max_new_tokens,
            "temperature": slot.temperature,
            "seed": int(content_id("asked", seed, grammar.name, name, number), 16) >> 1,
        }
        for grammar, name, slot in asked_slots(grammars)
        for number in range(min(slot.values, most or slot.values))
    ]
    answers = ask(requests, tick)
    rows: list[Row] = []
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    for request, answered in zip(requests, answers, strict=True):
        ids, finish_reason = (answered.ids, answered.finish_reason) if answered else ([], "no answer")
        where = request["grammar"], request["slot"]
        text, state = _value(target.tokenizer.decode(ids, skip_special_tokens=True), finish_reason)
        if state == "kept" and text in seen[where]:
            state = "duplicate"
        seen[where].add(text)
        rows.append({"grammar": where[0], "slot": where[1], "ids": ids, "text": text, "state": state})
    for grammar, name, _ in asked_slots(grammars):
        states = [row["state"] for row in rows if (row["grammar"], row["slot"]) == (grammar.name, name)]
        if "kept" not in states:
            told = ", ".join(f"{states.count(state):,} {state}" for state in sorted(set(states)))
            raise UserError(
                f"grammar {grammar.name}: slots.{name}: the target wrote nothing that can be used ({told}): "
                "ask for something shorter or plainer, or raise max_new_tokens"
            )
    return rows


def longest_value(grammars: Iterable[Grammar]) -> int:
    """The most tokens of what is asked for a slot, generously, and its answer."""
    return max((len(slot.ask) + 64 + slot.max_new_tokens for *_, slot in asked_slots(grammars)), default=0)


def by_slot(rows: Iterable[Row]) -> dict[str, dict[str, list[str]]]:
    """The texts that can be used, by grammar and slot, in their order."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["state"] == "kept":
            found[row["grammar"]][row["slot"]].append(row["text"])
    return {grammar: dict(slots) for grammar, slots in found.items()}


def _value(answer: str, finish_reason: str) -> tuple[str, str]:
    """What of an answer is a value, and its state.

    That is the first paragraph behind what a target thinks aloud, without quotes around it; of an answer that
    was cut, up to its last sentence.
    """
    if finish_reason not in ("stop", "length"):
        return "", "error"
    _, thought, said = answer.rpartition("</think>")
    if not thought and answer.lstrip().startswith("<think>"):
        return "", "truncated"
    first, _, more = said.strip().partition("\n\n")
    if finish_reason == "length" and not more:
        whole = _SENTENCES.match(first)
        if whole is None:
            return "", "truncated" if first else "degenerate"
        first = whole.group()
    text = first.strip()
    if len(text) > 1 and (text[0], text[-1]) in {('"', '"'), ("“", "”"), ("'", "'")}:
        text = text[1:-1].strip()
    return text, "kept" if text else "degenerate"
