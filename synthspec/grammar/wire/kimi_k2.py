"""Tool calls as Kimi K2 writes them: `functions.name:number` and JSON between tokens of its own."""

from __future__ import annotations

import re

from synthspec.grammar.constraint import Constraint, Json, Regex, Text, choice, row
from synthspec.grammar.schemas import bounded
from synthspec.grammar.wire.answer import Answer, Calls, Tools
from synthspec.grammar.wire.jsontext import dumps
from synthspec.grammar.wire.layout import section
from synthspec.grammar.wire.reader import Reader, opening, plain_text

TAGS: tuple[str, ...] = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
_ALL, _ONE, _ARGUMENTS, _ONE_END, _ALL_END = TAGS

OPEN, HOLD = opening(_ALL)

_ID = re.compile(r"\s*(?:functions\.)?([^\s:](?:\S*[^\s:])?):[0-9]+\s*")


def write(answer: Answer, tools: Tools) -> str:
    """The text of an answer; calls are numbered from 0."""
    text = plain_text(answer, TAGS, OPEN)
    calls = [
        f"{_ONE}functions.{call.name}:{number}{_ARGUMENTS}{dumps(call.arguments)}{_ONE_END}"
        for number, call in enumerate(answer.calls)
    ]
    return text + (_ALL + "".join(calls) + _ALL_END if calls else "")


def block(reader: Reader, tools: Tools) -> None:
    """All calls, whatever their numbers: those count on through a conversation."""
    reader.take(_ALL)
    while True:
        reader.space()
        if reader.take(_ONE, _ALL_END) == _ALL_END:
            return
        place = reader.at
        named = _ID.fullmatch(reader.until(_ARGUMENTS))
        if not named:
            raise ValueError(f"there is no functions.name:number at character {place}")
        reader.take(_ARGUMENTS)
        arguments = reader.arguments()
        reader.space()
        reader.take(_ONE_END)
        reader.call(named[1], arguments)


def constraint(tools: Tools, calls: Calls) -> Constraint:
    """What an answer must be."""
    each = [
        row(
            Text(f"{_ONE}functions.{name}:"),
            Regex("[0-9]{1,3}"),
            Text(_ARGUMENTS),
            Json(bounded(schema)),
            Text(_ONE_END),
        )
        for name, schema in tools.items()
    ]
    return Constraint(section(_ALL, choice(each), _ALL_END, calls, TAGS), "kimi_k2")
