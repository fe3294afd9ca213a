"""Tool calls as GLM 4.5 and later write them: a name, then keys and values in tags, strings as they are."""

from __future__ import annotations

from typing import Any

from synthspec.grammar.constraint import Constraint, Part, Repeat, Text, choice, row
from synthspec.grammar.schemas import bounded
from synthspec.grammar.wire.answer import Answer, Call, Calls, Tools
from synthspec.grammar.wire.layout import around
from synthspec.grammar.wire.reader import Reader, opening, plain_text
from synthspec.grammar.wire.typed import argument, parameters, read_value, written

TAGS: tuple[str, ...] = (
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)

OPEN, HOLD = opening("<tool_call>")


def write(answer: Answer, tools: Tools) -> str:
    """The text of an answer, one call under the other.

    Raises:
        ValueError: an argument that this format cannot write so that it is read again.
    """
    text = plain_text(answer, TAGS, OPEN)
    return "\n".join([*([text] if text else []), *(_written(call, tools) for call in answer.calls)])


def block(reader: Reader, tools: Tools) -> None:
    """One call, with line ends between its tags (4.5 and 4.6) or without (4.7 and later)."""
    reader.take("<tool_call>")
    name = reader.until("<arg_key>", "</tool_call>").strip()
    known = parameters(tools.get(name, {}))
    arguments: dict[str, Any] = {}
    while True:
        reader.space()
        if reader.take("<arg_key>", "</tool_call>") == "</tool_call>":
            reader.call(name, arguments)
            return
        key = reader.until("</arg_key>").strip()
        reader.take("</arg_key>")
        reader.space()
        reader.take("<arg_value>")
        value = read_value(reader, known.get(key, {}), "</arg_value>")
        if key in arguments:
            raise ValueError("a call has the same argument twice")
        arguments[key] = value


def constraint(tools: Tools, calls: Calls) -> Constraint:
    """What an answer must be, in the form of 4.5 and 4.6."""
    schemas = {name: bounded(schema) for name, schema in tools.items()}
    each = [
        row(
            Text(f"{name}\n"),
            *(
                _argument(key, schema, key in tool.get("required", ()))
                for key, schema in parameters(tool).items()
            ),
            Text("</tool_call>"),
        )
        for name, tool in schemas.items()
    ]
    part = around("<tool_call>", choice(each), calls, TAGS, "\n", "\n")
    return Constraint(part, "glm", {name: dict(schema) for name, schema in tools.items()})


def _written(call: Call, tools: Tools) -> str:
    known = parameters(tools.get(call.name, {}))
    lines = []
    for key, value in call.arguments.items():
        if not key or key != key.strip() or any(tag in key for tag in TAGS):
            raise ValueError("a parameter's name cannot be empty, hold a tag, or have white space at its ends")
        text = written(value, known.get(key, {}), TAGS)
        lines.append(f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n")
    return f"<tool_call>{call.name}\n{''.join(lines)}</tool_call>"


def _argument(key: str, schema: dict[str, Any], required: bool) -> Part:
    begin = Text(f"<arg_key>{key}</arg_key>\n<arg_value>")
    one = row(begin, argument(schema, TAGS), Text("</arg_value>\n"))
    return one if required else Repeat(one, 0, 1)
