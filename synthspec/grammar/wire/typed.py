"""Arguments that stand between tags: strings as they are, all else as JSON; the schema says which is which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from synthspec.grammar.constraint import Choice, Free, Json, Part, Text
from synthspec.grammar.wire.jsontext import dumps, loads
from synthspec.grammar.wire.reader import Reader, Unfinished

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}

# What a string of a format looks like, where no JSON is around it.
_FORMATS = {
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](Z|[+-][0-9]{2}:[0-9]{2})",
    "date-time": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z",
    "email": r"[A-Za-z0-9][A-Za-z0-9._+-]*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": r"((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
}


def kinds(schema: Any) -> frozenset[str]:
    """The JSON types that a schema lets a value have; a schema that does not say means a string."""
    return frozenset(_kinds(schema)) or frozenset({"string"})


def parameters(schema: Any) -> dict[str, Any]:
    """The schemas of an arguments object's properties, those of its alternatives among them."""
    if not isinstance(schema, Mapping):
        return {}
    found = dict(schema.get("properties", {}))
    for key in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(key, ()):
            for name, one in parameters(part).items():
                known = found.get(name, one)
                # In another branch it may be of another type.
                found[name] = known if kinds(known) >= kinds(one) else {"anyOf": [known, one]}
    return found


def written(value: Any, schema: Any, tags: tuple[str, ...]) -> str:
    """The text of an argument.

    Args:
        tags: what a string cannot hold.

    Raises:
        ValueError: the text would be read as another value.
    """
    text = value if isinstance(value, str) else dumps(value)
    if (isinstance(value, str) or "string" in kinds(schema)) and any(tag in text for tag in tags):
        raise ValueError("a string cannot hold a tag of this wire format")
    if not _reads_back(text, value, schema):
        raise ValueError("an argument of this type cannot be told from one of another type by its text")
    return text


def value_of(text: str, schema: Any) -> Any:
    """The value that an argument's text stands for; ValueError if its type has no such text."""
    allowed = kinds(schema)
    if allowed == {"string"}:
        return text
    if "boolean" in allowed and text in ("True", "False"):  # as templates write that forget the JSON
        return text == "True"
    try:
        value = loads(text)
    except ValueError:
        if "string" in allowed:
            return text
        raise
    return text if "string" in allowed and _type(value) not in allowed else value


def read_value(reader: Reader, schema: Any, close: str, pad: str = "") -> Any:
    """Step over an argument and the tag behind it, and note where its values stand.

    Args:
        close: the tag.
        pad: what stands between a value and its tags, once on either side, if it stands there.
    """
    if pad:
        reader.skip(pad)
    start = reader.at
    if "string" not in kinds(schema) and reader.text[start : start + 1] in ("{", "["):
        value = reader.json()
        reader.space()
        reader.take(close)
        return value
    try:
        text = reader.until(close)
    except Unfinished:
        if start < len(reader.text):
            reader.values.append((start, len(reader.text)))
        raise
    reader.take(close)
    if pad and text.endswith(pad):
        text = text[: -len(pad)]
    if text:
        reader.values.append((start, start + len(text)))
    return value_of(text, schema)


def argument(schema: dict[str, Any], tags: tuple[str, ...]) -> Part:
    """What the text of an argument of a schema may be."""
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        told = [one for value in values if (one := _unmistaken(value, schema, tags)) is not None]
        if not told:
            raise ValueError("none of the listed values of a parameter can be told from another by its text")
        return Choice(tuple(map(Text, told)))
    named = kinds(schema)
    if "string" not in named:
        return Json(schema)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return Choice(tuple(argument(part, tags) for part in schema[key]))
    text = Free(tags, schema.get("minLength", 0), schema.get("maxLength"), _pattern(schema))
    others = [kind for kind in schema.get("type", ()) if kind != "string"] if named != {"string"} else []
    return Choice((text, Json({**schema, "type": others}))) if others else text


def _unmistaken(value: Any, schema: Any, tags: tuple[str, ...]) -> str | None:
    """The text of a listed value, or None if it would be read as another: `null` is no string here."""
    try:
        return written(value, schema, tags)
    except ValueError:
        return None


def _pattern(schema: dict[str, Any]) -> str:
    """A regular expression for the whole of a string, or none where there is no plain way to it."""
    pattern = schema.get("pattern")
    if pattern is None:
        return _FORMATS.get(schema.get("format", ""), "")
    if "|" in pattern and not (pattern.startswith("^(") and pattern.endswith(")$")):
        return ""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[begins : len(pattern) - ends]
    return f"{'' if begins else '(?s:.*)'}{inner}{'' if ends else '(?s:.*)'}"


def _reads_back(text: str, value: Any, schema: Any) -> bool:
    try:
        # As texts, because True equals 1.
        return dumps(value_of(text, schema)) == dumps(value)
    except ValueError:
        return False


def _kinds(schema: Any) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    named = schema.get("type")
    if named is not None:
        yield from [named] if isinstance(named, str) else named
        return
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else ()
    if values:
        yield from map(_type, values)
        return
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(key, ()):
            yield from _kinds(part)
    if "properties" in schema:
        yield "object"
    elif "items" in schema or "prefixItems" in schema:
        yield "array"


def _type(value: Any) -> str:
    return "null" if value is None else _TYPES[type(value)]
