"""Tool calls as Mistral writes them: a JSON list behind a tag, or the compact `[TOOL_CALLS]name[ARGS]{}`."""

from __future__ import annotations

from synthspec.grammar.constraint import Constraint, Json
from synthspec.grammar.schemas import call_schema
from synthspec.grammar.wire.answer import Answer, Calls, Tools
from synthspec.grammar.wire.jsontext import dumps
from synthspec.grammar.wire.layout import section
from synthspec.grammar.wire.reader import Reader, opening, plain_text

TAGS: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]")

OPEN, HOLD = opening("[TOOL_CALLS]")


def write(answer: Answer, tools: Tools) -> str:
    """The text of an answer, its calls in one list."""
    text = plain_text(answer, TAGS, OPEN)
    calls = [{"name": call.name, "arguments": call.arguments} for call in answer.calls]
    return f"{text}[TOOL_CALLS] {dumps(calls)}" if calls else text


def block(reader: Reader, tools: Tools) -> None:
    """A list of calls, which may have ids, or one compact call."""
    reader.take("[TOOL_CALLS]")
    reader.space()
    if reader.at < len(reader.text) and reader.text[reader.at] != "[":
        name = reader.until("[ARGS]").strip()
        reader.take("[ARGS]")
        reader.call(name, reader.arguments())
        return
    reader.take("[")
    while True:
        reader.call_object(also=("id",))
        reader.space()
        if reader.take(",", "]") == "]":
            return


def constraint(tools: Tools, calls: Calls) -> Constraint:
    """What an answer must be, in the form of a list."""
    call = Json(call_schema(tools))
    return Constraint(section("[TOOL_CALLS] [", call, "]", calls, TAGS, ", "), "mistral")
