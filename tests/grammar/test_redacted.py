import random

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthspec.grammar.check import filled_examples
from synthspec.grammar.redacted import filled, invented, slot_names
from synthspec.grammar.slots import fill

dice = random.Random


def test_a_slot_has_one_value_everywhere(load):
    grammar = load(
        examples=[
            {
                "name": "find_train",
                "arguments": {
                    "to": "<redacted:town>",
                    "seats": 2,
                    "via": ["<redacted:town>", "near <redacted:town>, or <redacted:town>"],
                },
            }
        ]
    )
    town = fill(grammar, 5)["town"]
    (call,) = filled_examples(grammar, {"town": town}, 5)
    assert call["arguments"]["to"] == town
    assert call["arguments"]["via"] == [town, f"near {town}, or {town}"]


def test_nameless_marks_are_drawn_apart_and_again_the_same():
    schema = {"items": {"type": "integer", "minimum": 0, "maximum": 10**9}}
    first = filled(["<redacted>"] * 3, schema, {}, dice(1))
    assert len(set(first)) == 3
    assert first == filled(["<redacted>"] * 3, schema, {}, dice(1))
    assert "<redacted>" not in filled("at <redacted> on", {}, {}, dice(1))


@pytest.mark.parametrize(
    ("slot", "schema", "expected"),
    [
        (7, {"type": "string"}, "7"),
        (7, {"type": "integer"}, 7),
        (7, {"type": "number"}, 7),
        (7, {}, 7),
        ("7", {"type": "integer"}, 7),
        ("1.5", {"type": ["number", "null"]}, 1.5),
        ("x", {"type": "integer"}, "x"),  # cannot be one: validation will say so
        (True, {"type": "string"}, "True"),
        (True, {"type": "boolean"}, True),
        (7, {"anyOf": [{"type": "string"}, {"type": "null"}]}, "7"),
    ],
)
def test_a_slot_takes_the_type_that_the_schema_asks_for(slot, schema, expected):
    result = filled("<redacted:s>", schema, {"s": slot}, dice(0))
    assert result == expected
    assert type(result) is type(expected)


def test_names_of_slots_are_found_wherever_values_stand():
    example = {"a": ["x <redacted:one> <redacted>", 3, {"b": "<redacted:two>"}], "<redacted:key>": None}
    assert list(slot_names(example)) == ["one", "two"]


numbers = st.integers(-1000, 1000)
schemas = st.one_of(
    st.builds(
        lambda low, span: {"type": "integer", "minimum": low, "maximum": low + abs(span)}, numbers, numbers
    ),
    st.builds(lambda low: {"type": "integer", "exclusiveMinimum": low}, numbers),
    st.builds(lambda high: {"type": "integer", "exclusiveMaximum": high}, numbers),
    st.builds(
        lambda low, step: {"type": "integer", "minimum": low, "multipleOf": step},
        numbers,
        st.integers(1, 9),
    ),
    st.builds(lambda low: {"type": "number", "minimum": low, "maximum": low + 0.5}, numbers),
    st.builds(
        lambda few, span: {"type": "string", "minLength": few, "maxLength": few + span},
        st.integers(0, 80),
        st.integers(0, 9),
    ),
    st.sampled_from(
        [
            {"type": "string", "format": name}
            for name in (
                "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid",
            )
        ]
        + [
            {"type": "boolean"},
            {"type": "null"},
            {"enum": ["a", 1, None]},
            {"const": {"a": 1}},
            {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"},
            {"type": ["null", "integer"]},
            {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 2}]},
            {"allOf": [{"type": "integer"}, {"minimum": 500}]},
        ]
    ),
)  # fmt: skip
nested = st.recursive(
    schemas,
    lambda inner: st.one_of(
        st.builds(
            lambda parts: {"type": "object", "properties": parts, "required": [*parts]},
            st.dictionaries(st.sampled_from("abc"), inner),
        ),
        st.builds(lambda item, n: {"type": "array", "items": item, "minItems": n}, inner, st.integers(0, 3)),
    ),
    max_leaves=5,
)


@given(nested, st.integers(0, 2**32))
def test_what_is_invented_validates(schema, seed):
    made = invented(schema, dice(seed))
    jsonschema_rs.Draft202012Validator(schema, validate_formats=True).validate(made)
