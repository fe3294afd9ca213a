"""JSON Schemas as people write them, and as a constraint needs them: with no references and an end."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from re import _parser as regex_parser  # type: ignore[attr-defined]
from typing import Any

Path = tuple[str | int, ...]

# Where one schema stands inside another.
_ONE = frozenset(
    {
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAP = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
# What says nothing about a value.
_NOTES = frozenset(
    {
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)

# Keywords of draft 2020-12 that stand in none of the sets above.
_OTHERS = frozenset(
    {
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveRef",
        "$ref",
        "$vocabulary",
        "const",
        "contentEncoding",
        "contentMediaType",
        "dependentRequired",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxContains",
        "maximum",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minContains",
        "minimum",
        "minItems",
        "minLength",
        "minProperties",
        "multipleOf",
        "pattern",
        "required",
        "type",
        "uniqueItems",
    }
)
_KEYWORDS = _ONE | _LIST | _MAP | _NOTES | _OTHERS
# Common keys of other dialects that merely look like misspelt keywords.
_NEIGHBOURS = frozenset({"example", "dependencies"})

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")

MAX_PARTS = 20_000  # of a schema once its references are written out
MAX_STRING = 60  # characters
MAX_ITEMS = 5
MAX_INTEGER = 10**12

_SCALAR: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "maxLength": MAX_STRING},
        {"type": "integer", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER},
        {"type": "boolean"},
        {"type": "null"},
    ]
}


def subschemas(schema: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The schema and every schema inside it, each with its path; `true` and `false` are left out."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for key, value in schema.items():
        if key in _ONE:
            yield from subschemas(value, (*path, key))
        elif key in _LIST and isinstance(value, list):
            for index, inner in enumerate(value):
                yield from subschemas(inner, (*path, key, index))
        elif key in _MAP and isinstance(value, dict):
            for name, inner in value.items():
                yield from subschemas(inner, (*path, key, name))


def schema_mistakes(schema: dict[str, Any]) -> list[tuple[Path, str]]:
    """What is wrong with a JSON Schema (draft 2020-12), as (path inside it, sentence)."""
    import jsonschema_rs

    try:
        jsonschema_rs.meta.validate({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})
    except jsonschema_rs.ValidationError as error:
        place = tuple(error.instance_path)
        if place[-1:] == ("type",) and isinstance(error.instance, str):
            return [(place, f"{error.instance!r} is no type; the types are {', '.join(_TYPES)}")]
        return [(place, f"is not JSON Schema (draft 2020-12): {error.message}")]
    except RecursionError:
        return [((), "is nested too deeply")]
    found: list[tuple[Path, str]] = []
    for path, part in subschemas(schema):
        for key in ("$dynamicRef", "$recursiveRef"):
            if key in part:
                found.append(((*path, key), f"{key} is not supported; write a $ref such as #/$defs/NAME"))
        for key in part.keys() - _KEYWORDS - _NEIGHBOURS:
            # Others are notes that somebody's tool understands.
            if close := difflib.get_close_matches(key, _KEYWORDS, 1, 0.85):
                found.append(((*path, key), f"is no keyword of JSON Schema; did you mean {close[0]}?"))
        reference = part.get("$ref")
        if reference is None:
            continue
        place = (*path, "$ref")
        if not reference.startswith("#"):
            found.append((place, f"$ref {reference!r} leads out of this schema; copy what it names to $defs"))
        else:
            try:
                _target(schema, reference)
            except LookupError:
                found.append((place, f"$ref {reference!r} names nothing; write #/$defs/NAME"))
    if found:
        return found
    try:
        inlined(schema)
        jsonschema_rs.Draft202012Validator(schema, validate_formats=True, offline=True)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        return [((), getattr(error, "message", None) or str(error))]
    return []


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema with every `$ref` written out.

    Raises:
        ValueError: it contains itself, or is larger than `MAX_PARTS` when written out.
        LookupError: a reference names nothing.
    """
    left = [MAX_PARTS]

    def written(part: Any, above: tuple[str, ...]) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise ValueError(f"has over {MAX_PARTS:,} parts once its references are written out")
        if not isinstance(part, dict):
            return part
        result: dict[str, Any] = {}
        for key, value in part.items():
            if key in ("$ref", "$defs", "definitions"):
                continue
            if key in _ONE:
                result[key] = written(value, above)
            elif key in _LIST:
                result[key] = [written(inner, above) for inner in value]
            elif key in _MAP:
                result[key] = {name: written(inner, above) for name, inner in value.items()}
            else:
                result[key] = value
        reference = part.get("$ref")
        if reference is None:
            return result
        if reference in above:
            raise ValueError(f"contains itself without end through $ref {reference!r}")
        named = written(_target(schema, reference), (*above, reference))
        if not isinstance(named, dict):  # true or false
            named = {} if named else {"not": {}}
        if set(result) <= _NOTES:
            return {**named, **result}
        return {"allOf": [named, result]}

    result = written(schema, ("#",))
    assert isinstance(result, dict)
    return result


def bounded(schema: Any) -> dict[str, Any]:
    """A schema for a constraint: what fits it fits the given one, and is of limited length.

    A small model that is free to go on often never closes a string or a list, and a completion that is
    cut off is lost.  So, where the schema sets no limit: strings get `MAX_STRING` characters, lists
    `MAX_ITEMS` items, integers `MAX_INTEGER`, objects only the properties that are named, and a value
    that may be anything becomes a scalar.  Completions are validated against the schema as it was given.
    The digits of a number behind its point are not limited (no backend but llguidance could).

    Args:
        schema: without references, see `inlined`.
    """
    return _bounded(schema, closed=True)


def call_schema(tools: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The bounded schema of one call `{name, arguments}` of one of the tools (name → parameters)."""
    calls: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": bounded(inlined(parameters))},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, parameters in tools.items()
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def types(schema: Any) -> frozenset[str]:
    """The types that a schema names; empty when it names none."""
    named = schema.get("type", ()) if isinstance(schema, dict) else ()
    return frozenset([named] if isinstance(named, str) else named)


def width(pattern: str) -> tuple[int, int]:
    """The least and the largest number of characters that a regular expression matches.

    Raises:
        ValueError: Python does not read it as a regular expression.
    """
    try:
        least, most = regex_parser.parse(pattern).getwidth()
    except (regex_parser.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return int(least), int(most)


def _target(schema: dict[str, Any], reference: str) -> Any:
    """What `#/a/b/0` names; LookupError if nothing."""
    if reference in ("#", "#/"):
        return schema
    if not reference.startswith("#/"):
        raise LookupError(reference)
    found: Any = schema
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal():
            found = found[int(key)]
        elif isinstance(found, dict):
            found = found[key]
        else:
            raise LookupError(reference)
    if not isinstance(found, dict | bool):
        raise LookupError(reference)
    return found


def _bounded(schema: Any, *, closed: bool) -> dict[str, Any]:
    if schema is False:
        return {"not": {}}
    if schema is True or not set(schema) - _NOTES:
        return _SCALAR
    part = _merged({key: value for key, value in schema.items() if key not in _NOTES})
    named = types(part)
    if "enum" in part or "const" in part:
        return part
    is_object = "properties" in part or "object" in named
    for key, value in list(part.items()):
        if key in ("items", "additionalProperties") and value is not False:
            part[key] = _bounded(value, closed=True)
        elif key in ("properties", "patternProperties"):
            part[key] = {name: _bounded(inner, closed=True) for name, inner in value.items()}
        elif key == "prefixItems":
            part[key] = [_bounded(inner, closed=True) for inner in value]
        elif key in ("anyOf", "oneOf", "allOf"):
            # A branch that only adds to an object must not shut out the object's own properties.
            alone = key != "allOf" and not is_object
            part[key] = [
                _bounded(inner, closed=closed and alone) if inner is not True else inner for inner in value
            ]
    if is_object and closed:
        free = "properties" not in part and "patternProperties" not in part
        if schema.get("additionalProperties", True) is True and not ("allOf" in part and free):
            part["additionalProperties"] = _SCALAR if free else False
        if part.get("additionalProperties") not in (None, False):
            part.setdefault("maxProperties", max(MAX_ITEMS, part.get("minProperties", 0)))
    if "string" in named and "maxLength" not in part:
        needed = part.get("minLength", 0)
        if "pattern" in part:
            needed = max(needed, _least_width(part["pattern"]) + MAX_STRING)
        part["maxLength"] = max(MAX_STRING, needed)
    if "array" in named:
        first = len(part.get("prefixItems", ()))
        part.setdefault("maxItems", max(MAX_ITEMS, first, part.get("minItems", 0)))
        part.setdefault("items", _SCALAR)
    if "integer" in named and not named & {"number"}:
        low = part.get("minimum", part.get("exclusiveMinimum"))
        high = part.get("maximum", part.get("exclusiveMaximum"))
        if low is None:
            part["minimum"] = min(-MAX_INTEGER, -MAX_INTEGER if high is None else high - MAX_INTEGER)
        if high is None:
            part["maximum"] = max(MAX_INTEGER, MAX_INTEGER if low is None else low + MAX_INTEGER)
    return part


def _merged(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with those parts of `allOf` that only add properties written into it."""
    if "allOf" not in schema:
        return schema
    result = {key: value for key, value in schema.items() if key != "allOf"}
    rest: list[Any] = []
    for part in schema["allOf"]:
        part = _merged({k: v for k, v in part.items() if k not in _NOTES}) if isinstance(part, dict) else part
        plain = isinstance(part, dict) and set(part) <= {"type", "properties", "required"}
        if not plain or part.get("type", "object") != "object" or types(result) - {"object"}:
            rest.append(part)
            continue
        result["type"] = "object"
        properties = dict(result.get("properties", {}))
        for name, inner in part.get("properties", {}).items():
            properties[name] = {"allOf": [properties[name], inner]} if name in properties else inner
        result["properties"] = properties
        result["required"] = [*dict.fromkeys([*result.get("required", []), *part.get("required", [])])]
    if rest:
        result["allOf"] = rest
    return result


def _least_width(pattern: str) -> int:
    try:
        return width(pattern)[0]
    except ValueError:  # JSON Schema's expressions are not all Python's
        return 0
