import json
import random

import jsonschema_rs
import pytest

from synthspec.grammar.constraint import Constraint, Json, problem
from synthspec.grammar.invent import invented
from synthspec.grammar.schemas import (
    MAX_ITEMS,
    MAX_STRING,
    bounded,
    call_schema,
    inlined,
    parts_of,
    schema_mistakes,
    target,
    unenforced,
    validator_of,
    width,
)


def told(schema):
    return "; ".join(f"{'.'.join(map(str, place))}: {sentence}" for place, sentence in schema_mistakes(schema))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strng"}, "type: 'strng' is no type"),
        ({"properties": {"a": {"minimum": "x"}}}, "properties.a.minimum: is not JSON Schema"),
        ({"properties": {"a": {"$ref": "https://x.org/a"}}}, "leads out of this schema"),
        ({"properties": {"a": {"$ref": "other.json#/a"}}}, "leads out of this schema"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "properties.a.$ref: $ref '#/$defs/b' names nothing"),
        ({"$dynamicRef": "#a"}, "$dynamicRef is not supported"),
        (
            {"$defs": {"t": {"items": {"$ref": "#/$defs/t"}, "minItems": 1}}, "$ref": "#/$defs/t"},
            "contains itself",
        ),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "contains itself"),
        ({"properties": {"a": {"pattern": "["}}}, "the keyword pattern"),
        ({"properties": {"a": {"pattern": r"[\x00-\u{10ffff}]{9000}"}}}, "asks for over 1,000 characters"),
        (
            {"properties": {"a": {"minimum": 3, "exclusiveMinimum": True}}},
            "write the limit itself as exclusiveM",
        ),
        (
            {"items": [{"type": "string"}]},
            "items: this items is of an older draft of JSON Schema; write prefixItems",
        ),
        ({"dependencies": {"a": ["b"]}}, "write dependentRequired or dependentSchemas"),
        ({"properties": {"a": {"required": True}}}, "list the property in required of the object"),
    ],
)
def test_mistakes_say_where_and_what(schema, words):
    assert words in told(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"$ref": {"type": "string"}}},  # a property of that name is no reference
        {"enum": [{"$ref": "https://x.org"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
    ],
)
def test_good_schemas_have_none(schema):
    assert schema_mistakes(schema) == []


def test_a_schema_that_unfolds_without_bound_is_refused_quickly():
    defs = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 10} for i in range(12)}
    assert "5,000 parts" in told({"$defs": {**defs, "d12": {"type": "string"}}, "$ref": "#/$defs/d0"})


def test_deep_schemas_and_long_chains_of_references_are_refused():
    deep = {"type": "string"}
    for _ in range(400):
        deep = {"items": deep}
    assert "nested too deeply" in told(deep)
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}
    assert "($ref)" in told({"$ref": "#/$defs/d0", "$defs": {**chain, "d3000": {}}})


def test_a_reference_names_a_place_an_anchor_or_the_schema_itself():
    schema = {"$id": "http://x.org/s", "$defs": {"a%/~b": {"$anchor": "here", "type": "string"}}}
    inner = schema["$defs"]["a%/~b"]
    for reference in ("#/$defs/a%25~1~0b", "#here", "http://x.org/s#here"):
        assert target(schema, reference) is inner
    assert target(schema, "#") is schema


def test_what_is_unevaluated_counts_over_a_reference_and_what_stands_beside_it():
    schema = {
        "$defs": {"a": {"properties": {"x": {}}}},
        "$ref": "#/$defs/a",
        "properties": {"y": {}},
        "unevaluatedProperties": False,
    }
    validator = jsonschema_rs.Draft202012Validator(inlined(schema))
    assert validator.is_valid({"x": 1, "y": 2})
    assert not validator.is_valid({"x": 1, "z": 2})


def test_references_are_written_out():
    schema = {
        "$defs": {"a/b": {"type": "string"}, "p": {"properties": {"x": {"$ref": "#/$defs/a~1b"}}}},
        "properties": {
            "one": {"$ref": "#/$defs/p", "description": "d"},
            "two": {"$ref": "#/$defs/p", "required": []},
        },
    }
    written = inlined(schema)
    assert written["properties"]["one"] == {"properties": {"x": {"type": "string"}}, "description": "d"}
    assert written["properties"]["two"]["allOf"][0] == {"properties": {"x": {"type": "string"}}}
    assert "$defs" not in written


def test_what_has_no_bound_gets_one_and_what_has_keeps_it():
    schema = bounded(
        {
            "type": "object",
            "title": "T",
            "properties": {
                "title": {"type": "string"},
                "short": {"type": "string", "maxLength": 3},
                "long": {"type": "string", "minLength": 99},
                "hash": {"type": "string", "pattern": "^[a-f]{64}$"},
                "list": {"type": "array", "items": {"type": "string"}},
                "many": {"type": "array", "minItems": 9, "maxItems": 11, "items": {"const": 1}},
                "n": {"type": "integer", "minimum": 5},
                "maybe": {"type": ["string", "null"]},
            },
        }
    )
    inner = schema["properties"]
    assert schema["additionalProperties"] is False
    assert "title" not in schema
    assert inner["title"] == {"type": "string", "maxLength": MAX_STRING}
    assert inner["short"]["maxLength"] == 3
    assert inner["long"]["maxLength"] == 99
    assert inner["hash"]["maxLength"] >= 64
    assert inner["list"]["maxItems"] == MAX_ITEMS
    assert (inner["many"]["minItems"], inner["many"]["maxItems"]) == (9, 11)
    assert inner["n"]["minimum"] == 5
    assert inner["n"]["maximum"] > 5
    assert inner["maybe"]["maxLength"] == MAX_STRING


def test_what_no_backend_enforces_is_left_out_and_named():
    schema = {
        "type": "object",
        "properties": {
            "list": {
                "type": "array",
                "items": {"type": "integer"},
                "uniqueItems": True,
                "contains": {"const": 1},
            },
            "word": {"type": "string", "pattern": "^(?!x)[a-z]+$"},
            "link": {"type": "string", "format": "json-pointer"},
            "phone": {"type": "string", "format": "phone"},
        },
        "minProperties": 2,
        "if": {"required": ["list"]},
        "then": {"required": ["word"]},
        "oneOf": [{"required": ["list"]}, {"required": ["word"]}],
    }
    named = {".".join(map(str, path)) for path, _ in unenforced(schema)}
    assert named == {
        "if", "then", "oneOf", "minProperties", "properties.list.uniqueItems", "properties.list.contains",
        "properties.word.pattern", "properties.link.format",
    }  # fmt: skip
    left = bounded(schema)
    assert left["anyOf"] == schema["oneOf"]
    assert not {"if", "then", "oneOf", "minProperties"} & set(left)
    assert set(left["properties"]["list"]) == {"type", "items", "maxItems"}
    assert set(left["properties"]["word"]) == set(left["properties"]["phone"]) == {"type", "maxLength"}
    assert problem(Constraint(Json(left))) is None


@pytest.mark.parametrize(
    ("branches", "apart"),
    [
        ([{"const": 1}, {"enum": [2, "1"]}], True),
        ([{"const": 1}, {"enum": [1, 2]}], False),
        ([{"type": "string"}, {"type": ["integer", "null"]}], True),
        ([{"type": "number"}, {"type": "integer"}], False),
        ([{"type": "string"}, {}], False),
        ([True, {"type": "string"}], False),
    ],
)
def test_one_of_is_enforced_where_its_branches_are_apart(branches, apart):
    assert bool(unenforced({"oneOf": branches})) != apart


def test_formats_that_backends_do_not_know_become_stricter_ones():
    assert bounded({"type": "string", "format": "iri"})["format"] == "uri"


def test_brackets_inside_brackets_mean_to_backends_what_they_mean_to_json_schema():
    text = {"type": "string", "pattern": r"^[^[\]]+[[]\[$"}
    left = bounded({"properties": {"a": text}, "patternProperties": {"^[[]": text}})
    assert left["properties"]["a"]["pattern"] == r"^[^\[\]]+[\[]\[$"
    assert list(left["patternProperties"]) == [r"^[\[]"]
    assert problem(Constraint(Json(left))) is None


def test_an_object_with_optional_properties_is_closed():
    open_map = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert bounded(open_map)["additionalProperties"]["type"] == "integer"
    assert bounded({**open_map, "properties": {"a": {}}})["additionalProperties"] is False
    assert bounded({"type": "object", "properties": {"a": False, "b": {}}})["properties"].keys() == {"b"}


def test_what_is_required_and_not_described_may_be_written():
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a", "b"]}
    assert problem(Constraint(Json(bounded(schema)))) is None
    assert list(bounded(schema)["properties"]) == ["a", "b"]
    assert schema["properties"] == {"a": {"const": 1}}
    assert list(bounded({**schema, "additionalProperties": False})["properties"]) == ["a"]


def test_an_object_of_closed_branches_is_not_opened():
    branch = {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert "additionalProperties" not in bounded({"type": "object", "oneOf": [branch]})


def test_parts_stand_right_inside():
    schema = {"items": {"not": {}}, "anyOf": [True], "properties": {"a": {}}, "const": {"items": {}}}
    assert [path for path, _ in parts_of(schema)] == [("items",), ("anyOf", 0), ("properties", "a")]


def test_bounding_leaves_the_given_schema_as_it_is():
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
    bounded(schema)
    assert schema == {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}


def test_parts_of_all_of_are_joined_before_the_object_is_closed():
    schema = bounded(
        {
            "type": "object",
            "properties": {"a": {"type": "boolean"}},
            "allOf": [{"properties": {"b": {"type": "boolean"}}, "required": ["b"]}],
        }
    )
    assert list(schema["properties"]) == ["a", "b"]
    assert schema["required"] == ["b"]
    assert schema["additionalProperties"] is False


def test_a_branch_does_not_shut_out_the_properties_beside_it():
    schema = bounded(
        {
            "type": "object",
            "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
            "anyOf": [{"properties": {"a": {"const": True}}, "required": ["a"]}, {"required": ["b"]}],
        }
    )
    assert all("additionalProperties" not in branch for branch in schema["anyOf"])


def test_one_tool_is_one_object_and_several_are_alternatives():
    one = call_schema({"a": {"type": "object", "properties": {}}})
    assert one["properties"]["name"] == {"const": "a"}
    assert one["additionalProperties"] is False
    two = call_schema({"a": {"type": "object"}, "b": {"type": "object"}})
    assert [call["properties"]["name"]["const"] for call in two["anyOf"]] == ["a", "b"]


def test_width_of_a_pattern():
    assert width("[A-Z]{3}-[0-9]{1,4}") == (5, 8)
    with pytest.raises(ValueError, match="not a regular expression"):
        width("(")


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 5},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["name", "next"],
        }
    },
}


def test_what_contains_itself_is_written_out_until_it_can_end():
    plain = inlined(TREE)
    assert "$ref" not in json.dumps(plain)
    first = plain["properties"]["kids"]["items"]
    last = first["properties"]["kids"]["items"]["properties"]
    assert last["kids"] == {"type": "array", "maxItems": 0}
    assert last["next"] == {"anyOf": [{"type": "null"}]}
    judge = validator_of(TREE)
    for seed in range(40):
        assert judge.is_valid(invented(plain, random.Random(seed)))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2},
        {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}, {"type": "object"}]}]},
    ],
)
def test_what_contains_itself_without_end_is_told(schema):
    with pytest.raises(ValueError, match="contains itself without end through \\$ref '#'"):
        inlined(schema)


def test_what_contains_itself_in_many_places_is_written_out_less_deep():
    many = {"type": "object", "properties": {f"p{number}": {"$ref": "#"} for number in range(60)}}
    assert inlined(many)["properties"]["p0"]["properties"] == {}
