"""The bare JSON value: an extraction's, or one call `{"name": ..., "arguments": ...}`, or a list of several."""

from __future__ import annotations

import re

from synthspec.grammar.constraint import Constraint, Json, Part, Repeat, Text, choice, row
from synthspec.grammar.schemas import call_schema
from synthspec.grammar.wire.answer import Answer, Calls, Tools
from synthspec.grammar.wire.jsontext import dumps
from synthspec.grammar.wire.reader import Reader

TAGS: tuple[str, ...] = ()

OPEN = re.compile(r"\A")
HOLD = re.compile(r"(?!)")


def write(answer: Answer, tools: Tools) -> str:
    """The text of an answer's calls; there is no place for plain text."""
    if answer.text:
        raise ValueError("the wire format json has no place for plain text")
    calls = [{"name": call.name, "arguments": call.arguments} for call in answer.calls]
    return dumps(calls[0] if len(calls) == 1 else calls)


def block(reader: Reader, tools: Tools) -> None:
    """The whole answer."""
    reader.space()
    if reader.skip("["):
        reader.space()
        more = not reader.skip("]")
        while more:
            reader.call_object()
            reader.space()
            more = reader.take(",", "]") == ","
    else:
        reader.call_object()
    reader.space()
    if reader.at < len(reader.text):
        raise ValueError(f"there is more after the JSON value, from character {reader.at}")


def constraint(tools: Tools, calls: Calls) -> Constraint:
    """What an answer must be."""
    one = Json(call_schema(tools))
    shapes: list[Part] = [one] if calls.least <= 1 and calls.most != 0 else []
    if calls.most is None or calls.most > 1:
        shapes.append(row(Text("["), Repeat(one, max(calls.least, 2), calls.most, ", "), Text("]")))
    if not calls.least:
        shapes.append(Text("[]"))
    return Constraint(choice(shapes), "json")
