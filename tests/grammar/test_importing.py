import json
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from synthspec.errors import UserError
from synthspec.grammar.conform import violation
from synthspec.grammar.examples import filled_examples
from synthspec.grammar.importing import Imported, as_files, import_document, import_file, parsed
from synthspec.grammar.model import Grammar, load_grammars
from synthspec.yamlfile import parse_yaml

TOWN = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}

OPENAPI = """
openapi: 3.0.3
info: {title: Pets, version: "1"}
paths:
  /pets/{pet}:
    parameters:
      - {name: pet, in: path, required: true, schema: {type: integer, minimum: 0, exclusiveMinimum: true}}
    get:
      operationId: show pet
      summary: Shows a pet.
      parameters:
        - $ref: '#/components/parameters/Loud'
        - {name: Authorization, in: header, schema: {type: string}}
      responses:
        200: {description: ok}
    put:
      description: Changes a pet.
      requestBody:
        required: true
        content:
          text/plain: {schema: {type: string}}
          application/json: {schema: {$ref: '#/components/schemas/Pet'}}
  /pets:
    post:
      operationId: addPets
      requestBody: {$ref: '#/components/requestBodies/Many'}
  /far:
    get:
      operationId: far
      parameters: [{name: a, in: query, schema: {$ref: 'other.yaml#/X'}}]
components:
  parameters:
    Loud: {name: loud, in: query, description: Barks., schema: {type: boolean}}
  requestBodies:
    Many:
      required: true
      content:
        application/json: {schema: {type: array, minItems: 1, items: {$ref: '#/components/schemas/Pet'}}}
  schemas:
    Pet:
      type: object
      required: [id, name, kind]
      properties:
        id: {type: integer, readOnly: true}
        name: {type: string, maxLength: 20, example: Rex}
        kind: {type: string, enum: [cat, dog]}
        tag: {type: string, nullable: true}
        owner: {nullable: true, allOf: [{$ref: '#/components/schemas/Owner'}]}
    Owner: {type: object, properties: {email: {type: string, format: email}}, required: [email]}
"""


def made(document, **options):
    """The grammar of a document, read back from the file that is written of it."""
    imported = import_document(document, "Town Tools", **options)
    grammar = parse_yaml(next(iter(as_files(imported).values())), "g.yaml", Grammar)
    for seed in range(5):
        assert all(violation(grammar, value) is None for value in filled_examples(grammar, {}, seed))
    return grammar, imported


def refusal(document):
    with pytest.raises(ValueError) as told:  # noqa: PT011
        import_document(document, "x")
    return str(told.value)


def test_operations_of_openapi_become_tools():
    grammar, imported = made(parsed(OPENAPI))
    tools = {tool.name: tool.parameters for tool in grammar.tools}
    assert list(tools) == ["show_pet", "put_pets_pet", "addPets"]
    assert tools["show_pet"]["properties"] == {
        "pet": {"type": "integer", "exclusiveMinimum": 0},
        "loud": {"type": "boolean", "description": "Barks."},
    }
    assert tools["show_pet"]["required"] == ["pet"]
    changed = tools["put_pets_pet"]
    assert list(changed["properties"]) == ["pet", "name", "kind", "tag", "owner"]
    assert changed["required"] == ["pet", "name", "kind"]
    assert changed["properties"]["name"]["examples"] == ["Rex"]
    assert changed["properties"]["tag"] == {"type": ["string", "null"]}
    assert changed["properties"]["owner"]["anyOf"][1] == {"type": "null"}
    assert tools["addPets"]["properties"]["body"]["items"] == {"$ref": "#/$defs/Pet"}
    assert grammar.tools[0].description == "Shows a pet."
    assert "Pets" in imported.origin
    notes = "\n".join(imported.notes)
    assert "'show pet'" in notes or "show pet is called show_pet" in notes
    assert "/far get: properties.a: the keyword $ref: 'other.yaml#/X' leads out" in notes


def test_examples_hold_marks_for_what_is_required():
    grammar, _ = made(parsed(OPENAPI))
    assert grammar.examples[1] == {
        "name": "put_pets_pet",
        "arguments": {"pet": "<redacted>", "name": "<redacted>", "kind": "<redacted>"},
    }
    nested = {"properties": {"a": TOWN, "b": {"const": 3}, "c": {}}, "required": ["b", "a"]}
    (grammar, _) = made({"type": "object", **nested})
    assert grammar.examples == [{"a": {"town": "<redacted>"}, "b": 3}]


GO = {"name": "go", "description": "Goes."}


@pytest.mark.parametrize(
    "document",
    [
        {"tools": [{**GO, "inputSchema": TOWN}]},
        {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{**GO, "inputSchema": TOWN}]}},
        [{"type": "function", "function": {**GO, "parameters": TOWN}}],
        {"model": "m", "tools": [{**GO, "type": "function", "parameters": TOWN}]},
        {**GO, "input_schema": TOWN},
        {**GO, "server": "s", "parameters": {**TOWN, "type": "dict"}},
    ],
)
def test_lists_of_tools_are_recognised(document):
    grammar, _ = made(document)
    assert (grammar.kind, grammar.name, grammar.wire_format) == ("tool_call", "town_tools", "hermes")
    (tool,) = grammar.tools
    assert (tool.name, tool.description, tool.parameters) == ("go", "Goes.", TOWN)


def test_a_schema_becomes_an_extraction():
    for document in (TOWN, {"type": "json_schema", "json_schema": {"name": "Town Tools", "schema": TOWN}}):
        grammar, _ = made(document)
        assert (grammar.kind, grammar.name, grammar.schema_) == ("extraction", "town_tools", TOWN)


def test_a_tool_without_parameters_is_one():
    grammar, _ = made([{"name": "now", "inputSchema": None}, {"name": "then", "inputSchema": {}}])
    assert [example["arguments"] for example in grammar.examples] == [{}, {}]


def test_one_bad_tool_does_not_stop_the_others():
    bad = {"name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"type": "strng"}}}}
    grammar, imported = made([bad, {"name": "go", "inputSchema": TOWN}, {"name": "go", "inputSchema": TOWN}, 3])
    assert [tool.name for tool in grammar.tools] == ["go"]
    assert len(imported.notes) == 3
    assert any("properties.a.type: 'strng' is no type" in note for note in imported.notes)


def test_what_is_not_enforced_is_told():
    _, imported = made({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    assert imported.notes == ("not enforced while decoding, only checked after it: uniqueItems",)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "is none of"),
        ({"a": 1}, "is none of"),
        ([], "holds no tool"),
        ({"swagger": "2.0", "paths": {}}, "openapi: only versions 3.0 and 3.1"),
        ({"openapi": "3.1.0"}, "holds no tool"),
        ({"openapi": "3.1.0", "paths": []}, "paths: must be"),
        ({"jsonrpc": "2.0", "error": {"code": 1}}, "without a result"),
        ([{"name": "a b", "inputSchema": TOWN}], "name: a tool's name is of letters"),
        ([{"name": "a", "inputSchema": 3}], "no mapping"),
        ([{"name": "a", "inputSchema": {"type": "string"}}], "must describe an object"),
        ({"$ref": "https://example.org/x.json"}, "the keyword $ref: 'https://example.org/x.json' leads out"),
        ({"$ref": "#/$defs/x"}, "the keyword $ref: '#/$defs/x' names nothing"),
        ({"$ref": 3}, "the keyword $ref"),
        ({"items": {"$ref": "#"}, "minItems": 1}, "contains itself without end through $ref"),
        ({"type": "string", "enum": [1]}, "keyword enum"),
        ({"type": "string", "pattern": "[a"}, "the keyword pattern"),
        ({"type": "string", "minLength": "x"}, "minLength: is not JSON Schema"),
        ({"$defs": {"a": {"$dynamicRef": "#x"}}, "$ref": "#/$defs/a"}, "'#x' names nothing"),
        ({"type": "integer", "minimum": float("inf")}, "too large"),
        ({"const": "\ud800"}, "surrogate"),
        ({"const": json.loads("[" * 200 + "]" * 200)}, "nested deeper"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_told_in_words(document, words):
    assert words in refusal(document)


def test_bad_files_are_told_with_their_name(tmp_path):
    bomb = "a: &a [1,1]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)},*{chr(97 + i)}]\n" for i in range(24)
    )
    cases = {
        "none.json": (None, "there is no such file"),
        "open.yaml": ("a: [b", "neither JSON nor YAML (line 2)"),
        "latin.json": (b'"\xff"', "not UTF-8"),
        "deep.json": ("[" * 100_000, "nested too deeply"),
        "digits.json": ('{"const": ' + "9" * 5000 + "}", "too many digits"),
        "bomb.yaml": (bomb, "more than 200,000 values"),
        "self.yaml": ("a: &a [*a]", "line 1: contains itself"),
        "big.yaml": ("a: b\n" * 500_000, "YAML of more than 2 MB"),
        "parts.json": (json.dumps({"properties": {f"p{i}": {} for i in range(9000)}}), "5,000 parts"),
        "values.json": (json.dumps({"enum": [[0] * 1000] * 1100}), "more than 1,000,000 values"),
        "huge.json": ('{"description": "' + "x" * 10_000_000 + '"}', "larger than 10 MB"),
    }  # fmt: skip
    for name, (content, words) in cases.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        begin = time.perf_counter()
        with pytest.raises(UserError) as told:
            import_file(path)
        assert str(told.value).startswith(f"{path}: "), name
        assert words in str(told.value), name
        assert len(str(told.value)) < 400, name
        assert time.perf_counter() - begin < 5, name
    with pytest.raises(UserError, match="is a folder"):
        import_file(tmp_path)


def test_a_file_names_its_grammar(tmp_path):
    (tmp_path / "Pet Store.v2.yaml").write_text(OPENAPI)
    assert import_file(tmp_path / "Pet Store.v2.yaml").grammar["name"] == "pet_store_v2"


def test_the_file_is_plain_to_read():
    [text] = as_files(import_document(parsed(OPENAPI), "pets")).values()
    assert text.startswith("# Made from an OpenAPI document (Pets).\n")
    assert "&" not in text.replace("&lt;", "")
    assert "\nexamples:\n- name: show_pet\n  arguments:\n    pet: <redacted>\n" in text


texts = st.text(st.characters(exclude_categories=["Cs"]))
odd = st.sampled_from(["no", "1e5", "12:30", "007", "0x1F", "~", "", "<redacted>", "a: b", "- c", "2024-05-01"])
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts | odd,
    lambda inner: st.lists(inner) | st.dictionaries(texts | odd, inner),
    max_leaves=10,
)


def test_many_tools_become_a_catalogue_in_a_file_of_its_own(tmp_path):
    listed = [
        {"name": f"find_{n}", "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}
        for n in range(230)
    ]
    for name, text in as_files(import_document({"tools": listed}, "town")).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (grammar,) = load_grammars(tmp_path, ["*.yaml"])
    assert [tool.name for tool in grammar.tools] == [tool["name"] for tool in listed]
    assert grammar.catalogue.file == "tools/town.yaml"
    assert len(grammar.examples) == 115


def operation(**fields):
    return {"openapi": "3.0.0", "paths": {"/a": {"post": {"operationId": "do", **fields}}}}


def test_parameters_of_one_name_are_all_kept_and_what_changed_is_told():
    listed = [
        {"name": name, "in": where, "schema": {"type": "string"}}
        for name, where in (("id_header", "query"), ("id", "query"), ("id", "header"))
    ]
    body = {"type": "object", "properties": {"made": {"readOnly": True}, "text": {"type": "string"}}}
    request = {"content": {"application/json": {"schema": body}}}
    imported = import_document(operation(parameters=listed, requestBody=request), "x")
    (tool,) = imported.grammar["tools"]
    assert list(tool["parameters"]["properties"]) == ["id_header", "id", "id_header1", "text"]
    told = " ".join(imported.notes)
    assert "the parameter id in header is called id_header1" in told
    assert "read-only fields are left out: made" in told


@pytest.mark.parametrize(
    "fields",
    [
        {"parameters": [{"name": "a", "in": ["query"], "schema": {}}]},
        {
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"properties": {"a": {}}, "required": [{}]}}},
            }
        },
    ],
)
def test_an_operation_that_is_none_is_left_out_in_words(fields):
    with pytest.raises(ValueError, match="is left out: a parameter or its body is not as OpenAPI has them"):
        import_document(operation(**fields), "x")


@given(values)
def test_what_is_written_is_read_back_the_same(value):
    [text] = as_files(Imported({"name": "n", "value": value}, "a test", ("a note\nof two lines",))).values()
    again = parsed(text)["value"]
    assert json.dumps(again) == json.dumps(value)
    assert yaml.safe_load(text) is not None
