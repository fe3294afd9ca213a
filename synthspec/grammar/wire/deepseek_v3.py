"""Tool calls as DeepSeek V3 writes them: a name and a block of JSON between tokens of its own."""

from __future__ import annotations

from synthspec.grammar.constraint import Constraint, Json, Text, choice, row
from synthspec.grammar.schemas import bounded
from synthspec.grammar.wire.answer import Answer, Calls, Tools
from synthspec.grammar.wire.jsontext import dumps
from synthspec.grammar.wire.layout import section
from synthspec.grammar.wire.reader import Reader, opening, plain_text

TAGS: tuple[str, ...] = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_ALL, _ONE, _SEPARATOR, _ONE_END, _ALL_END = TAGS

OPEN, HOLD = opening(_ALL)


def write(answer: Answer, tools: Tools) -> str:
    """The text of an answer, its calls one under the other."""
    text = plain_text(answer, TAGS, OPEN)
    calls = [_begin(call.name) + dumps(call.arguments) + _END for call in answer.calls]
    return text + (_ALL + "\n".join(calls) + _ALL_END if calls else "")


def block(reader: Reader, tools: Tools) -> None:
    """All calls.  The JSON is read before what ends it is looked for, so that a string may hold that."""
    reader.take(_ALL)
    while True:
        reader.space()
        if reader.take(_ONE, _ALL_END) == _ALL_END:
            return
        reader.take("function")
        reader.take(_SEPARATOR)
        name = reader.until("\n").strip()
        reader.take("\n")
        reader.take("```json")
        arguments = reader.arguments()
        reader.space()
        reader.take("```")
        reader.space()
        reader.take(_ONE_END)
        reader.call(name, arguments)


def constraint(tools: Tools, calls: Calls) -> Constraint:
    """What an answer must be."""
    each = [row(Text(_begin(name)), Json(bounded(schema)), Text(_END)) for name, schema in tools.items()]
    return Constraint(section(_ALL, choice(each), _ALL_END, calls, TAGS, "\n"), "deepseek_v3")


_END = f"\n```{_ONE_END}"


def _begin(name: str) -> str:
    return f"{_ONE}function{_SEPARATOR}{name}\n```json\n"
