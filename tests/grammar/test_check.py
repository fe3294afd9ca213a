import copy
import re
from pathlib import Path

import pytest
import yaml

from synthspec.errors import UserError
from synthspec.grammar.model import load_grammars
from tests.grammar.conftest import OTHER, TOOL

EXAMPLE = {"name": "find_train", "arguments": {"to": "<redacted:town>", "seats": "<redacted>"}}


def tool_of(**schema):
    return [{**TOOL, "parameters": {"type": "object", "properties": {"to": {"type": "string"}}, **schema}}]


def example(**arguments):
    return [{"name": "find_train", "arguments": arguments}]


def schema_of(to):
    return [{**TOOL, "parameters": {"type": "object", "properties": {"to": to, "seats": {"type": "integer"}}}}]


CASES = {
    "no examples": ({"examples": None}, "examples: is missing; give at least one production output"),
    "empty examples": ({"examples": []}, "examples: is empty; write at least one"),
    "unknown key": ({"exmples": []}, "exmples: unknown key, did you mean examples?"),
    "no tools": ({"tools": None}, "kind: a grammar of kind tool_call needs tools"),
    "schema of a tool call": ({"schema": {}}, "schema: fits kind extraction only"),
    "extraction without schema": (
        {"kind": "extraction", "wire_format": "json", "tools": None},
        "kind: a grammar of kind extraction needs a schema",
    ),
    "extraction with tools": (
        {"kind": "extraction", "wire_format": "json", "schema": {}},
        "tools: fits kind tool_call only",
    ),
    "hermes extraction": (
        {"kind": "extraction", "tools": None, "schema": {}},
        "wire_format: hermes cannot write the kind extraction; write json",
    ),
    "code without a language": (
        {"kind": "code", "tools": None, "wire_format": None, "examples": ["SELECT 1"]},
        "kind: a grammar of kind code needs code",
    ),
    "code with a table that is not there": (
        {
            "kind": "code",
            "tools": None,
            "wire_format": None,
            "code": {"language": "sql", "tables": {"guests": ["name", "city"]}},
            "examples": ["SELECT name FROM guest WHERE city = '<redacted:town>'"],
        },
        "examples[0]: does not fit once it is filled",
    ),
    "text that is none": (
        {"kind": "text", "tools": None, "wire_format": None, "examples": [{"a": 1}]},
        "examples: of kind text are texts",
    ),
    "text with a wire format": (
        {"kind": "text", "tools": None, "examples": ["Dear <redacted:town>."]},
        "wire_format: a grammar of kind text has none; remove it",
    ),
    "no wire format": (
        {"wire_format": None},
        "kind: a grammar of kind tool_call needs a wire_format; write one of hermes",
    ),
    "one name twice": (
        {"tools": [TOOL, OTHER, TOOL]},
        "tools[2].name: 'find_train' is already the name of tools[0]",
    ),
    "strange tool name": ({"tools": [{"name": "find train"}]}, "tools[0].name: 'find train'"),
    "slot called prompt": ({"slots": {"prompt": {"type": "city"}}}, "slots.prompt: is the name of the prompt"),
    "slot of no type": ({"slots": {"town": {"type": "twon"}}}, "slots.town"),
    "wrong schema": (
        {"tools": schema_of({"type": "strng"})},
        "tools[0].parameters.properties.to.type: 'strng' is no type; the types are string, number",
    ),
    "wrong keyword": (
        {"tools": schema_of({"type": "string", "maxLength": "x"})},
        "tools[0].parameters.properties.to.maxLength: is not JSON Schema (draft 2020-12)",
    ),
    "reference outside": (
        {"tools": schema_of({"$ref": "https://example.org/town.json"})},
        "tools[0].parameters.properties.to.$ref: $ref 'https://example.org/town.json' leads out",
    ),
    "reference to nothing": (
        {"tools": schema_of({"$ref": "#/$defs/town"})},
        "tools[0].parameters.properties.to.$ref: $ref '#/$defs/town' names nothing",
    ),
    "endless schema": (
        {"tools": tool_of(properties={"to": {"$ref": "#"}}, required=["to"])},
        "tools[0].parameters: contains itself without end through $ref '#'; make it optional there",
    ),
    "no object": (
        {"tools": [{**TOOL, "parameters": {"type": "string"}}]},
        "tools[0].parameters: must describe an object",
    ),
    "not enforceable": (
        {
            "tools": tool_of(properties={"to": {"type": "number", "multipleOf": 0.123456789123}}),
            "examples": example(to="<redacted>", seats="<redacted>"),
        },
        "tools[0].parameters.properties.to.multipleOf: cannot be enforced while decoding (Value for",
    ),
    "required but closed": (
        {"tools": tool_of(required=["from"], additionalProperties=False), "examples": example(to="a")},
        "it is filled: find_train.arguments has no from, which is required",
    ),
    "sorts what cannot be": (
        {"system": "{{ [1, 'a']|sort }}"},
        "it compares or sorts values of different kinds",
    ),
    "template is none": ({"system": "{{ town"}, "system: the template does not work"),
    "unknown variable": (
        {"system": "{{ twon }}"},
        "system: 'twon' is not a slot of this grammar; did you mean town?",
    ),
    "reaching out": (
        {"user": "{{ prompt.__class__.__mro__ }}"},
        "user: the template does not work: there is no '__class__' in it",
    ),
    "a text times a million": (
        {"system": "{{ 'a' * (10 ** 9) }}"},
        "system: the template does not work: * is for numbers",
    ),
    "loops without end": (
        {
            "system": "{% for a in range(99) %}{% for b in range(99) %}{% for c in range(99) %}{% endfor %}"
            "{% endfor %}{% endfor %}"
        },
        "system: the template does not work: loops stand at most 2 deep",
    ),
    "a long range": (
        {"system": "{% for a in range(9999) %}x{% endfor %}"},
        "system: the template does not work: a range has at most 100 items",
    ),
    "a macro": (
        {"system": "{% macro m(n) %}{{ m(n - 1) }}{{ m(n - 1) }}{% endmacro %}{{ m(60) }}"},
        "system: the template does not work: macros, blocks, ~ and other templates are not possible",
    ),
    "a template of many brackets": (
        {"system": "{{ " + "(" * 900 + "1" + ")" * 900 + " }}"},
        "system: the template does not work",
    ),
    "loop over the prompt": (
        {"user": "{% for one in prompt %}{{ one }}{% endfor %}"},
        "user: the template does not work: a loop goes over a range or a list",
    ),
    "a text twice as long at each step": (
        {"system": "{% set a = 'aa' %}" + "{% set a = a ~ a %}" * 30},
        "system: the template does not work: macros, blocks, ~ and other templates are not possible here",
    ),
    "the same in a block": (
        {"system": "{% set a %}x{% endset %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 30},
        "system: the template does not work: macros, blocks, ~ and other templates are not possible here",
    ),
    "a loop over very much that stands there": (
        {"system": "{% for x in [" + "0," * 5000 + "] %}{% endfor %}"},
        "system: the template does not work: a loop goes over a range or a list",
    ),
    "JSON with a wide margin": (
        {"system": "{{ [[1]]|tojson(indent=900000000) }}"},
        "system: the template does not work: tojson indents by 8 spaces at most",
    ),
    "the same with a sum": (
        {"system": "{% set a = 'aa' + 'aa' %}{{ a }}"},
        "system: the template does not work: + is for numbers",
    ),
    "filters that double": (
        {"system": "{% if prompt" + "|tojson" * 27 + " %}x{% endif %}"},
        "system: the template does not work: its filters make too much text",
    ),
    "many loops one after the other": (
        {"system": "{% for a in range(100) %}{% for b in range(100) %}{{ a }}{% endfor %}{% endfor %}" * 20},
        "system: the template does not work: it takes over 20,000 steps",
    ),
    "very many tags": (
        {"system": "{{ 1 }}" * 50_000},
        "system: the template does not work: it has over 100,000 characters, or over 2,000 tags",
    ),
    "a range that is not called": (
        {"system": "{{ range }}"},
        "system: the template does not work: range is called, as in range(3)",
    ),
    "one value of many that divides by zero": (
        {"system": "{{ 10 / (n - 37) }}", "slots": {"n": {"type": "integer", "min": 0, "max": 40}}},
        "system: the template does not work: ",
    ),
    "a method": (
        {"system": "{{ 'a'.ljust(50000000) }}"},
        "system: the template does not work: there is no 'ljust' in it",
    ),
    "a format with a width": (
        {"system": "{{ '{:>900000000}'.format(1)|length }}{{ 'a'['format'] }}"},
        "system: the template does not work: there is no 'format' in it",
    ),
    "a list twice as long at each step": (
        {"system": "{% set a = [1] %}" + "{% set a = [a, a] %}" * 40 + "{{ a|string|length }}"},
        "system: the template does not work: a list or a mapping cannot be given a name",
    ),
    "a length beside a pattern": (
        {
            "tools": schema_of({"type": "string", "pattern": "^[a-z]{3}$"}),
            "examples": example(to="<redacted>"),
            "shape": {"length": {"find_train.to": [50, 80]}},
        },
        "shape.length.find_train.to: the schema of find_train.to has a pattern, which sets it; remove it here",
    ),
    "no prompt shown": ({"user": "Go on."}, "user: no template shows the public prompt; write {{ prompt }}"),
    "misspelt keyword": (
        {"tools": schema_of({"type": "string", "maxLenght": 3})},
        "tools[0].parameters.properties.to.maxLenght: is no keyword of JSON Schema; did you mean maxLength?",
    ),
    "template that fails": ({"user": "{{ prompt + 1 }}"}, "user: the template does not work"),
    "example without a call": ({"examples": ["find_train()"]}, "examples[0]: does not fit once it is filled"),
    "example of another form": ({"examples": [{"find_train": {}}]}, "examples[0]: must be a call {name"),
    "example with more": (
        {"examples": [{**EXAMPLE, "id": 3}]},
        "examples[0]: must be a call {name, arguments}, a list of calls, a text, or {text, calls}",
    ),
    "unknown tool": (
        {"examples": [EXAMPLE, {**EXAMPLE, "name": "find_trian"}]},
        "examples[1].name: there is no tool 'find_trian'; did you mean find_train?",
    ),
    "unknown slot": (
        {"examples": example(to="<redacted:twon>", seats=1)},
        "examples[0]: <redacted:twon> names no slot; did you mean town?",
    ),
    "example of wrong type": (
        {"examples": example(to="<redacted:town>", seats="two")},
        "it is filled: whatever is tried for find_train.arguments.seats breaks the keyword type",
    ),
    "example lacks a part": (
        {"examples": example(to="<redacted:town>")},
        "it is filled: find_train.arguments has no seats, which is required",
    ),
    "pattern nobody can fill": (
        {"tools": schema_of({"type": "string", "pattern": r"^a(?!b)b$"}), "examples": example(to="<redacted>")},
        "examples[0]: does not fit once it is filled: whatever is tried for find_train.arguments.to breaks the "
        "keyword pattern",
    ),
    "list without end": (
        {
            "tools": schema_of({"type": "array", "items": {}, "minItems": 1_000_000_000}),
            "examples": example(to="<redacted>"),
        },
        "examples[0]: does not fit once it is filled: whatever is tried for find_train.arguments.to breaks the "
        "keyword minItems",
    ),
    "misspelt slot type": (
        {"slots": {"town": {"type": "citty"}}},
        "slots.town: its type is not possible here; did you mean city?",
    ),
    "words in json": (
        {"wire_format": "json", "shape": {"prose": 0.5}},
        "shape: json has no place for words; remove prose and the calls of 0",
    ),
    "a turn that calls what is not there": (
        {"turns": [{"user": "hello"}, {"assistant": {"name": "find_tram", "arguments": {}}}, {"tool": "3"}]},
        "turns[1].assistant.name: there is no tool 'find_tram'; did you mean find_train?",
    ),
    "a turn without a required field": (
        {"turns": [{"user": "hello"}, {"assistant": {"name": "find_train", "arguments": {}}}, {"tool": "3"}]},
        "turns[1].assistant: does not fit once it is filled: find_train.arguments has no",
    ),
    "days behind the last year": (
        {
            "slots": {
                "town": {"type": "city"},
                "a": {"type": "date", "to": "9999-12-30"},
                "b": {"type": "date", "after": "a", "days": [1, 9]},
            }
        },
        "slots.b: may lie behind the year 9999",
    ),
    "a locale without phones": (
        {"slots": {"town": {"type": "phone", "locale": "fil_PH"}}},
        "slots.town: no phone can be invented for fil_PH; write another locale",
    ),
    "tool before a call": (
        {"turns": [{"user": "hello"}, {"tool": "3"}]},
        "turns[1]: a tool's answer cannot come after a user's turn; there comes an assistant's turn",
    ),
    "a turn that says nothing": (
        {"turns": [{"user": "hello"}, {"assistant": []}]},
        "turns[1]: the assistant says nothing; write a text, or at least one call",
    ),
    "turn of two": (
        {"turns": [{"user": "hello", "tool": "3"}]},
        "turns[0]: a turn is one of user, assistant, target and tool",
    ),
    "the target calls no tool": (
        {"turns": [{"user": "{{ prompt }}"}, {"target": ["find_train"]}], "user": "And?"},
        "turns[1].target: names tools, but no tool's answer follows",
    ),
    "the target calls an unknown tool": (
        {"turns": [{"user": "{{ prompt }}"}, {"target": ["find_trein"]}, {"tool": "3"}], "user": None},
        "turns[1].target: find_trein is no tool of this grammar; did you mean find_train?",
    ),
    "the target names nothing": (
        {"turns": [{"user": "{{ prompt }}"}, {"target": []}], "user": "And?"},
        "turns[1]: target names no tool",
    ),
    "the target speaks twice": (
        {"turns": [{"user": "{{ prompt }}"}, {"target": "any"}, {"target": "any"}], "user": "And?"},
        "turns[2]: an assistant's turn cannot come after an assistant's turn",
    ),
    "nothing to answer": (
        {"turns": [{"user": "{{ prompt }}"}, {"assistant": "Yes."}], "user": None},
        "user: is null, so the last of turns must be a tool's answer",
    ),
    "unknown slot in a turn": (
        {"turns": [{"user": "hello"}, {"assistant": "In <redacted:twon>."}]},
        "turns[1]: <redacted:twon> names no slot; did you mean town?",
    ),
    "days in a circle": (
        {
            "slots": {
                "town": {"type": "city"},
                "a": {"type": "date", "after": "b"},
                "b": {"type": "date", "after": "a"},
            }
        },
        "slots.a.after: the days lie behind each other in a circle",
    ),
    "day behind no day": (
        {"slots": {"town": {"type": "city"}, "a": {"type": "date", "after": "town"}}},
        "slots.a.after: 'town' is no other date slot",
    ),
    "statistics of a field that is not there": (
        {"shape": {"present": {"find_train.fast": 0.5}}},
        "shape.present.find_train.fast: there is no field find_train.fast",
    ),
    "slot out of range": (
        {
            "slots": {"town": {"type": "integer", "min": 50}},
            "examples": example(to="a", seats="<redacted:town>"),
        },
        "it is filled: whatever is tried for find_train.arguments.seats breaks the keyword maximum",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_mistake_is_told_with_file_and_line(load, tmp_path, case):
    changes, words = CASES[case]
    with pytest.raises(UserError) as told:
        load(**changes)
    lines = str(told.value).splitlines()
    assert any(words in line for line in lines), lines
    assert all(re.match(rf"{re.escape(str(tmp_path))}/g\.yaml:\d+: ", line) for line in lines)


def test_the_line_is_that_of_the_mistake(load, tmp_path):
    tool = copy.deepcopy(TOOL)
    tool["parameters"]["properties"]["seats"]["type"] = "integr"
    with pytest.raises(UserError) as told:
        load(tools=[tool])
    number = int(re.search(r"g\.yaml:(\d+):", str(told.value))[1])
    assert "integr" in (tmp_path / "g.yaml").read_text().splitlines()[number - 1]


def test_all_mistakes_of_a_kind_are_told_at_once(load):
    with pytest.raises(UserError) as told:
        load(system="{{ one }} {{ two }}", user="{{ three }} {{ prompt }}")
    assert len(str(told.value).splitlines()) == 3


def test_values_of_an_example_are_not_repeated(load):
    with pytest.raises(UserError) as told:
        load(examples=example(to="Geheimstadt", seats="siebzehn"))
    assert "Geheim" not in str(told.value)
    assert "siebzehn" not in str(told.value)


def test_notes_of_other_tools_are_no_misspelt_keywords(load):
    notes = {"type": "string", "example": "a", "nullable": True, "x-order": 1}
    load(tools=schema_of(notes))


def test_the_prompt_may_stand_in_the_system_prompt(load):
    load(system="Answer this: {{ prompt }}", user="Go on.")


def test_a_grammar_that_is_right_loads(load):
    grammar = load(tools=[TOOL, OTHER], system="In {{ town }}{% for i in range(2) %}.{% endfor %}")
    assert [tool.name for tool in grammar.tools] == ["find_train", "find_bus"]
    assert (grammar.user, grammar.match.any, grammar.version) == ("{{ prompt }}", False, 1)


def test_fingerprint_follows_content_and_order(load):
    one = load().fingerprint
    assert one == load().fingerprint
    tool = copy.deepcopy(TOOL)
    tool["parameters"]["properties"] = dict(reversed(tool["parameters"]["properties"].items()))
    assert len({one, load(tools=[tool]).fingerprint, load(system="Hi").fingerprint}) == 3


def write(folder: Path, name: str, **changes):
    grammar = {"name": name, "kind": "tool_call", "wire_format": "hermes", "tools": [TOOL]}
    grammar |= {"slots": {"town": {"type": "city"}}, "examples": [EXAMPLE], **changes}
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(grammar))


def test_patterns_name_files_once_and_in_order(tmp_path):
    for name in ("b", "a"):
        write(tmp_path / "grammars", name)
    assert [one.name for one in load_grammars(tmp_path, ["grammars/*.yaml"])] == ["a", "b"]
    assert [one.name for one in load_grammars(tmp_path, ["grammars/b.yaml", "grammars/*.yaml"])] == ["b", "a"]
    (tmp_path / "link").symlink_to(tmp_path)  # an absolute path through it is not below the project's own
    for absolute in (tmp_path / "grammars" / "a.yaml", tmp_path / "link" / "grammars" / "a.yaml"):
        assert [one.name for one in load_grammars(tmp_path, [str(absolute)])] == ["a"]


def test_mistakes_of_all_files_are_told_at_once(tmp_path):
    for name in ("a", "b", "c"):
        write(tmp_path, name, wire_format="hermes" if name == "b" else "hermse")
    with pytest.raises(UserError) as told:
        load_grammars(tmp_path, ["*.yaml"])
    assert [line.split(":")[0] for line in str(told.value).splitlines()] == [
        str(tmp_path / "a.yaml"),
        str(tmp_path / "c.yaml"),
    ]


@pytest.mark.parametrize("pattern", ["", ".", "**x"])
def test_a_pattern_that_finds_nothing_is_told(tmp_path, pattern):
    with pytest.raises(UserError, match="no file matches"):
        load_grammars(tmp_path, [pattern])


def test_missing_files_same_names_and_paths_outside_are_told(tmp_path):
    project = tmp_path / "project"
    write(project, "a")
    with pytest.raises(UserError, match=r"no file matches 'nothing/\*\.yaml'"):
        load_grammars(project, ["nothing/*.yaml"])
    (project / "z.yaml").write_text((project / "a.yaml").read_text())
    with pytest.raises(UserError, match=r"z\.yaml: name: 'a' is already the name of .*a\.yaml"):
        load_grammars(project, ["*.yaml"])
    write(tmp_path / "elsewhere", "b")
    with pytest.raises(UserError, match="leads out of the project"):
        load_grammars(project, ["../elsewhere/b.yaml"])
    (project / "link.yaml").symlink_to(tmp_path / "elsewhere" / "b.yaml")
    with pytest.raises(UserError, match="leads out of the project"):
        load_grammars(project, ["link.yaml"])


OPTIONAL = {f"p{number}": {"type": "string"} for number in range(401)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {
                "tools": schema_of({"type": "string", "maxLength": 5}),
                "examples": example(to="<redacted:s>"),
                "slots": {"s": {"type": "choice", "values": [*"abcdefghij" * 4, "too long a value"]}},
            },
            "examples[0]: does not fit with one of the values of its slots: whatever is tried for",
        ),
        (
            {
                "tools": schema_of({"type": "string", "maxLength": 5}),
                "examples": example(to="<redacted:s.a>"),
                "slots": {"s": {"type": "record", "rows": [*[{"a": "x"}] * 40, {"a": "too long a value"}]}},
            },
            "examples[0]: does not fit with one of the values of its slots: whatever is tried for",
        ),
        (
            {
                "tools": tool_of(properties={"seats": {"not": {"const": 37}, "type": "integer"}}),
                "examples": example(seats="<redacted:n>"),
                "slots": {"n": {"type": "integer", "min": 0, "max": 100}},
            },
            "examples[0]: does not fit with one of the values of its slots: whatever is tried for",
        ),
        (
            {"tools": tool_of(properties=OPTIONAL), "examples": example(p1="<redacted>"), "slots": {}},
            "tools[0].parameters.properties: has over 400 properties that are not required",
        ),
        (
            {
                "tools": tool_of(
                    properties={
                        "seats": {"type": "integer"},
                        "to": {"type": "integer", "minimum": 5, "maximum": 3},
                    },
                    required=["seats"],
                ),
                "examples": example(seats=1),
                "shape": {"present": {"find_train.to": 0.01}},
                "slots": {},
            },
            "shape: asks for what the schema does not allow",
        ),
    ],
    ids=["a value of many", "a row of many", "a number of many", "optional properties", "a rare field"],
)
def test_what_would_go_wrong_for_few_requests_is_found(load, change, message):
    with pytest.raises(UserError) as told:
        load(**change)
    assert message in str(told.value)
