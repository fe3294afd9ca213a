"""JSON Schemas as people write them, and as a constraint needs them: with no references and an end."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from re import _parser as regex_parser  # type: ignore[attr-defined]
from typing import Any
from urllib.parse import unquote

from synthspec.grammar.keywords import DEFINITIONS, KEYWORDS, LISTS, MAPS, NOTES, ONE, TYPES
from synthspec.grammar.pattern import MAX_PATTERN, pattern
from synthspec.yamlfile import shown

Path = tuple[str | int, ...]

_MAPS = MAPS | DEFINITIONS
# A common key of other dialects that merely looks like a misspelt keyword.
_NEIGHBOURS = frozenset({"example"})
# What older drafts wrote there, which this one ignores or refuses, and what to write instead.
_OLDER: tuple[tuple[str, type, str], ...] = (
    ("dependencies", dict, "write dependentRequired or dependentSchemas"),
    ("exclusiveMaximum", bool, "write the limit itself as exclusiveMaximum"),
    ("exclusiveMinimum", bool, "write the limit itself as exclusiveMinimum"),
    ("items", list, "write prefixItems"),
    ("required", bool, "list the property in required of the object that holds it"),
)
# What a document that is a JSON Schema holds at least one of.
TELLING = KEYWORDS - NOTES | {"$defs", "$schema", "definitions", "dependencies"}

_MAX_TOLD = 50
LEVELS = 2  # that a schema which contains itself is written out
MAX_OPTIONAL = 400  # properties of an object that are not required: engines lose their way among more
MAX_PARTS = 5_000  # of a schema once its references are written out
MAX_STRING = 60  # characters
MAX_LEAST = 1_000  # characters of the shortest text of a pattern
MAX_ITEMS = 5
MAX_INTEGER = 10**12

# Formats that the validator asserts; any other is a note.
_ASSERTED = frozenset(
    {
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "json-pointer",
        "regex",
        "relative-json-pointer",
        "time",
        "uri",
        "uri-template",
        "uuid",
    }
)
_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
_ENFORCED = _ASSERTED - {"json-pointer", "regex", "relative-json-pointer", "uri-template"}
_UNENFORCED = frozenset(
    {
        "contains",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
# Look-around, edges of words, and references back to a group.
_LOOKS = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?<?[=!]|\\[1-9bB])")
# Formats that no backend knows, and one that means a part of the same texts.
_STRICTER = {
    "idn-email": "email",
    "idn-hostname": "hostname",
    "iri": "uri",
    "iri-reference": "uri",
    "uri-reference": "uri",
}

_SCALAR: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "maxLength": MAX_STRING},
        {"type": "integer", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER},
        {"type": "boolean"},
        {"type": "null"},
    ]
}


def parts_of(schema: Any) -> Iterator[tuple[Path, Any]]:
    """The schemas that stand right inside a schema, each with its path."""
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in ONE:
            yield (key,), value
        elif key in LISTS and isinstance(value, list):
            for index, inner in enumerate(value):
                yield (key, index), inner
        elif key in _MAPS and isinstance(value, dict):
            for name, inner in value.items():
                yield (key, name), inner


def subschemas(schema: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The schema and every schema inside it, each with its path; `true` and `false` are left out."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for step, inner in parts_of(schema):
        yield from subschemas(inner, (*path, *step))


def in_place(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and those of its parts that are about the same value."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key in ("allOf", "anyOf", "oneOf"):
        for inner in schema.get(key, ()):
            yield from in_place(inner)
    for key in ("if", "then", "else"):
        yield from in_place(schema.get(key))
    for inner in schema.get("dependentSchemas", {}).values():
        yield from in_place(inner)


def schema_mistakes(schema: dict[str, Any]) -> list[tuple[Path, str]]:
    """What is wrong with a JSON Schema (draft 2020-12), as (path inside it, sentence)."""
    import jsonschema_rs

    found: list[tuple[Path, str]] = []
    parts: list[tuple[Path, dict[str, Any]]] = []
    try:
        for path, part in subschemas(schema):
            parts.append((path, part))
            if len(parts) > MAX_PARTS:
                return [((), f"has over {MAX_PARTS:,} parts; take out what is not needed")]
            found += [
                ((*path, key), f"this {key} is of an older draft of JSON Schema; {rather}")
                for key, kind, rather in _OLDER
                if isinstance(part.get(key), kind)
            ]
        if found:
            return found
        jsonschema_rs.meta.validate({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})
    except jsonschema_rs.ValidationError as error:
        place = tuple(error.instance_path)
        if place[-1:] == ("type",) and isinstance(error.instance, str):
            return [(place, f"{error.instance[:40]!r} is no type; the types are {', '.join(TYPES)}")]
        return [(place, f"is not JSON Schema (draft 2020-12): {error.message[:200]}")]
    except (RecursionError, ValueError):  # jsonschema-rs has a limit of its own
        return [((), "is nested too deeply")]
    for path, part in parts:
        for key in ("$dynamicRef", "$recursiveRef"):
            if key in part:
                found.append(((*path, key), f"{key} is not supported; write a $ref such as #/$defs/NAME"))
        optional = len(part.get("properties", {}).keys() - set(part.get("required", ())))
        if optional > MAX_OPTIONAL:
            found.append(
                (
                    (*path, "properties"),
                    f"has over {MAX_OPTIONAL} properties that are not required; take some out",
                )
            )
        expressions = [("pattern", part["pattern"])] if "pattern" in part else []
        expressions += [("patternProperties", key) for key in part.get("patternProperties", ())]
        for key, expression in expressions:
            if len(expression) > MAX_PATTERN:
                found.append(
                    ((*path, key), f"has an expression of over {MAX_PATTERN:,} characters; write a shorter")
                )
            elif _least_width(expression) > MAX_LEAST:
                found.append(((*path, key), f"asks for over {MAX_LEAST:,} characters; ask for fewer"))
        for key in part.keys() - KEYWORDS - _NEIGHBOURS:
            # Others are notes that somebody's tool understands.
            if len(found) < _MAX_TOLD and (close := _near(key[:40])):
                found.append(((*path, key), f"is no keyword of JSON Schema; did you mean {close}?"))
        reference = part.get("$ref")
        if reference is None:
            continue
        place = (*path, "$ref")
        try:
            target(schema, reference)
        except ValueError:
            found.append(
                (place, f"$ref {shown(reference)} leads out of this schema; copy what it names to $defs")
            )
        except LookupError:
            found.append((place, f"$ref {shown(reference)} names nothing; write #/$defs/NAME"))
    if found:
        return found
    try:
        inlined(schema)
    except ValueError as error:
        return [((), str(error))]
    except RecursionError:
        return [((), "is nested too deeply once its references ($ref) are written out")]
    try:
        validator_of(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        keyword = [key for key in getattr(error, "instance_path", ()) if key in KEYWORDS][-1:]
        said = getattr(error, "message", None) or str(error)
        return [
            (
                (),
                f"{''.join(f'the keyword {key}: ' for key in keyword)}{said[:300]}".replace(
                    'is not a "regex"', "is no regular expression, or too large a one"
                ),
            )
        ]
    except ValueError:
        return [((), "is nested too deeply")]
    return []


@lru_cache(maxsize=4096)
def _near(key: str) -> str:
    """The keyword that a misspelt one may be meant for; empty if there is none."""
    return "".join(difflib.get_close_matches(key, KEYWORDS, 1, 0.85))


def inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema with every `$ref` written out.

    What contains itself is written out a few levels deep; below, what may be left out is left out.

    Raises:
        ValueError: it contains itself without end, or is larger than `MAX_PARTS` when written out.
        LookupError: a reference names nothing.
    """
    for levels in range(LEVELS, 0, -1):
        try:
            return _written_out(schema, levels)
        except _TooLarge:
            pass
    return _written_out(schema, 0)


class _TooLarge(ValueError):
    def __init__(self) -> None:
        super().__init__(f"has over {MAX_PARTS:,} parts once its references ($ref) are written out")


# What no value fits, where a schema would contain itself once more.
_NEVER: dict[str, Any] = {"not": {}}


def _written_out(schema: Mapping[str, Any], levels: int) -> dict[str, Any]:
    """As `inlined`, with what contains itself so many levels deep."""
    left = MAX_PARTS
    endless = ""

    def written(part: Any, above: tuple[str, ...]) -> Any:
        nonlocal left, endless
        left -= 1
        if left < 0:
            raise _TooLarge
        if not isinstance(part, dict):
            return part
        result: dict[str, Any] = {}
        for key, value in part.items():
            if key in ("$ref", "$defs", "definitions"):
                continue
            if key in ONE:
                result[key] = written(value, above)
            elif key in LISTS:
                result[key] = [written(inner, above) for inner in value]
            elif key in _MAPS:
                result[key] = {name: written(inner, above) for name, inner in value.items()}
            else:
                result[key] = value
        result = _ended(result)
        reference = part.get("$ref")
        if reference is None or result is _NEVER:
            return result
        if above.count(reference) > levels:
            endless = reference
            return _NEVER
        named = written(target(schema, reference), (*above, reference))
        if named is _NEVER:
            return _NEVER
        if not isinstance(named, dict):  # true or false
            named = {} if named else {"not": {}}
        if set(result) <= NOTES:
            return {**named, **result}
        # Beside, not around: what is unevaluated counts over both.
        return {**result, "allOf": [named, *result.get("allOf", ())]}

    result = written(schema, ("#",))
    assert isinstance(result, dict)
    if result is _NEVER:
        raise ValueError(
            f"contains itself without end through $ref {shown(endless)}; make it optional there, or an item of "
            "an array that may be empty"
        )
    return result


def _ended(part: dict[str, Any]) -> dict[str, Any]:
    """A schema without what would go on for ever; `_NEVER` where it cannot do without."""
    found = dict(part)
    if any(one is _NEVER for one in found.get("allOf", ())):
        return _NEVER
    for key in ("anyOf", "oneOf"):
        if key in found:
            found[key] = [one for one in found[key] if one is not _NEVER]
            if part[key] and not found[key]:
                return _NEVER
    for key in ("properties", "patternProperties"):
        if key in found:
            found[key] = {name: one for name, one in found[key].items() if one is not _NEVER}
    gone = part.get("properties", {}).keys() - found.get("properties", {}).keys()
    if gone & set(found.get("required", ())):
        return _NEVER
    items = found.get("prefixItems", [])
    most = next((place for place, one in enumerate(items) if one is _NEVER), None)
    if most is not None:
        found["prefixItems"] = items[:most]
    elif found.get("items") is _NEVER:
        most = len(items)
    if most is not None:
        found.pop("items", None)
        found["maxItems"] = min(most, found.get("maxItems", most))
        if not found.get("prefixItems"):
            found.pop("prefixItems", None)
        if found.get("minItems", 0) > found["maxItems"]:
            return _NEVER
    for key in ("additionalProperties", "unevaluatedProperties", "unevaluatedItems"):
        if found.get(key) is _NEVER:
            found[key] = False
    if found.get("not") is _NEVER:
        del found["not"]
    return found


def bounded(schema: Any) -> dict[str, Any]:
    """A schema for a constraint: what fits it fits the given one as far as a backend can see to that, and is
    of limited length.

    No backend holds a model to the keywords that `unenforced` names, so these are left out: a completion
    that breaks one is refused when it is validated.

    A small model that is free to go on often never closes a string or a list, and a completion that is
    cut off is lost.  So, where the schema sets no limit: strings get `MAX_STRING` characters, lists
    `MAX_ITEMS` items, integers `MAX_INTEGER`, objects only those properties that are named, and a value
    that may be anything becomes a scalar.  Completions are validated against the schema as it was given.
    The digits of a number behind its point are not limited (no backend but llguidance could).

    Args:
        schema: without references, see `inlined`.
    """
    return _bounded(schema, closed=True)


def unenforced(schema: Any) -> list[tuple[Path, str]]:
    """The keywords of a schema that no backend enforces while decoding, each with its path.

    Args:
        schema: without references, see `inlined`.
    """
    return [((*path, key), key) for path, part in subschemas(schema) for key in _beyond(part)]


def call_schema(tools: Mapping[str, Mapping[str, Any]], key: str = "arguments") -> dict[str, Any]:
    """The bounded schema of one call `{name, arguments}` of one of the tools (name → parameters).

    Args:
        key: what the wire format calls the arguments.
    """
    calls: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, key: bounded(parameters)},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for name, parameters in tools.items()
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def validator_of(schema: dict[str, Any]) -> Any:
    """What tells whether a value fits a schema (draft 2020-12), also where its patterns are hard to follow.

    Raises:
        jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError: it is no schema.
    """
    import jsonschema_rs

    # An expression that wants more steps back than this is taken as not matched: a value costs no second.
    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=5_000)
    return jsonschema_rs.Draft202012Validator(
        schema, validate_formats=True, offline=True, pattern_options=patterns
    )


def is_expression(text: str) -> bool:
    """Whether the validator reads a text as a regular expression."""
    import jsonschema_rs

    try:
        jsonschema_rs.Draft202012Validator({"pattern": text})
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


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
        raise ValueError(f"{shown(pattern)} is not a regular expression: {error}") from None
    return int(least), int(most)


def target(schema: Mapping[str, Any], reference: str) -> Any:
    """The schema that `#`, `#/a/b/0`, `#anchor` or the schema's own `$id` names.

    Raises:
        ValueError: it leads out of the schema.
        LookupError: it names nothing.
    """
    base, _, fragment = reference.partition("#")
    if base and base != str(schema.get("$id", schema.get("id", ""))).rstrip("#"):
        raise ValueError(reference)
    fragment = unquote(fragment)
    if fragment in ("", "/"):
        return schema
    if not fragment.startswith("/"):
        for _, part in subschemas(schema):
            if fragment in (part.get("$anchor"), part.get("$dynamicAnchor")):
                return part
        raise LookupError(reference)
    found: Any = schema
    for step in fragment[1:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal():
            found = found[int(key)]
        elif isinstance(found, dict):
            found = found[key]
        else:
            raise LookupError(reference)
    if not isinstance(found, dict | bool):
        raise LookupError(reference)
    return found


def _beyond(part: dict[str, Any]) -> list[str]:
    """The keywords of one schema that no backend enforces."""
    found = [key for key in part if key in _UNENFORCED]
    if "oneOf" in part and not _apart(part["oneOf"]):
        found.append("oneOf")
    if "pattern" in part and _LOOKS.search(part["pattern"]):
        found.append("pattern")
    if part.get("format") in _ASSERTED and part["format"] not in _ENFORCED:
        found.append("format")
    if set(part.get("properties", ())) - set(part.get("required", ())):
        # Which of the optional properties come would have to be counted.
        found += [key for key in ("minProperties", "maxProperties") if key in part]
    return found


def _apart(branches: list[Any]) -> bool:
    """Whether no value fits two of the branches, because they name other values, or other types."""
    if not all(isinstance(branch, dict) for branch in branches):
        return False
    listed = [[one["const"]] if "const" in one else one.get("enum") for one in branches]
    if any(values is None for values in listed):
        named = [kind for one in branches for kind in types(one)]
        both = {"integer", "number"} <= {*named}  # an integer is a number
        return all(map(types, branches)) and len(named) == len(set(named)) and not both
    texts = [json.dumps(value) for values in listed for value in values or ()]
    return len(texts) == len(set(texts))


def _bounded(schema: Any, *, closed: bool) -> dict[str, Any]:
    if schema is False:
        return {"not": {}}
    if schema is True or not set(schema) - NOTES:
        return _SCALAR
    beyond = set(_beyond(schema))
    part = _merged({key: value for key, value in schema.items() if key not in NOTES | (beyond - {"oneOf"})})
    if "oneOf" in beyond:
        either = {"anyOf": part.pop("oneOf")}
        part = {**part, "allOf": [*part.get("allOf", ()), either]} if "anyOf" in part else {**part, **either}
    named = types(part)
    if "enum" in part or "const" in part:
        return part
    if "format" in part:
        part["format"] = _STRICTER.get(part["format"], part["format"])
        if part["format"] not in _ASSERTED:
            del part["format"]
    if "pattern" in part:
        part["pattern"] = _brackets_escaped(part["pattern"])
    is_object = "properties" in part or "object" in named
    for key, value in list(part.items()):
        if key in _COUNTS and isinstance(value, float):
            part[key] = int(value)  # JSON Schema lets a count be 1.0
        if key in ("items", "additionalProperties") and value is not False:
            part[key] = _bounded(value, closed=True)
        elif key in ("properties", "patternProperties"):
            # What may not be there is not, because the object is closed.
            written = _brackets_escaped if key == "patternProperties" else str
            part[key] = {
                written(name): _bounded(inner, closed=True)
                for name, inner in value.items()
                if inner is not False
            }
        elif key == "prefixItems":
            part[key] = [_bounded(inner, closed=True) for inner in value]
        elif key in ("anyOf", "oneOf", "allOf"):
            # A branch that only adds to an object must not shut out the object's own properties.
            alone = key != "allOf" and "properties" not in part
            part[key] = [
                _bounded(inner, closed=closed and alone) if inner is not True else inner
                for inner in value
                if inner is not False or key == "allOf"
            ]
    if is_object and closed:
        more = schema.get("additionalProperties", True)
        if more is not False and "properties" in part and "patternProperties" not in part:
            # What is required and not described; many people forget to.
            names = [name for name in part.get("required", ()) if name not in part["properties"]]
            part["properties"] |= {name: _bounded(more, closed=True) for name in names}
        composed = not part.keys().isdisjoint(("allOf", "anyOf", "oneOf"))
        free = "properties" not in part and "patternProperties" not in part
        if schema.get("additionalProperties", True) is True and not (composed and free):
            part["additionalProperties"] = _SCALAR if free else False
        optional = set(part.get("properties", ())) - set(part.get("required", ()))
        if optional and set(part.get("required", ())) <= set(part["properties"]):
            part["additionalProperties"] = False  # no backend can count those that are not named here
        elif part.get("additionalProperties") not in (None, False):
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


def _brackets_escaped(expression: str) -> str:
    """The same expression with each [ inside square brackets escaped: to backends it would begin a set."""
    result, inside = "", False
    for piece in re.findall(r"\\.|.", expression, re.DOTALL):
        if inside and piece == "[":
            piece = r"\["
        elif piece in "[]":
            inside = piece == "["
        result += piece
    return result


def _merged(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with those parts of `allOf` that only add properties written into it."""
    if "allOf" not in schema:
        return schema
    result = {key: value for key, value in schema.items() if key != "allOf"}
    rest: list[Any] = []
    for part in schema["allOf"]:
        part = _merged({k: v for k, v in part.items() if k not in NOTES}) if isinstance(part, dict) else part
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


def _least_width(expression: str) -> int:
    """The fewest characters that an expression matches; 0 where nobody can tell."""
    try:
        return pattern(expression).least
    except ValueError:
        with suppress(ValueError):
            return width(expression)[0]
    return 0
