"""A JSON Schema taken apart: its *alternatives*, each a list of plain parts that must all hold.

`allOf` joins parts; `anyOf`, `oneOf`, `if`, `not` and `dependentSchemas` choose between them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from synthspec.grammar.keywords import TYPES

MAX_ALTERNATIVES = 128  # of one schema; of more, these are taken
_CHOOSING = frozenset({"allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"})
_MEANT_FOR = {
    "object": {
        "additionalProperties", "dependentRequired", "maxProperties", "minProperties", "patternProperties",
        "properties", "propertyNames", "required", "unevaluatedProperties",
    },
    "array": {
        "contains", "items", "maxContains", "maxItems", "minContains", "minItems", "prefixItems",
        "unevaluatedItems", "uniqueItems",
    },
    "string": {"contentEncoding", "contentMediaType", "format", "maxLength", "minLength", "pattern"},
    "number": {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"},
}  # fmt: skip

Parts = tuple[dict[str, Any], ...]  # plain schemas that must all hold
Schemas = tuple[Any, ...]  # schemas that must all hold


def alternatives(schemas: Schemas) -> list[Parts]:
    """The ways to fit all the schemas, each as plain parts; some of them where there are very many."""
    found: list[Parts] = [()]
    for schema in schemas:
        found = _each_with_each(found, _apart(schema))
    return found


def part_of(parts: Parts, key: str) -> Schemas:
    """What an object's property must fit, by all the parts."""
    found: list[Any] = []
    for part in parts:
        named = key in part.get("properties", ())
        if named:
            found.append(part["properties"][key])
        for expression, inner in part.get("patternProperties", {}).items():
            if _finds(expression, key):
                found.append(inner)
                named = True
        if not named and "additionalProperties" in part:
            found.append(part["additionalProperties"])
    return tuple(found or every(parts, "unevaluatedProperties"))


def item_of(parts: Parts, index: int) -> Schemas:
    """What a list's item must fit, by all the parts."""
    found: list[Any] = []
    for part in parts:
        first = part.get("prefixItems", ())
        if index < len(first):
            found.append(first[index])
        elif "items" in part:
            found.append(part["items"])
    return tuple(found or every(parts, "unevaluatedItems"))


def kinds_of(parts: Parts) -> list[str]:
    """The types that all the parts allow; where none is named, those that their keywords are about."""
    allowed: set[str] | None = None
    for part in parts:
        if "type" in part:
            named = {part["type"]} if isinstance(part["type"], str) else set(part["type"])
            if "number" in named:
                named.add("integer")
            allowed = named if allowed is None else allowed & named
    about = [
        kind for kind, keywords in _MEANT_FOR.items() if any(not keywords.isdisjoint(part) for part in parts)
    ]
    if allowed is None:
        return about or ["string"]
    if "number" in allowed:
        allowed.discard("integer")
    return [kind for kind in TYPES if kind in allowed]


def every(parts: Parts, keyword: str) -> list[Any]:
    """What each part that has a keyword says."""
    return [part[keyword] for part in parts if keyword in part]


def _each_with_each(left: list[Parts], right: list[Parts]) -> list[Parts]:
    if len(left) == 1 and len(right) == 1:
        return [left[0] + right[0]]
    found = [one + other for one in left[:MAX_ALTERNATIVES] for other in right[:MAX_ALTERNATIVES]]
    return _few(found)


def _few(found: list[Parts]) -> list[Parts]:
    """At most `MAX_ALTERNATIVES`, from all over the list."""
    if len(found) <= MAX_ALTERNATIVES:
        return found
    step = len(found) / MAX_ALTERNATIVES
    return [found[int(index * step)] for index in range(MAX_ALTERNATIVES)]


def _apart(schema: Any) -> list[Parts]:
    """The alternatives of one schema."""
    if isinstance(schema, bool):
        return [()] if schema else []
    plain = {key: value for key, value in schema.items() if key not in _CHOOSING and key != "not"}
    found: list[Parts] = [(plain,)]
    for inner in schema.get("allOf", ()):
        found = _each_with_each(found, _apart(inner))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            found = _each_with_each(found, _few([one for inner in schema[key] for one in _apart(inner)]))
    if "not" in schema:
        found = _each_with_each(found, _negated(schema["not"]))
    if "if" in schema:
        holds = _each_with_each(_apart(schema["if"]), _apart(schema.get("then", True)))
        fails = _each_with_each(_negated(schema["if"]), _apart(schema.get("else", True)))
        found = _each_with_each(found, _few(holds + fails))
    for name, inner in schema.get("dependentSchemas", {}).items():
        without: Parts = ({"properties": {name: False}},)
        with_it = _each_with_each([({"required": [name]},)], _apart(inner))
        found = _each_with_each(found, [without, *with_it])
    return found


def _negated(schema: Any) -> list[Parts]:
    """The alternatives of not fitting a schema: any one of its keywords is broken."""
    if isinstance(schema, bool):
        return [] if schema else [()]
    found: list[Parts] = []
    named = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", TYPES)
    for key, value in schema.items():
        match key:
            case "type":
                # Not being an integer, a number may still be.
                shut_out = {*named, "integer"} if "number" in named else {*named}
                if left := [kind for kind in TYPES if kind not in shut_out]:
                    found.append(({"type": left},))
            case "required":
                found += [({"properties": {name: False}},) for name in value]
            case "properties":
                for name, inner in value.items():
                    found += [
                        ({"properties": {name: {"allOf": [*parts]}}, "required": [name]},)
                        for parts in _negated(inner)
                    ]
            case "allOf":
                found += [one for inner in value for one in _negated(inner)]
            case "anyOf":
                every: list[Parts] = [()]
                for inner in value:
                    every = _each_with_each(every, _negated(inner))
                found += every
            case "not":
                found += _apart(value)
            case "minimum":
                found.append(({"exclusiveMaximum": value},))
            case "maximum":
                found.append(({"exclusiveMinimum": value},))
            case "exclusiveMinimum":
                found.append(({"maximum": value},))
            case "exclusiveMaximum":
                found.append(({"minimum": value},))
            case "minLength" | "minItems" | "minProperties" if value >= 1:
                found.append(({key.replace("min", "max"): value - 1},))
            case "maxLength" | "maxItems" | "maxProperties":
                found.append(({key.replace("max", "min"): value + 1},))
            case (
                "additionalProperties" | "const" | "contains" | "dependentRequired" | "enum" | "format"
                | "if" | "items" | "multipleOf" | "oneOf" | "pattern" | "patternProperties" | "prefixItems"
                | "propertyNames" | "uniqueItems"
            ):  # fmt: skip
                beside = ("then", "else") if key == "if" else ("prefixItems", "properties", "patternProperties")
                kept = {other: schema[other] for other in beside if other in schema}
                found.append(({"not": {**kept, key: value}},))
    return _few(found)


@lru_cache(maxsize=65_536)
def _finds(expression: str, key: str) -> bool:
    import jsonschema_rs

    return bool(jsonschema_rs.Draft202012Validator({"pattern": expression}).is_valid(key))
