"""Examples of production outputs in which `<redacted>` stands where a user's value stood."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from synthspec.grammar.schemas import types

# `<redacted>` takes its value from the schema, `<redacted:name>` from the slot of that name.
MARK = re.compile(r"<redacted(?::([^<>]*))?>")

MAX_INVENTED = 10_000  # items or characters

_WORDS = (
    "amber", "basket", "candle", "delta", "ember", "fable", "garden", "harbour", "island", "jacket",
    "kettle", "lantern", "meadow", "needle", "orchard", "pepper", "quarry", "ribbon", "saddle", "timber",
)  # fmt: skip

_FORMATS = {
    "date": "2025-06-14",
    "date-time": "2025-06-14T09:30:00Z",
    "duration": "P3D",
    "email": "someone@example.org",
    "hostname": "host.example.org",
    "ipv4": "192.0.2.17",
    "ipv6": "2001:db8::17",
    "time": "09:30:00Z",
    "uri": "https://example.org/page",
    "uuid": "3f2b8c1e-5a4d-4e6f-8a7b-9c0d1e2f3a4b",
}


def slot_names(example: Any) -> Iterator[str]:
    """The slots that an example names, in order."""
    if isinstance(example, dict):
        for inner in example.values():
            yield from slot_names(inner)
    elif isinstance(example, list):
        for inner in example:
            yield from slot_names(inner)
    elif isinstance(example, str):
        yield from (found[1] for found in MARK.finditer(example) if found[1] is not None)


def filled(example: Any, schema: Any, slots: Mapping[str, Any], dice: random.Random) -> Any:
    """An example with a value in place of every mark.

    A slot has the same value everywhere.  A mark that is the whole text becomes a value of the type
    that the schema asks for; inside a longer text it becomes text.

    Args:
        example: JSON with marks.
        schema: its JSON Schema, without references.
        slots: the value of each slot that the example names.
        dice: what the values of nameless marks are drawn with.
    """
    if isinstance(example, dict):
        return {key: filled(inner, _property(schema, key), slots, dice) for key, inner in example.items()}
    if isinstance(example, list):
        return [filled(inner, _item(schema, index), slots, dice) for index, inner in enumerate(example)]
    if not isinstance(example, str):
        return example
    whole = MARK.fullmatch(example)
    if whole is None:
        return MARK.sub(lambda mark: str(slots[mark[1]]) if mark[1] else dice.choice(_WORDS), example)
    return _fitted(slots[whole[1]], schema) if whole[1] else invented(schema, dice)


def invented(schema: Any, dice: random.Random) -> Any:
    """A value that fits a JSON Schema, as far as its type, range, length, pattern and format go."""
    if not isinstance(schema, dict):
        return dice.choice(_WORDS)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return dice.choice(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            chosen = next((part for part in schema[key] if types(part) != {"null"}), schema[key][0])
            return invented({**{k: v for k, v in schema.items() if k != key}, **chosen}, dice)
    if schema.get("allOf"):
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            merged |= part if isinstance(part, dict) else {}
        return invented({**merged, **{k: v for k, v in schema.items() if k != "allOf"}}, dice)
    named = types(schema)
    if "string" in named or not named:
        return _text(schema, dice)
    if named & {"integer", "number"}:
        return _number(schema, dice, whole="number" not in named)
    if "boolean" in named:
        return dice.random() < 0.5
    if "object" in named:
        properties = schema.get("properties", {})
        return {name: invented(properties.get(name), dice) for name in schema.get("required", ())}
    if "array" in named:
        count = max(schema.get("minItems", 0), min(1, schema.get("maxItems", 1)))
        if count > MAX_INVENTED:
            raise ValueError(f"minItems is over {MAX_INVENTED}")
        return [invented(_item(schema, index), dice) for index in range(count)]
    return None


def _text(schema: dict[str, Any], dice: random.Random) -> str:
    if "pattern" in schema:
        import rstr

        return str(rstr.Rstr(dice).xeger(schema["pattern"]))
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    if schema.get("minLength", 0) > MAX_INVENTED:
        raise ValueError(f"minLength is over {MAX_INVENTED}")
    text = f"{dice.choice(_WORDS)} {dice.choice(_WORDS)}"
    while len(text) < schema.get("minLength", 0):
        text += f" {dice.choice(_WORDS)}"
    return text[: schema.get("maxLength", len(text))]


def _number(schema: dict[str, Any], dice: random.Random, *, whole: bool) -> int | float:
    step = schema.get("multipleOf", 1 if whole else 0.01)
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        low = 0 if high is None or high > 0 else high - 100 * step
    if high is None:
        high = low + 100 * step
    first, last = int(-(-low // step)), int(high // step)
    first += first * step == schema.get("exclusiveMinimum")
    last -= last * step == schema.get("exclusiveMaximum")
    if first > last:
        return low if whole else round((low + high) / 2, 6)
    count = dice.randint(first, last)
    return int(count * step) if whole else round(count * step, 6)


def _property(schema: Any, key: str) -> Any:
    """The schema of an object's property, as far as one is given."""
    for part in _parts(schema):
        if key in part.get("properties", {}):
            return part["properties"][key]
    for part in _parts(schema):
        if isinstance(part.get("additionalProperties"), dict):
            return part["additionalProperties"]
    return {}


def _item(schema: Any, index: int) -> Any:
    """The schema of a list's item, as far as one is given."""
    for part in _parts(schema):
        first = part.get("prefixItems", [])
        if index < len(first):
            return first[index]
        if "items" in part:
            return part["items"]
    return {}


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and those that it is composed of."""
    if isinstance(schema, dict):
        yield schema
        for key in ("allOf", "anyOf", "oneOf"):
            for inner in schema.get(key, ()):
                yield from _parts(inner)


def _fitted(value: Any, schema: Any) -> Any:
    """A slot's value as the type that the schema asks for, where it can be that."""
    wanted = frozenset().union(*(types(part) for part in _parts(schema)))
    if not wanted:
        return value
    if isinstance(value, str) and "string" not in wanted:
        for kind, read in (("integer", int), ("number", float)):
            if kind in wanted:
                try:
                    return read(value)
                except ValueError:
                    continue
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = (
        isinstance(value, str)
        or (isinstance(value, bool) and "boolean" in wanted)
        or (is_number and "number" in wanted)
        or (isinstance(value, int) and not isinstance(value, bool) and "integer" in wanted)
    )
    return value if fits or "string" not in wanted else str(value)
