import pytest

from synthspec.grammar.schemas import (
    MAX_ITEMS,
    MAX_STRING,
    bounded,
    call_schema,
    inlined,
    schema_mistakes,
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
        ({"$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}, "contains itself"),
        ({"properties": {"a": {"$ref": "#"}}}, "contains itself"),
        ({"properties": {"a": {"pattern": "["}}}, "regex"),
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
    assert "20,000 parts" in told({"$defs": {**defs, "d12": {"type": "string"}}, "$ref": "#/$defs/d0"})


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
