"""Tool calls as Qwen3-Coder writes them: a function and its parameters in tags, strings as they are."""

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
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
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
    """One call."""
    reader.take("<tool_call>")
    reader.space()
    reader.take("<function=")
    name = reader.until(">")
    reader.take(">")
    known = parameters(tools.get(name, {}))
    arguments: dict[str, Any] = {}
    while True:
        reader.space()
        if reader.take("<parameter=", "</function>") == "</function>":
            break
        key = reader.until(">")
        reader.take(">")
        value = read_value(reader, known.get(key, {}), "</parameter>", "\n")
        if key in arguments:
            raise ValueError("a call has the same parameter twice")
        # The family's readers take this word for the empty value, whatever the type.
        arguments[key] = None if isinstance(value, str) and value.lower() == "null" else value
    reader.space()
    reader.take("</tool_call>")
    reader.call(name, arguments)


def constraint(tools: Tools, calls: Calls) -> Constraint:
    """What an answer must be."""
    schemas = {name: bounded(schema) for name, schema in tools.items()}
    each = [
        row(
            Text(f"{name}>\n"),
            *(
                _parameter(key, schema, key in tool.get("required", ()))
                for key, schema in parameters(tool).items()
            ),
            Text("</function>\n</tool_call>"),
        )
        for name, tool in schemas.items()
    ]
    part = around("<tool_call>\n<function=", choice(each), calls, TAGS, "\n", "\n")
    return Constraint(part, "qwen_xml", {name: dict(schema) for name, schema in tools.items()})


def _written(call: Call, tools: Tools) -> str:
    known = parameters(tools.get(call.name, {}))
    lines = []
    for key, value in call.arguments.items():
        if not key or ">" in key:
            raise ValueError("a parameter's name cannot be empty or hold >")
        text = written(value, known.get(key, {}), TAGS)
        if isinstance(value, str) and value.lower() == "null":
            raise ValueError("the string null cannot be told from the empty value")
        lines.append(f"<parameter={key}>\n{text}\n</parameter>\n")
    return f"<tool_call>\n<function={call.name}>\n{''.join(lines)}</function>\n</tool_call>"


def _parameter(key: str, schema: dict[str, Any], required: bool) -> Part:
    one = row(Text(f"<parameter={key}>\n"), argument(schema, TAGS), Text("\n</parameter>\n"))
    return one if required else Repeat(one, 0, 1)
