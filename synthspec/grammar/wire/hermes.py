"""Tool calls as the Hermes and Qwen 2.5 and 3 families write them: JSON between `<tool_call>` tags."""

from __future__ import annotations

from synthspec.grammar.constraint import Constraint, Json, Text, row
from synthspec.grammar.schemas import call_schema
from synthspec.grammar.wire.answer import Answer, Calls, Tools
from synthspec.grammar.wire.jsontext import dumps
from synthspec.grammar.wire.layout import around
from synthspec.grammar.wire.reader import Reader, opening, plain_text

TAGS: tuple[str, ...] = ("<tool_call>", "</tool_call>")

OPEN, HOLD = opening("<tool_call>")


def write(answer: Answer, tools: Tools) -> str:
    """The text of an answer, one call under the other."""
    text = plain_text(answer, TAGS, OPEN)
    calls = [
        f"<tool_call>\n{dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"
        for call in answer.calls
    ]
    return "\n".join([*([text] if text else []), *calls])


def block(reader: Reader, tools: Tools) -> None:
    """One call.  The JSON is read before its closing tag is looked for, so that a string may hold the tag."""
    reader.take("<tool_call>")
    reader.call_object()
    reader.space()
    reader.take("</tool_call>")


def constraint(tools: Tools, calls: Calls) -> Constraint:
    """What an answer must be."""
    rest = row(Json(call_schema(tools)), Text("\n</tool_call>"))
    return Constraint(around("<tool_call>\n", rest, calls, TAGS, "\n", "\n"), "hermes")
