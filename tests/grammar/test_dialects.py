import pytest

from synthspec.grammar.dialects import modern
from synthspec.grammar.schemas import schema_mistakes

STRING = {"type": "string"}
CASES = {
    "types of Python": (
        {"type": "dict", "properties": {"a": {"type": "float"}, "b": {"type": "tuple", "items": {}}}},
        {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "array", "items": {}}}},
    ),
    "any type": ({"type": "any", "description": "d"}, {"description": "d"}),
    "types in capitals": ({"type": ["STRING", "NULL"]}, {"type": ["string", "null"]}),
    "a property called type": ({"properties": {"type": {"type": "str"}}}, {"properties": {"type": STRING}}),
    "nullable": ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
    "nullable choice": (
        {"type": "string", "enum": ["a"], "nullable": True},
        {"type": ["string", "null"], "enum": ["a", None]},
    ),
    "not nullable": ({"type": "string", "nullable": False}, STRING),
    "example": ({"type": "string", "example": "x"}, {"type": "string", "examples": ["x"]}),
    "open limits": (
        {"minimum": 1, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False},
        {"exclusiveMinimum": 1, "maximum": 9},
    ),
    "a list of items": (
        {"items": [STRING, {"type": "int"}], "additionalItems": False},
        {"prefixItems": [STRING, {"type": "integer"}], "items": False},
    ),
    "dependencies": (
        {"dependencies": {"a": ["b"], "c": {"required": ["d"]}, "e": "f"}},
        {"dependentRequired": {"a": ["b"], "e": ["f"]}, "dependentSchemas": {"c": {"required": ["d"]}}},
    ),
    "required at the property": (
        {"properties": {"a": {"type": "string", "required": True}, "b": {"required": False}}},
        {"properties": {"a": STRING, "b": {}}, "required": ["a"]},
    ),
    "the bounds of 64 bits": (
        {"type": "integer", "format": "int64", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "integer", "format": "int64"},
    ),
    "the bounds of a double": ({"type": "number", "maximum": 1.7e308}, {"type": "number"}),
    "required twice": ({"required": ["a", "b", "a"]}, {"required": ["a", "b"]}),
    "ids and notes": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "x-go": 1, **STRING},
        STRING,
    ),
    "Python's edges of a text": (
        {"pattern": r"\A[\w-\.]+\Z", "patternProperties": {r"^a\Z": True}},
        {"pattern": r"^[\w\-\.]+$", "patternProperties": {"^a$": True}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_older_words_become_those_of_draft_2020_12(case):
    given, expected = CASES[case]
    written, _ = modern(given, given)
    assert written == expected
    assert schema_mistakes(written) == []


REFERENCES = {
    "definitions": ({"definitions": {"a b": STRING}, "items": {"$ref": "#/definitions/a%20b"}}, "a_b"),
    "anywhere": ({"properties": {"a/b": STRING}, "items": {"$ref": "#/properties/a~1b"}}, "a_1b"),
    "an anchor": ({"$defs": {"x": {"$anchor": "here", **STRING}}, "items": {"$ref": "#here"}}, "here"),
    "an id": ({"$defs": {"x": {"$id": "x.json", **STRING}}, "items": {"$ref": "x.json"}}, "x.json"),
    "an id with a path": (
        {"$defs": {"x": {"$id": "x.json", "$defs": {"y": STRING}}}, "items": {"$ref": "x.json#/$defs/y"}},
        "y",
    ),
    "its own id": (
        {"$id": "http://x.org/s", "$defs": {"y": STRING}, "items": {"$ref": "http://x.org/s#/$defs/y"}},
        "y",
    ),
    "an address made of ids": (
        {
            "$id": "http://x.org/s/root.json",
            "$defs": {"x": {"$id": "sub/x.json", **STRING}},
            "items": {"$ref": "http://x.org/s/sub/x.json"},
        },
        "x.json",
    ),
    "its own id, in short": (
        {"$id": "http://x.org/s.json", "$defs": {"y": STRING}, "items": {"$ref": "s.json#/$defs/y"}},
        "y",
    ),
    "an id at every part": ({"$defs": {"x": STRING}, "items": {"$id": "/items", "$ref": "#/$defs/x"}}, "x"),
    "a dynamic one": (
        {"$defs": {"x": {"$dynamicAnchor": "here", **STRING}}, "items": {"$dynamicRef": "#here"}},
        "here",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFERENCES)
def test_references_stay_inside(case):
    given, name = REFERENCES[case]
    written, _ = modern(given, given)
    assert written["items"] == {"$ref": f"#/$defs/{name}"}
    assert written["$defs"] == {name: STRING}


def test_a_reference_inside_a_schema_with_an_id_leads_into_that_schema():
    inner = {"$id": "inner.json", "$defs": {"a": {"type": "integer"}}, "items": {"$ref": "#/$defs/a"}}
    given = {"$defs": {"a": STRING, "inner": inner}, "properties": {"x": {"$ref": "inner.json"}}}
    written, _ = modern(given, given)
    assert written["$defs"]["a"] == {"type": "integer"}


def test_two_schemas_of_one_name_are_kept_apart():
    given = {
        "properties": {"a": {"$ref": "#/x/item"}, "b": {"$ref": "#/y/item"}, "c": {"$ref": "#/x/item"}},
        "x": {"item": STRING},
        "y": {"item": {"type": "integer"}},
    }
    written, _ = modern({"properties": given["properties"]}, given)
    assert written["$defs"] == {"item": STRING, "item_2": {"type": "integer"}}
    assert written["properties"]["a"] == written["properties"]["c"]


def test_beside_a_reference_nothing_counted_up_to_draft_7():
    given = {"definitions": {"a": STRING}, "items": {"$ref": "#/definitions/a", "maxLength": 3, "title": "t"}}
    assert modern(given, given)[0]["items"] == {"$ref": "#/$defs/a", "maxLength": 3, "title": "t"}
    given["$schema"] = "http://json-schema.org/draft-07/schema#"
    assert modern(given, given)[0]["items"] == {"$ref": "#/$defs/a", "title": "t"}


def test_changed_types_are_told_once():
    given = {
        "type": "dict",
        "properties": {"a": {"type": "float"}, "b": {"type": "float"}, "c": {"type": "any"}},
    }
    (note,) = modern(given, given)[1]
    assert note.endswith("any as no type at all, dict as object, float as number")
    assert modern({"type": "object"}, {})[1] == []


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("other.json", "properties.a: the keyword $ref: 'other.json' leads out"),
        ("#/nothing", "'#/nothing' names nothing"),
        ("#nothing", "'#nothing' names nothing"),
        ("#/enum/0", "names no schema"),
    ],
)
def test_references_that_lead_nowhere_are_told(reference, words):
    given = {"properties": {"a": {"$ref": reference}}, "enum": ["x"]}
    with pytest.raises(ValueError, match="\\$ref") as told:
        modern(given, given)
    assert words in str(told.value)


def test_an_anchor_is_that_of_the_schema_with_the_id():
    child = {
        "$id": "child",
        "allOf": [{"$id": "other", "$anchor": "a", "type": "number"}, {"$anchor": "a", **STRING}],
    }
    written, _ = modern({"$ref": "child#a"}, {"$ref": "child#a", "$defs": {"c": child}})
    assert written["$defs"] == {"a": STRING}


def test_a_relative_id_is_the_one_of_its_own_folder():
    given = {
        "$id": "http://x.org/",
        "$defs": {
            "a": {"$id": "a/", "$defs": {"i": {"$id": "item.json", **STRING}}},
            "b": {
                "$id": "b/",
                "$defs": {"i": {"$id": "item.json", "type": "integer"}},
                "items": {"$ref": "item.json"},
            },
        },
        "properties": {"p": {"$ref": "b/"}, "q": {"$ref": "#/$defs/a/$defs/i"}},
    }
    written, _ = modern(given, given)
    assert written["$defs"]["item.json"] == {"type": "integer"}
    assert written["$defs"]["i"] == STRING


@pytest.mark.parametrize(
    ("draft", "kind"), [("draft-07/schema#", "number"), ("draft/2020-12/schema", "string")]
)
def test_an_id_beside_a_reference_counts_where_the_draft_says_so(draft, kind):
    given = {
        "$schema": f"http://json-schema.org/{draft}",
        "$id": "http://x.org/base/",
        "definitions": {
            "a": {"$id": "http://x.org/foo.json", **STRING},
            "b": {"$id": "foo.json", "type": "number"},
        },
        "items": {"$id": "http://x.org/", "$ref": "foo.json"},
    }
    assert modern(given, given)[0]["$defs"] == {"foo.json": {"type": kind}}


@pytest.mark.parametrize("key", ["$dynamicRef", "$recursiveRef"])
def test_a_reference_that_depends_on_the_way_is_refused(key):
    given = {
        "$defs": {
            "a": {"$dynamicAnchor": "x", "$recursiveAnchor": True, **STRING},
            "b": {"$dynamicAnchor": "x", "$recursiveAnchor": True, "type": "integer"},
        },
        "items": {key: "#x"},
    }
    with pytest.raises(ValueError, match=r"items: the keyword \$\w+: what '#x' names depends on how"):
        modern(given, given)


def test_too_long_a_chain_of_references_is_told():
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(2000)}
    given = {"$ref": "#/$defs/d0", "$defs": {**chain, "d2000": STRING}}
    with pytest.raises(ValueError, match="keyword \\$ref"):
        modern(given, given)
