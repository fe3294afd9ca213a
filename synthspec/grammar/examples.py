"""Redacted outputs, as people write them in examples and earlier turns, with values in place of the marks."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from synthspec.grammar import written
from synthspec.grammar.invent import Unfillable, invented
from synthspec.grammar.redacted import MARK, Fill, filler
from synthspec.grammar.schemas import inlined
from synthspec.grammar.wire.answer import Answer, Call

if TYPE_CHECKING:
    from synthspec.grammar.model import Grammar

FORMS = "a call {name, arguments}, a list of calls, a text, or {text, calls}"


def parts(output: Any) -> tuple[str, list[dict[str, Any]]]:
    """The text and the calls of an output that is written down as one of `FORMS`; ValueError if it is none."""
    if isinstance(output, str):
        return output, []
    if isinstance(output, dict) and set(output) == {"text", "calls"}:
        text, calls = output["text"], output["calls"]
    else:
        text, calls = "", output if isinstance(output, list) else [output]
    if not isinstance(text, str) or not isinstance(calls, list) or not all(map(_is_marked_call, calls)):
        raise ValueError(f"must be {FORMS}, and nothing else")
    return text, calls


def is_call(value: Any) -> bool:
    """Whether a value is an object of a name and arguments, whatever those are."""
    return isinstance(value, dict) and set(value) == {"name", "arguments"} and isinstance(value["name"], str)


def _is_marked_call(value: Any) -> bool:
    return is_call(value) and (isinstance(value["arguments"], dict) or _is_mark(value["arguments"]))


def _is_mark(value: Any) -> bool:
    return isinstance(value, str) and MARK.fullmatch(value) is not None


def output_filler(grammar: Grammar, output: Any) -> Fill:
    """How an output is filled: a function of slots' values and dice, that gives an `Answer`, an
    extraction's value, or a text.

    Raises:
        ValueError: it has none of the `FORMS`.
        Unfillable: no value can be invented for a mark.
    """
    if grammar.written is not None:
        return written.filler(grammar.written, output)
    if grammar.kind == "extraction":
        return filler(output, inlined(grammar.schema_ or {}))
    text, calls = parts(output)
    say = filler(text, {"type": "string"})
    schemas = grammar.tool_schemas
    asks = [_call(call, schemas.get(call["name"], {})) for call in calls]
    return lambda slots, dice: Answer(say(slots, dice), tuple(ask(slots, dice) for ask in asks))


def _call(call: dict[str, Any], schema: dict[str, Any]) -> Fill:
    name = call["name"]
    try:
        fill = filler(call["arguments"], schema)
    except Unfillable as error:
        raise error.below("arguments").below(name) from None

    def ask(slots: Mapping[str, Any], dice: random.Random) -> Call:
        try:
            return Call(name, fill(slots, dice))
        except Unfillable as error:
            raise error.below("arguments").below(name) from None

    return ask


def stand_ins(grammar: Grammar, slots: Mapping[str, Any], seed: int) -> list[Any]:
    """What the target might say in its turns before the last, where no target is asked."""
    dice = random.Random(seed)
    found: list[Any] = []
    for turn in grammar.played:
        if grammar.kind != "tool_call":
            found.append(grammar.fillers[0](slots, dice))
        elif not turn.calls:
            found.append(Answer("…"))
        else:
            names = turn.tools or tuple(tool.name for tool in grammar.tools)
            called = [dice.choice(names) for _ in range(turn.calls)]
            schemas = grammar.tool_schemas
            found.append(Answer(calls=tuple(Call(name, invented(schemas[name], dice)) for name in called)))
    return found


def filled_examples(grammar: Grammar, slots: Mapping[str, Any], seed: int) -> list[Any]:
    """All examples of a grammar with values in place of their marks."""
    dice = random.Random(seed)
    return [fill(slots, dice) for fill in grammar.fillers]
