import random
from collections import Counter

import pytest
from pydantic import ValidationError

from synthspec.grammar.shape import Shape, draw_calls, shape_mistakes, shaped

TRIP = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "maxLength": 20},
        "via": {"type": "string"},
        "guests": {
            "type": "array",
            "maxItems": 5,
            "items": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
        },
    },
    "required": ["to"],
}
TOOLS = {"book": TRIP, "book.trip": TRIP}


def test_calls_are_drawn_by_their_weights():
    shape = Shape.model_validate({"calls": {"1": 3, "2": 1}})
    dice = random.Random(0)
    drawn = Counter(draw_calls(shape, dice) for _ in range(4000))
    assert set(drawn) == {1, 2}
    assert 0.7 < drawn[1] / 4000 < 0.8


def test_an_optional_field_stands_as_often_as_in_production():
    shape = Shape(present={"book.trip.via": 0.25, "book.guests": 1, "book.guests[].age": 0})
    dice = random.Random(1)
    stood = 0
    for _ in range(2000):
        drawn = shaped(TOOLS, shape, dice)
        trip = drawn["book.trip"]
        assert ("via" in trip["properties"]) == ("via" in trip["required"])
        stood += "via" in trip["properties"]
        assert drawn["book"]["required"] == ["to", "guests"]
        assert [*drawn["book"]["properties"]["guests"]["items"]["properties"]] == ["name"]
    assert 0.2 < stood / 2000 < 0.3
    assert TOOLS["book.trip"] is TRIP
    assert TRIP["required"] == ["to"]


def test_what_lies_in_a_field_that_was_left_out_does_not_matter():
    shape = Shape(present={"guests": 0, "guests[].age": 1}, items={"guests": (1, 2)})
    assert "guests" not in shaped({"": TRIP}, shape, random.Random(0))[""]["properties"]


def test_lengths_are_narrowed_and_never_widened():
    shape = Shape(items={"guests": (2, 9)}, length={"to": (30, 40)})
    trip = shaped({"": TRIP}, shape, random.Random(0))[""]["properties"]
    assert (trip["guests"]["minItems"], trip["guests"]["maxItems"]) == (2, 5)
    assert (trip["to"]["minLength"], trip["to"]["maxLength"]) == (20, 20)


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ({"present": {"book.to": 0.5}}, "book.to stands in every output"),
        ({"present": {"fly.to": 0.5}}, "there is no field fly.to"),
        ({"present": {"book": 0.5}}, "there is no field book"),
        ({"items": {"book.to": [1, 2]}}, "book.to is no array"),
        ({"length": {"book.guests[].age": [1, 2]}}, "book.guests[].age is no string"),
        ({"length": {"book.guests[].size": [1, 2]}}, "there is no field book.guests[].size"),
    ],
)
def test_places_that_are_not_there_are_told(shape, told):
    (mistake,) = shape_mistakes(Shape.model_validate(shape), {"book": TRIP})
    assert mistake[1].startswith(told)


@pytest.mark.parametrize("shape", [{"calls": {"1": 0}}, {"items": {"a": [3, 2]}}, {"calls": {"17": 1}}])
def test_statistics_that_cannot_be_are_refused(shape):
    with pytest.raises(ValidationError):
        Shape.model_validate(shape)
