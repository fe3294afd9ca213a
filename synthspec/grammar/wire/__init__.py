"""How a target writes its answer: one module per wire format, all with the same names."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from synthspec.grammar.wire import (
    deepseek_v3,
    glm,
    harmony,
    hermes,
    json,
    kimi_k2,
    llama3_json,
    mistral,
    pythonic,
    qwen_xml,
)
from synthspec.grammar.wire.answer import Answer, Call, Calls, Tools
from synthspec.grammar.wire.jsontext import dumps, loads
from synthspec.grammar.wire.reader import Reader, read

if TYPE_CHECKING:
    from synthspec.grammar.constraint import Constraint
    from synthspec.grammar.model import Grammar, Played, Tool


class Wire(Protocol):
    """What a module of a wire format holds."""

    TAGS: tuple[str, ...]  # texts that it begins or ends something with, often special tokens
    OPEN: re.Pattern[str]  # where a block of calls begins
    HOLD: re.Pattern[str]  # the end of a text that may become such a place

    def write(self, answer: Answer, tools: Tools) -> str:
        """The text of an answer; ValueError, in words, if it would not be read as it is."""

    def block(self, reader: Reader, tools: Tools) -> None:
        """Read the block of calls at the reader's place; `Unfinished`, or ValueError in words."""

    def constraint(self, tools: Tools, calls: Calls) -> Constraint:
        """What a target has to be held to, so that it writes this format."""


FORMATS: dict[str, Wire] = {
    "hermes": hermes,
    "qwen_xml": qwen_xml,
    "llama3_json": llama3_json,
    "pythonic": pythonic,
    "mistral": mistral,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": kimi_k2,
    "glm": glm,
    "harmony": harmony,
    "json": json,
}


def _format(grammar: Grammar) -> Wire:
    assert grammar.wire_format is not None  # a grammar of kind tool_call has one
    return FORMATS[grammar.wire_format]


def calls_of(grammar: Grammar, turn: int | None = None) -> Calls:
    """How many calls an answer of the grammar has.

    Args:
        turn: which of the turns that the target writes it is, from 0; None: the last.
    """
    if turn is not None and turn < len(grammar.played):
        count = grammar.played[turn].calls
        return Calls(count, count, "before" if grammar.shape.prose or not count else "none")
    counts = [count for count, weight in grammar.shape.calls.items() if weight]
    return Calls(min(counts), max(counts), "before" if grammar.shape.prose or 0 in counts else "none")


def answer_of(value: Any) -> Answer:
    """One call `{name, arguments}` or a list of calls, as grammars and examples hold them."""
    calls = value if isinstance(value, list) else [value]
    return Answer(calls=tuple(Call(call["name"], call["arguments"]) for call in calls))


def write(grammar: Grammar, value: Any) -> str:
    """A value as the grammar's target writes it: a text, an extraction's, an `Answer`, or calls."""
    if grammar.written is not None:
        return str(value)
    if grammar.kind == "extraction":
        return dumps(value)
    answer = value if isinstance(value, Answer) else answer_of(value)
    return _format(grammar).write(answer, grammar.tool_schemas)


def parse(grammar: Grammar, text: str) -> Any:
    """The value of a whole completion: a text (code too), an extraction's, or an `Answer`.

    Raises:
        ValueError: it is not in the grammar's format, in words.
    """
    if grammar.written is not None:
        return text
    if grammar.kind == "extraction":
        return loads(text)
    return answer_in(grammar.wire_format or "", text, grammar.tool_schemas)


def answer_in(wire_format: str, text: str, tools: Tools) -> Answer:
    """The answer that a whole text is.

    Raises:
        ValueError: it is not in this wire format, or not finished, in words.
    """
    reading = read(FORMATS[wire_format], text, tools)
    if reading.wrong:
        raise ValueError(reading.wrong)
    if reading.open is not None:
        raise ValueError(f"the tool call at character {reading.open} is not finished")
    return reading.answer


def constraint(grammar: Grammar) -> Constraint:
    """What a completion of the grammar is held to; ValueError, in words, if its format has no way to."""
    from synthspec.grammar.constraint import Constraint, Json
    from synthspec.grammar.schemas import bounded, inlined
    from synthspec.grammar.written import constraint as of_written

    if grammar.written is not None:
        return of_written(grammar.written)
    if grammar.kind == "extraction":
        return Constraint(Json(bounded(inlined(grammar.schema_ or {}))))
    return _format(grammar).constraint(grammar.tool_schemas, calls_of(grammar))


def drawn(
    grammar: Grammar, tools: Iterable[Tool], dice: random.Random, played: Played | None = None
) -> Constraint:
    """What one completion is held to, with the number of calls, fields and lengths drawn from the shape.

    Args:
        tools: those that the request shows.
        played: the earlier turn that it is; None: the last.
    """
    from synthspec.grammar.constraint import Constraint, Json
    from synthspec.grammar.schemas import bounded, inlined
    from synthspec.grammar.shape import draw_calls, shaped

    called = played if grammar.kind == "tool_call" else None
    if grammar.shape.always_alike and grammar.catalogue is None and called is None:
        return grammar.constraint
    if grammar.kind == "extraction":
        (schema,) = shaped({"": inlined(grammar.schema_ or {})}, grammar.shape, dice).values()
        return Constraint(Json(bounded(schema)))
    count = called.calls if called else draw_calls(grammar.shape, dice)
    if called and called.tools is not None:
        tools = [tool for tool in tools if tool.name in called.tools]
    speaks = count == 0 or dice.random() < grammar.shape.prose
    schemas = grammar.tool_schemas
    shown = shaped({tool.name: schemas[tool.name] for tool in tools}, grammar.shape, dice)
    made = _format(grammar).constraint(shown, Calls(count, count, "before" if speaks else "none"))
    return made if made.tools else replace(made, tools={name: {} for name in shown})
