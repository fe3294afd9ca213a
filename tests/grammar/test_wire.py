import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthspec.grammar.wire import hermes
from synthspec.grammar.wire import json as bare
from synthspec.grammar.wire.jsontext import scan

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


@given(values)
def test_bare_json_reads_back_what_it_wrote(value):
    assert bare.parse(bare.write(value)) == value


@given(st.lists(calls, min_size=1, max_size=3))
def test_hermes_reads_back_the_calls_that_it_wrote(calls):
    assert hermes.parse(hermes.write(calls)) == calls


@given(calls)
def test_one_call_needs_no_list(call):
    text = hermes.write(call)
    assert text.startswith("<tool_call>\n{")
    assert text.endswith("}\n</tool_call>")
    assert hermes.parse(text) == [call]


@given(values)
def test_texts_are_utf8_and_spaced_as_json_dumps_does(value):
    text = bare.write(value)
    text.encode()
    assert json.loads(text) == json.loads(json.dumps(value))
    assert bare.write({"a": [1, "é"], "b": None}) == '{"a": [1, "é"], "b": null}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no <tool_call>"),
        ("hello", "no <tool_call>"),
        ('<tool_call>\n{"name": "a", "arguments": {}}', "no </tool_call>"),
        ('<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call> and so', "no <tool_call>"),
        ('Sure: <tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>', "no <tool_call>"),
        ('<tool_call>\n{"name": "a"}\n</tool_call>', "name and arguments"),
        ('<tool_call>\n{"name": "a", "arguments": {}, "id": 1}\n</tool_call>', "name and arguments"),
        ('<tool_call>\n{"name": "a", "arguments": "{}"}\n</tool_call>', "an object"),
        ('<tool_call>\n["a"]\n</tool_call>', "name and arguments"),
        ('<tool_call>\n{"name": "a", "arguments": {"x": 1, "x": 2}}\n</tool_call>', "same key twice"),
    ],
)
def test_what_is_not_hermes_is_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        hermes.parse(text)


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
        bare.parse(text)


def leaves(value):
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [] if value == "" else [value]


@given(values)
@settings(max_examples=300)
def test_scan_finds_exactly_the_scalars(value):
    text = bare.write(value).encode()
    expected = [bare.write(leaf).removeprefix('"').removesuffix('"') for leaf in leaves(value)]
    # A string that itself begins or ends in a quote has it escaped, so nothing more is cut off.
    expected = [bare.write(leaf)[1:-1] if isinstance(leaf, str) else bare.write(leaf) for leaf in leaves(value)]
    assert [text[start:end].decode() for start, end in scan(text, 0)] == expected


def test_scan_leaves_out_the_skipped_keys_of_the_outermost_object_only():
    text = b'{"name": "t", "arguments": {"name": "Ann", "n": [1, true]}}'
    found = scan(text, 0, frozenset({"name"}))
    assert [text[start:end] for start, end in found] == [b"Ann", b"1", b"true"]


@given(calls, st.data())
def test_scan_of_a_text_that_is_cut_off_finds_a_part_of_the_same(call, data):
    text = bare.write(call).encode()
    cut = data.draw(st.integers(0, len(text)))
    whole = {place for start, end in scan(text, 0) for place in range(start, end)}
    part = {place for start, end in scan(text[:cut], 0) for place in range(start, end)}
    # A key that is cut off before its colon cannot be told from a string by its quotes alone.
    assert part == {place for place in whole if place < cut}
