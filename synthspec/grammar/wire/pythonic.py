"""Tool calls as Llama 4 writes them: a Python list of calls, `[name(key="value", other=True)]`."""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from typing import Any

from synthspec.grammar.constraint import Constraint, Json, Part, Repeat, Text, choice, row
from synthspec.grammar.schemas import bounded
from synthspec.grammar.wire.answer import Answer, Call, Calls, Tools
from synthspec.grammar.wire.jsontext import dumps
from synthspec.grammar.wire.layout import section
from synthspec.grammar.wire.reader import Reader, Unfinished, opening, plain_text
from synthspec.grammar.wire.typed import kinds, parameters

TAGS: tuple[str, ...] = ("<|python_start|>", "<|python_end|>")
_NOT_IN_TEXT = ("[", *TAGS)

OPEN, _HELD_TAG = opening(*TAGS, also=r"\[\s*[A-Za-z_]\w*\(")
HOLD = re.compile(rf"{_HELD_TAG.pattern}|\[\s*(?:[A-Za-z_]\w*)?\Z")

_NAME = re.compile(r"[A-Za-z_]\w*")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"True": True, "False": False, "None": None}


def write(answer: Answer, tools: Tools) -> str:
    """The text of an answer, all calls in one list.

    Raises:
        ValueError: a tool or a parameter whose name Python does not allow.
    """
    text = plain_text(answer, _NOT_IN_TEXT, OPEN)
    calls = "[" + ", ".join(map(_written, answer.calls)) + "]" if answer.calls else ""
    return "\n".join(filter(None, (text, calls)))


def block(reader: Reader, tools: Tools) -> None:
    """One list of calls, or a tag beside one, which says nothing."""
    if reader.skip(TAGS[1]):
        return
    if reader.skip(TAGS[0]):
        reader.space()
    reader.take("[")
    while True:
        name = _name(reader)
        reader.take("(")
        arguments: dict[str, Any] = {}
        reader.space()
        more = not reader.skip(")")
        while more:
            key = _name(reader)
            reader.take("=")
            if key in arguments:
                raise ValueError("a call has the same parameter twice")
            arguments[key] = _value(reader)
            reader.space()
            more = reader.take(",", ")") == ","
        reader.call(name, arguments)
        reader.space()
        if reader.take(",", "]") == "]":
            return


def constraint(tools: Tools, calls: Calls) -> Constraint:
    """What an answer must be.

    Raises:
        ValueError: a name that Python does not allow, or a schema that has no plain form of literals.
    """
    each = []
    for name, schema in tools.items():
        checked = bounded(schema)
        required = checked.get("required", ())
        members = [
            (row(Text(f"{_allowed(key)}="), literal(inner)), key in required)
            for key, inner in parameters(checked).items()
        ]
        each.append(row(Text(f"{_allowed(name)}("), _members(members), Text(")")))
    return Constraint(section("[", choice(each), "]", calls, _NOT_IN_TEXT, ", ", "\n"), "pythonic")


def literal(schema: dict[str, Any]) -> Part:
    """A JSON value of a bounded schema as a Python literal.

    Raises:
        ValueError: the schema uses a keyword that is not plain enough.
    """
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return choice([Text(_literal(value)) for value in values])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            shared = {other: value for other, value in schema.items() if other != key}
            return choice([literal({**shared, **part}) for part in schema[key]])
    for key in ("allOf", "not", "if", "patternProperties", "contains", "dependentSchemas"):
        if key in schema:
            raise ValueError(
                f"the wire format pythonic cannot be held to the keyword {key}; write the schema without"
            )
    named = schema.get("type", [])
    return choice(
        [_of(kind, schema) for kind in ([named] if isinstance(named, str) else named) or kinds(schema)]
    )


def _of(kind: str, schema: dict[str, Any]) -> Part:
    match kind:
        case "null":
            return Text("None")
        case "boolean":
            return choice([Text("True"), Text("False")])
        case "array":
            first = [literal(item) for item in schema.get("prefixItems", ())]
            items = schema.get("items", {})
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            if first:
                return row(
                    Text("["), _members([(part, index < least) for index, part in enumerate(first)]), Text("]")
                )
            inside = Text("") if most == 0 or items is False else Repeat(literal(items), least, most, ", ")
            return row(Text("["), inside, Text("]"))
        case "object":
            required = schema.get("required", ())
            members = [
                (row(Text(f"{_literal(key)}: "), literal(inner)), key in required)
                for key, inner in schema.get("properties", {}).items()
            ]
            more = schema.get("additionalProperties", False)
            if not members and isinstance(more, dict):
                key = Json({"type": "string", "maxLength": 60})
                pair = row(key, Text(": "), literal(more))
                inside = Repeat(pair, schema.get("minProperties", 0), schema.get("maxProperties"), ", ")
                return row(Text("{"), inside, Text("}"))
            return row(Text("{"), _members(members), Text("}"))
        case _:
            return Json({**schema, "type": kind})


def _members(members: list[tuple[Part, bool]]) -> Part:
    """Members in their order, parted by commas; those that are not required may be missing."""
    first = next((index for index, (_, required) in enumerate(members) if required), None)
    if first is None:
        starts = [row(part, _rest(members[index + 1 :])) for index, (part, _) in enumerate(members)]
        return Repeat(choice(starts), 0, 1) if starts else Text("")
    before = [Repeat(row(part, Text(", ")), 0, 1) for part, _ in members[:first]]
    return row(*before, members[first][0], _rest(members[first + 1 :]))


def _rest(members: list[tuple[Part, bool]]) -> Part:
    """Members behind another one."""
    return row(
        Text(""),
        *(
            row(Text(", "), part) if required else Repeat(row(Text(", "), part), 0, 1)
            for part, required in members
        ),
    )


def _written(call: Call) -> str:
    arguments = (f"{_allowed(key)}={_literal(value)}" for key, value in call.arguments.items())
    return f"{_allowed(call.name)}({', '.join(arguments)})"


def _allowed(name: str) -> str:
    if not _NAME.fullmatch(name) or not name.isascii() or keyword.iskeyword(name):
        raise ValueError("the wire format pythonic needs tools and parameters whose names are Python's")
    return name


def _literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dumps(key)}: {_literal(inner)}" for key, inner in value.items()) + "}"
    return dumps(value)


def _name(reader: Reader) -> str:
    reader.space()
    found = _NAME.match(reader.text, reader.at)
    if reader.at == len(reader.text) or (found and found.end() == len(reader.text)):
        raise Unfinished
    if not found:
        raise ValueError(f"there is no name at character {reader.at}")
    reader.at = found.end()
    reader.space()
    return found[0]


def _value(reader: Reader, inside: int = 0) -> Any:
    if inside > 200:
        raise ValueError("the arguments are nested too deeply")
    reader.space()
    start = reader.at
    here = reader.text[start : start + 1]
    if here in ("'", '"'):
        return _string(reader, is_value=True)
    if here == "[":
        reader.take("[")
        items: list[Any] = []
        reader.space()
        more = not reader.skip("]")
        while more:
            items.append(_value(reader, inside + 1))
            reader.space()
            more = reader.take(",", "]") == ","
        return items
    if here == "{":
        reader.take("{")
        pairs: dict[str, Any] = {}
        reader.space()
        more = not reader.skip("}")
        while more:
            reader.space()
            key = _string(reader, is_value=False)
            reader.space()
            reader.take(":")
            if key in pairs:
                raise ValueError("an object has the same key twice")
            pairs[key] = _value(reader, inside + 1)
            reader.space()
            more = reader.take(",", "}") == ","
        return pairs
    return _plain(reader)


def _plain(reader: Reader) -> Any:
    """A number or a word."""
    found = re.compile(r"[^\s,\])}\[({:]*").match(reader.text, reader.at)
    assert found
    if found.end() == len(reader.text):
        if found[0]:
            reader.values.append(found.span())
        raise Unfinished
    if found[0] not in _WORDS and not _NUMBER.fullmatch(found[0]):
        raise ValueError(f"there is no literal of Python at character {reader.at}")
    value = _WORDS[found[0]] if found[0] in _WORDS else ast.literal_eval(found[0])
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number is too large for JSON readers")
    reader.values.append(found.span())
    reader.at = found.end()
    return value


def _string(reader: Reader, is_value: bool) -> str:
    start = reader.at
    found = _STRING.match(reader.text, start)
    if not found:
        if reader.at == len(reader.text) or (reader.text[start] in "'\"" and "\n" not in reader.text[start:]):
            if is_value and start + 1 < len(reader.text):
                reader.values.append((start + 1, len(reader.text)))
            raise Unfinished
        raise ValueError(f"there is no string at character {start}")
    reader.at = found.end()
    if is_value and found.end() - start > 2:
        reader.values.append((start + 1, found.end() - 1))
    with warnings.catch_warnings():  # escapes that Python does not know stay as they are
        warnings.simplefilter("ignore")
        try:
            return str(ast.literal_eval(found[0]))
        except (SyntaxError, ValueError):
            raise ValueError(f"there is no string of Python at character {start}") from None
