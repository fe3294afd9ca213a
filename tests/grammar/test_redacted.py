import random

import pytest

from synthspec.grammar.examples import filled_examples
from synthspec.grammar.invent import Unfillable
from synthspec.grammar.redacted import filled, slot_names
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
    ((call,),) = (answer.calls for answer in filled_examples(grammar, {"town": town}, 5))
    assert call.arguments["to"] == town
    assert call.arguments["via"] == [town, f"near {town}, or {town}"]


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
        (True, {"type": "string"}, "True"),
        (True, {"type": "boolean"}, True),
        (7, {"anyOf": [{"type": "string"}, {"type": "null"}]}, "7"),
    ],
)
def test_a_slot_takes_the_type_that_the_schema_asks_for(slot, schema, expected):
    result = filled("<redacted:s>", schema, {"s": slot}, dice(0))
    assert result == expected
    assert type(result) is type(expected)


def test_a_slot_that_cannot_be_what_the_schema_asks_for_is_told():
    with pytest.raises(Unfillable, match="a breaks the keyword type"):
        filled({"a": "<redacted:s>"}, {"properties": {"a": {"type": "integer"}}}, {"s": "x"}, dice(0))


def test_names_of_slots_are_found_wherever_values_stand():
    example = {"a": ["x <redacted:one> <redacted>", 3, {"b": "<redacted:two>"}], "<redacted:key>": None}
    assert list(slot_names(example)) == ["one", "two", "key"]


def test_marks_stand_in_keys_and_in_numbers():
    schema = {"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"maxLength": 12}}
    value = filled({"<redacted>": "1<redacted>0", "<redacted:s>": "<redacted>"}, schema, {"s": "here"}, dice(0))
    (key, number), (slot, other) = value.items()
    assert "<redacted" not in key
    assert 110 <= number <= 1990
    assert (slot, type(other)) == ("here", int)


def test_several_marked_keys_become_different_keys():
    schema = {"patternProperties": {"^[abc]$": {"type": "boolean"}}, "additionalProperties": False}
    value = filled({"a": True, "<redacted>": "<redacted>"}, schema, {}, dice(1))
    assert len(value) == 2
    with pytest.raises(Unfillable):
        filled(dict.fromkeys(("a", "b", "c", "<redacted>"), True), schema, {}, dice(1))


def test_an_example_is_filled_by_the_branch_that_it_belongs_to():
    card = {"properties": {"pay": {"const": "card"}, "number": {"type": "string", "pattern": "^[0-9]{4}$"}}}
    cash = {"properties": {"pay": {"const": "cash"}, "number": {"type": "integer"}}}
    for seed in range(10):
        value = filled({"pay": "card", "number": "<redacted>"}, {"oneOf": [cash, card]}, {}, dice(seed))
        assert value["number"].isdecimal()


def test_items_that_must_differ_do():
    schema = {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}
    for seed in range(10):
        assert len(set(filled(["<redacted>", "a", "<redacted>"], schema, {}, dice(seed)))) == 3


def test_what_no_filling_can_mend_is_told():
    schema = {"properties": {"list": {"items": {"type": "string", "maxLength": 3}}}}
    with pytest.raises(Unfillable, match=r"list\.0 breaks the keyword maxLength"):
        filled({"list": ["four", "<redacted>"]}, schema, {}, dice(0))
    with pytest.raises(Unfillable, match="the value has no b, which is required"):
        filled({"a": "<redacted>"}, {"required": ["b"]}, {}, dice(0))
