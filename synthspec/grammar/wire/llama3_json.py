"""Tool calls as Llama 3 writes them: JSON of name and parameters, behind a tag where text is before."""

from __future__ import annotations

import re

from synthspec.grammar.constraint import Constraint, Free, Json, Regex, choice, repeat, row
from synthspec.grammar.schemas import call_schema
from synthspec.grammar.wire.answer import Answer, Calls, Tools
from synthspec.grammar.wire.jsontext import dumps
from synthspec.grammar.wire.layout import section
from synthspec.grammar.wire.reader import Reader, opening, plain_text

TAGS: tuple[str, ...] = ("<|python_tag|>",)

OPEN, _HELD_TAG = opening(*TAGS, also=r"\A\s*\{")
HOLD = re.compile(rf"{_HELD_TAG.pattern}|\A\s+\Z")


def write(answer: Answer, tools: Tools) -> str:
    """The text of an answer; several calls are parted by semicolons."""
    text = plain_text(answer, TAGS, OPEN)
    calls = ";".join(dumps({"name": call.name, "parameters": call.arguments}) for call in answer.calls)
    return f"{text}<|python_tag|>{calls}" if text and calls else text + calls


def block(reader: Reader, tools: Tools) -> None:
    """All calls, to the answer's end or to plain text behind them."""
    reader.space()
    reader.skip("<|python_tag|>")
    while True:
        reader.call_object()
        behind = reader.at
        reader.space()
        if not reader.skip(";"):
            reader.at = behind
            return


def constraint(tools: Tools, calls: Calls) -> Constraint:
    """What an answer must be."""
    call = Json(call_schema(tools, "parameters"))
    bare = repeat(call, max(calls.least, 1), calls.most, ";")
    if calls.text == "none":
        return Constraint(repeat(bare, min(calls.least, 1), 1), "llama3_json")
    # What begins with a brace is a call.
    text = row(Regex(r"[^{\s]"), Free(TAGS))
    tagged = section(TAGS[0], call, "", calls, TAGS, ";", text=text)
    return Constraint(tagged if calls.most == 0 else choice([bare, tagged]), "llama3_json")
