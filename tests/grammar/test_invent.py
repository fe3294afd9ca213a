import json
import random

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthspec.grammar.invent import MAX_INVENTED, Unfillable, invented, inventor
from synthspec.grammar.pattern import matching
from synthspec.grammar.plausible import FORMATS

dice = random.Random


def valid(schema, value):
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True).is_valid(value)


def draws(schema, count=20):
    """Values of a schema, each of them checked."""
    draw = inventor(schema)
    values = [draw(dice(seed)) for seed in range(count)]
    assert all(valid(schema, value) for value in values)
    return values


OBJECT = {"type": "object"}
FILLABLE = {
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}, {"multipleOf": 2}]},
    "properties of several parts": {
        **OBJECT,
        "properties": {"a": {"type": "integer"}},
        "allOf": [{"properties": {"a": {"minimum": 7}, "b": {"type": "string"}}, "required": ["a", "b"]}],
    },
    "any of, beside properties": {
        **OBJECT,
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "exactly one of": {
        **OBJECT,
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "overlapping one of": {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 9}]},
    "if and then": {
        **OBJECT,
        "properties": {"kind": {"enum": ["card", "cash"]}, "number": {"type": "string"}},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "card"}}},
        "then": {"required": ["number"]},
        "else": {"properties": {"number": False}},
    },
    "not a type": {"not": {"type": ["string", "object", "array", "null"]}},
    "not required": {**OBJECT, "properties": {"a": True, "b": True}, "not": {"required": ["a", "b"]}},
    "not a value": {"enum": [1, 2, 3], "not": {"const": 2}},
    "not twice": {"not": {"not": {"type": "boolean"}}},
    "neither of two": {"type": "integer", "not": {"anyOf": [{"minimum": 10}, {"maximum": 3}]}},
    "needs of a property": {
        **OBJECT,
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "string"}},
        "dependentRequired": {"a": ["b"], "b": ["c"]},
        "minProperties": 1,
    },
    "a schema for where a property is": {
        **OBJECT,
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "dependentSchemas": {"a": {"properties": {"b": {"const": 1}}, "required": ["b"]}},
    },
    "names by pattern": {
        **OBJECT,
        "patternProperties": {"^x-[a-z]{2,5}$": {"type": "integer"}},
        "additionalProperties": False,
        "minProperties": 2,
    },
    "names by schema": {
        **OBJECT,
        "propertyNames": {"pattern": "^[A-Z]{3}$"},
        "additionalProperties": {"type": "number"},
        "minProperties": 1,
        "maxProperties": 3,
    },
    "unevaluated": {
        **OBJECT,
        "allOf": [{"properties": {"a": {"type": "string"}}}],
        "required": ["a"],
        "unevaluatedProperties": False,
    },
    "a tuple": {
        "type": "array",
        "prefixItems": [{"type": "string"}, {"type": "integer"}],
        "items": False,
        "minItems": 2,
    },
    "what a list contains": {
        "type": "array",
        "items": {"type": "integer"},
        "contains": {"minimum": 50},
        "minContains": 2,
        "maxContains": 3,
        "minItems": 4,
    },
    "a list of different items": {
        "type": "array",
        "items": {"enum": ["a", "b", "c", 1, 1.5, True]},
        "uniqueItems": True,
        "minItems": 6,
    },
    "multiples of a fraction": {"type": "number", "multipleOf": 0.01, "exclusiveMinimum": 0, "maximum": 0.03},
    "between two numbers": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-9},
    "huge": {"type": "integer", "minimum": 10**30},
    "far below nought": {"type": "number", "maximum": -1e300},
    "a pattern and a length": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$", "minLength": 30},
    "a pattern and a format": {"type": "string", "pattern": "^https://", "format": "uri"},
    "two patterns": {"allOf": [{"type": "string", "pattern": "^[a-z]{4}$"}, {"pattern": "[aeiou]"}]},
    "a password": {"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d)(?=.*[!@#]).{8,}$"},
    "types in a list": {"type": ["integer", "null"]},
    "base 64": {"type": "string", "contentEncoding": "base64"},
    "JSON in base 64": {
        "type": "string",
        "contentEncoding": "base64",
        "contentMediaType": "application/json",
    },
    "true": {"properties": {"a": True}, "required": ["a"]},
    "keys of no type": {"required": ["__proto__", "a\nb"]},
}  # fmt: skip


@pytest.mark.parametrize("case", FILLABLE)
def test_every_keyword_is_kept_to(case):
    values = draws(FILLABLE[case])
    json.dumps(values, allow_nan=False)


HOPELESS = {
    "type": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "enum": {"type": "string", "enum": [1, 2]},
    "const": {"const": 5, "maximum": 4},
    "minItems": {"type": "array", "minItems": MAX_INVENTED + 1},
    "minLength": {"type": "string", "minLength": MAX_INVENTED + 1},
    "maxLength": {"type": "string", "minLength": 5, "maxLength": 4},
    "maximum": {"type": "integer", "minimum": 5, "maximum": 4},
    "multipleOf": {"type": "integer", "minimum": 5, "maximum": 6, "multipleOf": 7},
    "uniqueItems": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3},
    "pattern": {"type": "string", "pattern": "^a(?!b)b$"},
    "not": {"type": "string", "not": True},
    "maxProperties": {**OBJECT, "required": ["a", "b"], "maxProperties": 1},
    "contains": {"type": "array", "maxItems": 1, "contains": True, "minContains": 2},
    "minProperties": {**OBJECT, "properties": {"a": True}, "additionalProperties": False, "minProperties": 2},
}


@pytest.mark.parametrize("keyword", HOPELESS)
def test_what_cannot_be_filled_is_told_with_its_keyword(keyword):
    schema = {**OBJECT, "properties": {"list": {"type": "array", "items": HOPELESS[keyword], "minItems": 1}}}
    with pytest.raises(Unfillable) as told:
        invented({**schema, "required": ["list"]}, dice(0))
    assert told.value.keyword == keyword
    assert told.value.path[:2] == ("list", 0)
    assert f"keyword {keyword}" in str(told.value)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"required": ["a"], "additionalProperties": False}, "properties"),
        ({"items": False, "minItems": 1}, "items"),
    ],
)
def test_what_may_not_be_there_is_told_by_what_forbids_it(schema, keyword):
    with pytest.raises(Unfillable) as told:
        inventor(schema)
    assert told.value.keyword == keyword


def test_too_many_parts_are_given_up():
    schema = {"type": "string"}
    for _ in range(9):
        schema = {"type": "array", "items": schema, "minItems": 5}
    with pytest.raises(Unfillable, match="minItems"):
        invented(schema, dice(0))


def test_what_nothing_fits_is_given_up_soon_wherever_it_stands(monkeypatch):
    tried = 0

    def counting(*args, **options):
        nonlocal tried
        tried += 1
        return matching(*args, **options)

    monkeypatch.setattr("synthspec.grammar.invent.matching", counting)
    schema = {"type": "string", "allOf": [{"pattern": "^a*$"}, {"pattern": "b$"}]}
    for _ in range(3):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "not": {"const": {}}}
    with pytest.raises(Unfillable, match=r"a\.a\.a breaks the keyword pattern"):
        invented(schema, dice(0))
    assert tried < 500


def test_what_may_be_left_out_and_fits_nothing_is_left_out():
    nothing = {"type": "string", "allOf": [{"pattern": "^a*$"}, {"pattern": "b$"}]}
    optional = {f"p{n}": nothing for n in range(4)}
    schema = {"type": "object", "properties": {"ok": {"type": "string"}, **optional}, "required": ["ok"]}
    draws(schema)


def test_the_same_dice_give_the_same_value_whatever_was_drawn_before():
    schema = {
        **OBJECT,
        "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "number"}}},
        "additionalProperties": {"type": "integer"},
    }
    draw = inventor(schema)
    later = [draw(dice(seed)) for seed in reversed(range(10))]
    assert later[::-1] == [inventor(schema)(dice(seed)) for seed in range(10)]


def test_values_vary():
    texts = {"type": "array", "items": {"type": "string"}, "minItems": 5}
    assert len({text for value in draws(texts) for text in value}) > 50
    optional = {**OBJECT, "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    assert {tuple(value) for value in draws(optional)} == {("a",), ("b",), ("a", "b")}


def test_a_null_is_rare_and_a_value_from_a_list_is_a_copy():
    values = draws({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 100)
    assert 0 < values.count(None) < 30
    schema = {"enum": [{"a": []}]}
    draw = inventor(schema)
    draw(dice(0))["a"].append(1)
    assert draw(dice(0)) == {"a": []}


def test_properties_come_in_the_order_of_the_schema():
    schema = {**OBJECT, "properties": {"z": {}, "a": {}, "m": {}}, "required": ["m", "a", "z"]}
    assert all(list(value) == ["z", "a", "m"] for value in draws(schema))


def test_names_tell_what_is_plausible():
    schema = {
        **OBJECT,
        "properties": {
            "userEmail": {"type": "string"},
            "year": {"type": "integer"},
            "city": {"type": "string"},
        },
        "required": ["userEmail", "year", "city"],
    }
    for value in draws(schema):
        assert "@" in value["userEmail"]
        assert 1990 <= value["year"] <= 2030
        assert value["city"][0].isupper()


@pytest.mark.parametrize("name", FORMATS)
def test_formats_vary_and_are_kept_to(name):
    assert len(set(draws({"type": "string", "format": name}))) > 10


leaf = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(-1e9, 1e9), st.text(max_size=12)
)  # fmt: skip
names = st.text("abcd", min_size=1, max_size=3)
documents = st.recursive(
    leaf,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def schemas_for(draw, value):
    """A schema that a value fits, in one of many ways to say so."""
    schema = {}
    match value:
        case bool() | None:
            schema = {"type": "boolean" if isinstance(value, bool) else "null"}
        case int() | float():
            schema = {"type": "integer" if isinstance(value, int) else "number"}
            room = draw(st.integers(0, 50))
            if draw(st.booleans()):
                schema["minimum"] = value - room
            if draw(st.booleans()):
                schema["exclusiveMaximum"] = value + room + 1
            if isinstance(value, int) and value and draw(st.booleans()):
                schema["multipleOf"] = abs(value)
        case str():
            schema = {"type": "string", "minLength": draw(st.integers(0, len(value)))}
            schema["maxLength"] = len(value) + draw(st.integers(0, 9))
        case list():
            schema = {"type": "array", "maxItems": len(value) + draw(st.integers(0, 3))}
            if value and draw(st.booleans()):
                schema["prefixItems"] = [draw(schemas_for(one)) for one in value]
                schema["minItems"] = draw(st.integers(0, len(value)))
                schema["items"] = draw(st.booleans())
            else:
                schema["items"] = {"anyOf": [draw(schemas_for(one)) for one in value] or [{}]}
        case dict():
            schema = {
                "type": "object",
                "properties": {key: draw(schemas_for(one)) for key, one in value.items()},
            }
            schema["required"] = [key for key in value if draw(st.booleans())]
            if draw(st.booleans()):
                schema["additionalProperties"] = False
            schema["minProperties"] = draw(st.integers(0, len(value)))
    match draw(st.integers(0, 7)):
        case 0:
            return {"anyOf": [schema, {"type": "null"}]}
        case 1:
            return {"allOf": [schema, {"not": {"const": "never"}}]}
        case 2:
            return {"oneOf": [schema, {"const": "never"}]} if value != "never" else schema
        case 3:
            return {"if": schema, "else": {"const": value}}
        case 4:
            return {"enum": [value, None, "x"]}
        case _:
            return schema


@given(documents.flatmap(lambda value: st.tuples(st.just(value), schemas_for(value))), st.integers(0, 2**32))
def test_a_schema_that_some_value_fits_is_filled(pair, seed):
    value, schema = pair
    assert valid(schema, value)
    assert valid(schema, inventor(schema)(dice(seed)))
