import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synthspec.grammar.wire import FORMATS, answer_in
from synthspec.grammar.wire.answer import Answer, Call, Calls
from synthspec.grammar.wire.jsontext import dumps, end_of, loads, scan
from synthspec.grammar.wire.reader import Stream, read
from tests.grammar.wire_cases import TAGS, TOOLS, answers, in_pieces, streamed
from tests.grammar.wire_cases import texts as strings

every_format = pytest.mark.parametrize("name", FORMATS)

texts = st.text(st.characters(), max_size=12) | st.sampled_from(
    ['"', "\\", "\\\\", "\n</tool_call>", "<tool_call>\n", "é😀", "\ud800", "\x00\x7f\u2028", "{[,:]}", ""]
)
scalars = texts | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)
calls = st.fixed_dictionaries(
    {"name": st.text(min_size=1, max_size=8), "arguments": st.dictionaries(texts, values, max_size=4)}
)


def same(one, other):
    """Equal, and True is not 1 and 1 is not 1.0."""
    return one.text == other.text and repr(one.calls) == repr(other.calls)


def write(name, answer):
    """An answer's text; what a format has no way to write is another test's business."""
    try:
        return FORMATS[name].write(answer, TOOLS)
    except ValueError:
        assume(False)


@every_format
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_what_a_format_writes_it_reads_back(name, data):
    answer = data.draw(answers(strings(TAGS), None if name == "json" else strings()))
    text = write(name, answer)
    assert same(answer_in(name, text, TOOLS), answer)


@every_format
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_stream_in_any_pieces_gives_what_the_whole_gives(name, data):
    answer = data.draw(answers(strings(TAGS), None if name == "json" else strings()))
    text = write(name, answer)
    cuts = data.draw(st.sets(st.integers(0, len(text)), max_size=12) | st.just(set(range(len(text)))))
    assert same(streamed(FORMATS[name], in_pieces(text, cuts)), answer)


@every_format
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_every_value_is_found_where_it_stands(name, data):
    words = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8).filter(
        lambda w: w.lower() != "null"
    )
    arguments = {"to": data.draw(words), "seats": data.draw(st.integers()), "via": data.draw(st.lists(words))}
    text = FORMATS[name].write(Answer(calls=(Call("find_train", arguments),)), TOOLS)
    expected = [arguments["to"], str(arguments["seats"]), *arguments["via"]]
    assert [text[start:end] for start, end in read(FORMATS[name], text, TOOLS).values] == expected
    cut = data.draw(st.integers(0, len(text)))
    whole = {place for start, end in read(FORMATS[name], text, TOOLS).values for place in range(start, end)}
    part = {
        place for start, end in read(FORMATS[name], text[:cut], TOOLS).values for place in range(start, end)
    }
    # A closing tag that has begun may still belong to a string without quotes.
    assert part >= {place for place in whole if place < cut}
    if name not in ("qwen_xml", "glm"):
        assert part == {place for place in whole if place < cut}


@every_format
def test_a_cut_off_call_is_open_where_it_begins(name):
    before = "" if name == "json" else "Sure, a moment."
    answer = Answer(before, (Call("find_train", {"to": "Bonn"}), Call("find_train", {"to": "Köln"})))
    text = FORMATS[name].write(answer, TOOLS)
    assert read(FORMATS[name], text, TOOLS).open is None
    cut = read(FORMATS[name], text[: text.index("Köln") + 2], TOOLS)
    assert not cut.wrong
    assert cut.answer == Answer(before, answer.calls[:1])
    assert FORMATS[name].OPEN.match(text, cut.open)
    with pytest.raises(ValueError, match="is not finished"):
        answer_in(name, text[: text.index("Köln") + 2], TOOLS)


@every_format
def test_a_stream_gives_a_call_as_soon_as_it_is_finished(name):
    answer = Answer(calls=(Call("find_train", {"to": "Bonn"}), Call("find_train", {"to": "Köln"})))
    text = FORMATS[name].write(answer, TOOLS)
    stream = Stream(FORMATS[name], TOOLS)
    assert [one for one in stream.feed(text[: text.index("Köln")]) if isinstance(one, Call)] == [
        answer.calls[0]
    ]
    with pytest.raises(ValueError, match="is not finished"):
        stream.end()


@every_format
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_damaged_texts_are_read_or_refused_in_words_without_their_values(name, data):
    answer = Answer(
        calls=(Call("find_train", {"to": "Geheimrat", "seats": 2, "via": ["Geheim"]}), Call("find_bus", {}))
    )
    text = FORMATS[name].write(answer, TOOLS)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    damaged = text[:start] + data.draw(strings(TAGS)) + text[end:]
    reading = read(FORMATS[name], damaged, TOOLS)
    assert "eheim" not in reading.wrong
    places = [place for span in reading.values for place in range(*span)]
    assert places == sorted(set(places))
    assert all(0 <= place < len(damaged) for place in places)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", 'Well.\n<tool_call>{"name":"find_train","arguments":{"to":"A"}}</tool_call>\n'),
        ("hermes", 'Well. <tool_call>\n{"arguments": {"to": "A"}, "name": "find_train"}\n</tool_call>'),
        (
            "qwen_xml",
            "Well.<tool_call>\n<function=find_train><parameter=to>A</parameter></function></tool_call>",
        ),
        ("llama3_json", 'Well.<|python_tag|>{"name": "find_train", "arguments": {"to": "A"}}'),
        ("pythonic", "Well. <|python_start|>[find_train(to='A')]<|python_end|>"),
        ("pythonic", "Well. [ find_train( to = 'A' ) ]"),
        ("mistral", 'Well.[TOOL_CALLS][{"name": "find_train", "arguments": {"to": "A"}, "id": "123456789"}]'),
        ("mistral", 'Well.[TOOL_CALLS]find_train[ARGS]{"to": "A"}'),
        (
            "deepseek_v3",
            "Well.<｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>find_train\n```json\n"
            '{\n  "to": "A"\n}\n```<｜tool▁call▁end｜>\n<｜tool▁calls▁end｜>',
        ),
        (
            "kimi_k2",
            "Well.<|tool_calls_section_begin|>\n<|tool_call_begin|> functions.find_train:17 "
            '<|tool_call_argument_begin|> {"to": "A"} <|tool_call_end|>\n<|tool_calls_section_end|>',
        ),
        ("glm", "Well.<tool_call>find_train<arg_key>to</arg_key><arg_value>A</arg_value></tool_call>"),
        (
            "harmony",
            "<|channel|>analysis<|message|>They want A.<|end|><|start|>assistant<|channel|>commentary"
            "<|message|>Well.<|end|><|start|>assistant to=functions.find_train<|channel|>commentary json"
            '<|message|>{"to": "A"}<|call|>',
        ),
        (
            "harmony",
            "<|start|>assistant<|channel|>commentary<|message|>Well.<|end|><|start|>assistant<|channel|>"
            'commentary to=functions.find_train<|constrain|>json<|message|>{"to":"A"}<|call|>',
        ),
    ],
)
def test_what_templates_render_otherwise_is_read_alike(name, text):
    expected = Answer("Well.", (Call("find_train", {"to": "A"}),))
    assert answer_in(name, text, TOOLS) == expected
    assert streamed(FORMATS[name], list(text)) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("qwen_xml", {"to": "a</parameter>"}, "a tag"),
        ("qwen_xml", {"to": "null"}, "the string null"),
        ("qwen_xml", {"to": 5}, "told from one of another type"),
        ("glm", {"to": "<arg_key>"}, "a tag"),
        ("glm", {"note": "null"}, "told from one of another type"),
        ("glm", {" to": "A"}, "white space"),
        ("pythonic", {"not-a-name": "A"}, "names are Python's"),
        ("pythonic", {"class": "A"}, "names are Python's"),
    ],
)
def test_what_cannot_be_told_apart_is_not_written(name, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        FORMATS[name].write(Answer(calls=(Call("find_train", arguments),)), TOOLS)


@every_format
def test_plain_text_that_looks_like_a_call_is_not_written(name):
    for tag in FORMATS[name].TAGS or ("anything",):
        with pytest.raises(ValueError, match="plain text"):
            FORMATS[name].write(Answer(f"say {tag} twice"), TOOLS)


@given(values)
def test_texts_are_utf8_and_spaced_as_json_dumps_does(value):
    text = dumps(value)
    text.encode()
    assert loads(text) == value
    assert json.loads(text) == json.loads(json.dumps(value))
    assert dumps({"a": [1, "é"], "b": None}) == '{"a": [1, "é"], "b": null}'


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("json", "", "not finished"),
        ("json", "hello", "no JSON object"),
        ("json", '{"name": "a", "arguments": {}} and so', "there is more"),
        ("hermes", '<tool_call>\n{"name": "a", "arguments": {}}', "not finished"),
        ("hermes", '<tool_call>\n{"name": "a", "arguments": {}} and </tool_call>', "no </tool_call>"),
        ("hermes", '<tool_call>\n{"name": "a"}\n</tool_call>', "name and arguments"),
        ("hermes", '<tool_call>\n{"name": "a", "arguments": {}, "id": 1}\n</tool_call>', "name and arguments"),
        ("hermes", '<tool_call>\n{"name": "a", "arguments": "{}"}\n</tool_call>', "an object"),
        ("hermes", '<tool_call>\n["a"]\n</tool_call>', "name and arguments"),
        ("hermes", '<tool_call>\n{"name": "a", "arguments": {"x": 1, "x": 2}}\n</tool_call>', "same key twice"),
        ("qwen_xml", "<tool_call>\n<function=find_train>\nto\n</function>\n</tool_call>", "no <parameter= or"),
        ("qwen_xml", "<tool_call><function=f><parameter=a>1</parameter><parameter=a>1</parameter>", "twice"),
        ("qwen_xml", "<tool_call><function=find_train><parameter=seats>many</parameter>", "no JSON"),
        ("pythonic", "[find_train(to=A)]", "no literal"),
        ("pythonic", "[find_train(to=1, to=1)]", "twice"),
        ("pythonic", "[find_train(to=1e999)]", "too large"),
        ("mistral", '[TOOL_CALLS] [{"name": "a", "arguments": {}} {', "no , or ]"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜>function", "no <｜tool▁call▁begin｜> or"),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>find<|tool_call_argument_begin|>{}",
            "functions.name",
        ),
        ("glm", "<tool_call>f\n<arg_key>a</arg_key>b", "no <arg_value>"),
        ("harmony", "<|channel|>poetry<|message|>Roses.<|end|>", "no channel"),
        ("harmony", " to=functions.a<|channel|>commentary to=functions.b<|message|>{}<|call|>", "no channel"),
        (
            "harmony",
            '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|end|>',
            "no <|call|>",
        ),
    ],
)
def test_what_is_not_the_format_is_refused_with_the_reason(name, text, reason):
    with pytest.raises(ValueError, match=reason.replace("|", r"\|")):
        answer_in(name, text, TOOLS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1', "no JSON"),
        ('{"a": 1} {', "more after"),
        ("NaN", "NaN is not JSON"),
        ("-Infinity", "Infinity is not JSON"),
        ("1e999", "too large"),
        ("[" * 100_000, "nested too deeply|no JSON"),
        ('{"a": {"b": 1, "b": 1}}', "same key twice"),
    ],
)
def test_what_is_not_json_is_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        loads(text)


def leaves(value):
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [] if value == "" else [value]


@given(values)
@settings(max_examples=300)
def test_scan_finds_exactly_the_scalars(value):
    text = dumps(value)
    # A string that itself begins or ends in a quote has it escaped, so nothing more is cut off.
    expected = [dumps(leaf)[1:-1] if isinstance(leaf, str) else dumps(leaf) for leaf in leaves(value)]
    assert [text[start:end] for start, end in scan(text, 0)] == expected


def test_scan_leaves_out_the_skipped_keys_of_the_outermost_object_only():
    text = '{"name": "t", "arguments": {"name": "Ann", "n": [1, true]}}'
    found = scan(text, 0, frozenset({"name"}))
    assert [text[start:end] for start, end in found] == ["Ann", "1", "true"]


@given(calls, st.data())
def test_scan_of_a_text_that_is_cut_off_finds_a_part_of_the_same(call, data):
    text = dumps(call)
    cut = data.draw(st.integers(0, len(text)))
    whole = {place for start, end in scan(text, 0) for place in range(start, end)}
    part = {place for start, end in scan(text[:cut], 0) for place in range(start, end)}
    # A key that is cut off before its colon cannot be told from a string by its quotes alone.
    assert part == {place for place in whole if place < cut}


@given(calls, st.text(max_size=5))
@settings(max_examples=25)
def test_an_object_ends_with_its_last_bracket(call, more):
    text = dumps(call)
    assert end_of(text + more, 0) == len(text)
    assert all(end_of(text[:cut], 0) is None for cut in range(len(text)))


@pytest.mark.parametrize("wire_format", ["qwen_xml", "glm"])
def test_a_listed_text_that_would_be_read_as_something_else_cannot_be_written(wire_format):
    schema = {
        "type": "object",
        "properties": {"k": {"type": "string", "enum": ["</arg_value></parameter>", "x"]}},
    }
    schema = {**schema, "required": ["k"]}
    part = FORMATS[wire_format].constraint({"f": schema}, Calls(1, 1, "none")).part
    assert "</arg_value></parameter>" not in str(part)
    assert "'x'" in str(part)


@pytest.mark.parametrize("wire_format", ["qwen_xml", "glm"])
@pytest.mark.parametrize("arguments", [{"k": "a", "v": 5}, {"k": "b", "v": "abc"}])
def test_a_property_of_two_types_in_two_branches_is_read_as_either(wire_format, arguments):
    branches = [
        {"properties": {"k": {"const": "a"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
        {"properties": {"k": {"const": "b"}, "v": {"type": "string"}}, "required": ["k", "v"]},
    ]
    tools = {"f": {"type": "object", "anyOf": branches}}
    answer = Answer(calls=(Call("f", arguments),))
    text = FORMATS[wire_format].write(answer, tools)
    assert answer_in(wire_format, text, tools).calls[0].arguments == arguments


@pytest.mark.parametrize("wire_format", ["qwen_xml", "glm"])
def test_a_tag_inside_of_an_object_is_refused_where_a_text_may_stand_too(wire_format):
    tools = {"f": {"type": "object", "properties": {"v": {"anyOf": [{"type": "string"}, {"type": "object"}]}}}}
    value = {"": "</arg_value></parameter></tool_call>"}
    with pytest.raises(ValueError, match="cannot hold a tag"):
        FORMATS[wire_format].write(Answer(calls=(Call("f", {"v": value}),)), tools)
