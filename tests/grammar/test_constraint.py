import copy
import json
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from synthspec.errors import UserError
from synthspec.grammar import wire
from synthspec.grammar.constraint import (
    Constraint,
    Ebnf,
    Free,
    Json,
    Regex,
    Repeat,
    Row,
    Text,
    TokenConstraints,
    choice,
    problem,
    repeat,
    row,
)
from synthspec.grammar.engines import _spaced_as_written, structural_tag, unsupported
from synthspec.grammar.schemas import bounded
from synthspec.grammar.wire.answer import Answer, Call, Calls
from synthspec.grammar.wire.jsontext import dumps
from tests.grammar.conftest import OTHER, TOOL

END = 2  # <|im_end|>


@pytest.fixture(scope="module")
def constraints(tokenizer):
    return TokenConstraints(tokenizer)


def accepts(constraints, tokenizer, constraint, text):
    """Whether the constraint takes a text whole and lets it end there."""
    return takes(constraints, constraint, tokenizer.encode(text))


def takes(constraints, constraint, ids):
    token = constraints.compile(constraint.to_json())
    for one in ids:
        if not token.allows(one):
            return False
        token.accept(one)
    return token.allows(END)


def hermes(**arguments):
    return wire.hermes.write(Answer(calls=(Call("find_train", arguments),)), {})


def allowed(token, words=1536):
    bitmask = torch.full((2, words), -1, dtype=torch.int32)
    token.fill(bitmask, 1)
    assert (bitmask[0] == -1).all()
    bits = (bitmask[1][:, None] >> torch.arange(32, dtype=torch.int32)) & 1
    return set(bits.flatten().nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('{"name": "find_train", "arguments": {"to": "Köln \\"Süd\\" 😀", "seats": 2}}', True),
        ('{"name": "find_train", "arguments": {"to": "A", "seats": 2, "class": "first", "via": ["B"]}}', True),
        ('{"name": "find_bus", "arguments": {"to": "A"}}', True),
        ('{"name":"find_bus","arguments":{"to":"A"}}', False),  # other spaces
        ('{"name": "find_bus",  "arguments": {"to": "A"}}', False),
        ('{"arguments": {"to": "A"}, "name": "find_bus"}', False),  # another order
        ('{"name": "find_train", "arguments": {"seats": 2, "to": "A"}}', False),
        ('{"name": "find_train", "arguments": {"to": "A"}}', False),  # seats are required
        ('{"name": "find_train", "arguments": {"to": "A", "seats": 10}}', False),
        ('{"name": "find_train", "arguments": {"to": "A", "seats": 2, "class": "third"}}', False),
        ('{"name": "find_train", "arguments": {"to": "A", "seats": 2, "pets": 1}}', False),
        ('{"name": "find_tram", "arguments": {"to": "A"}}', False),
        ('{"name": "find_bus", "arguments": {"to": "' + "a" * 60 + '"}}', True),
        ('{"name": "find_bus", "arguments": {"to": "' + "a" * 61 + '"}}', False),
    ],
)
def test_what_a_call_may_be(load, constraints, tokenizer, text, taken):
    constraint = load(tools=[TOOL, OTHER]).constraint
    assert accepts(constraints, tokenizer, constraint, f"<tool_call>\n{text}\n</tool_call>") is taken
    assert not accepts(constraints, tokenizer, constraint, text)
    bare = load(tools=[TOOL, OTHER], wire_format="json").constraint
    assert accepts(constraints, tokenizer, bare, text) is taken


def test_lists_end(load, constraints, tokenizer):
    def text(n):
        return hermes(to="A", seats=1, via=["B"] * n)

    constraint = load().constraint
    assert accepts(constraints, tokenizer, constraint, text(5))
    assert not accepts(constraints, tokenizer, constraint, text(6))


# SmolLM2's vocabulary lacks the bytes that characters behind 3FFFF begin with.
printable = st.text(st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0x3FFFF), max_size=20)


@given(printable, st.integers(1, 9), st.lists(printable, max_size=5))
def test_what_a_format_writes_its_constraint_takes(constraints, tokenizer, to, seats, via):
    schema = bounded(TOOL["parameters"])
    text = dumps({"to": to, "seats": seats, "via": via})
    assert accepts(constraints, tokenizer, Constraint(Json(schema)), text)


def test_json_of_a_constraint_keeps_everything_and_its_order():
    properties = {"z": {"type": "integer"}, "a": {"type": "string"}}
    schema = {"type": "object", "properties": properties}
    parts = (
        Text("<b>\né"),
        Json(schema),
        Free(("<a>", "<b>"), 1, 9, "x+"),
        Repeat(choice([Regex("[0-9]"), Ebnf('root ::= "a"')]), 0, None, ", "),
        Row((Text("a"), Free(()))),
    )
    constraint = Constraint(Row(parts), "glm", {"t": schema})
    again = Constraint.from_json(constraint.to_json())
    assert again == constraint
    assert list(again.part.parts[1].schema["properties"]) == ["z", "a"]


def test_a_bitmask_holds_exactly_what_is_allowed(load, constraints, tokenizer):
    token = constraints.compile(load().constraint.to_json())
    ids = tokenizer.encode(
        '<tool_call>\n{"name": "find_train", "arguments": {"to": "A", "seats": 2}}\n</tool_call>'
    )
    for one in ids:
        can = allowed(token)
        assert one in can
        for other in (END, 16, 28, ids[0], *sorted(can)[:3]):
            assert token.allows(other) == (other in can)
        token.accept(one)
    assert allowed(token) == {END}


def test_columns_behind_the_tokenizer_are_never_allowed(load, constraints):
    token = constraints.compile(load().constraint.to_json())
    assert allowed(token, words=1540) == allowed(token)


def test_the_end_comes_once_and_only_where_it_may(load, constraints, tokenizer):
    token = constraints.compile(load().constraint.to_json())
    assert not token.allows(END)
    with pytest.raises(ValueError, match="does not end"):
        token.accept(END)
    for one in tokenizer.encode(hermes(to="A", seats=2)):
        token.accept(one)
    assert not token.finished
    token.accept(END)
    assert token.finished
    assert not token.allows(END)
    assert allowed(token) == {END}


def test_a_refused_token_raises(load, constraints, tokenizer):
    token = constraints.compile(load().constraint.to_json())
    with pytest.raises(ValueError, match="doesn't satisfy"):
        token.accept(tokenizer.encode("hello")[0])


@pytest.mark.parametrize("back", [1, 2, 3, 5])
def test_rollback_takes_back_also_over_the_end(load, constraints, tokenizer, back):
    text = hermes(to="A", seats=2)
    ids = [*tokenizer.encode(text), END]
    token = constraints.compile(load().constraint.to_json())
    seen = []
    for one in ids:
        seen.append(allowed(token))
        token.accept(one)
    token.rollback(back)
    assert not token.finished
    assert allowed(token) == seen[len(ids) - back]
    for one in ids[len(ids) - back :]:
        token.accept(one)
    assert token.finished


def test_rollback_over_an_end_that_came_where_more_was_possible(constraints, tokenizer):
    token = constraints.compile(Constraint(Json({"type": "integer"})).to_json())
    for one in [*tokenizer.encode("12"), END]:
        token.accept(one)
    token.rollback(1)
    assert token.allows(END)
    assert token.allows(tokenizer.encode("3")[0])
    token.rollback(2)
    assert not token.allows(END)


def test_copies_do_not_disturb_each_other(load, constraints, tokenizer):
    text = load().constraint.to_json()
    one, other = constraints.compile(text), constraints.compile(text)
    start = allowed(other)
    one.accept(tokenizer.encode("<tool_call>")[0])
    assert allowed(other) == start != allowed(one)


def test_what_cannot_be_honoured_is_named():
    assert problem(Constraint(Json({"type": "string"}))) is None
    assert "uniqueItems" in problem(Constraint(Json({"type": "array", "uniqueItems": True})))


def test_sglang_gets_a_schema_or_a_tag(load):
    bare = load(wire_format="json").constraint
    assert json.loads(bare.sglang()["json_schema"]) == bare.part.schema
    tagged = load().constraint
    assert tagged.sglang().keys() == {"structural_tag"}
    tag = json.loads(tagged.sglang()["structural_tag"])
    assert tag["type"] == "structural_tag"
    assert (tag["format"]["begin"], tag["format"]["end"]) == ("<tool_call>\n", "\n</tool_call>")
    assert tag["format"]["content"]["type"] == "grammar"


def test_without_xgrammar_a_tag_holds_the_schema(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    _spaced_as_written.cache_clear()
    tag = json.loads(load().constraint.sglang()["structural_tag"])
    assert tag["format"]["content"]["json_schema"] == load().constraint.part.parts[1].schema
    _spaced_as_written.cache_clear()


def test_xgrammar_holds_a_tag_to_the_spaces_that_are_written(load):
    xgrammar = pytest.importorskip("xgrammar")
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)]))
    compiled = compiler.compile_structural_tag(load().constraint.sglang()["structural_tag"])

    def taken(text):
        matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
        return matcher.accept_string(text)

    text = hermes(to="Oslo", seats=2)
    assert taken(text)
    assert not taken(text.replace(", ", " , "))
    assert not taken(text.replace(": ", ":"))


SHAPES = (
    Calls(),
    Calls(0, 1),
    Calls(2, 3),
    Calls(1, None),
    Calls(0, 0, "before"),
    Calls(0, 1, "before"),
    Calls(1, 2, "before"),
    Calls(0, None, "between"),
)
PIECES = {
    "": Answer(),
    "text": Answer("Sure, <one> moment.\nSo:"),
    "call": Answer("", (Call("find_bus", {"to": "Köln"}),)),
    "text and call": Answer(
        "Sure: 1 < 2, [a]", (Call("find_train", {"to": "A", "seats": 2, "via": ["B", "C"]}),)
    ),
    "two calls": Answer(
        "", (Call("find_train", {"to": "A", "seats": 2, "grade": "first"}), Call("find_bus", {"to": ""}))
    ),
    "text and four calls": Answer("So", (Call("find_bus", {"to": "A"}),) * 4),
}


def fits(answer, calls):
    few = len(answer.calls) < calls.least or (calls.most is not None and len(answer.calls) > calls.most)
    silent = calls.text != "none" and not answer.calls and not answer.text
    return not few and not silent and not (answer.text and calls.text == "none")


# `class` is no name for a parameter in Python.
TOOLS = {
    tool["name"]: json.loads(json.dumps(tool["parameters"]).replace('"class"', '"grade"'))
    for tool in (TOOL, OTHER)
}


def cases(name):
    """Texts of a wire format, and whether each shape of calls has them."""
    for answer in PIECES.values():
        for calls in SHAPES if name != "json" else (shape for shape in SHAPES if shape.text == "none"):
            try:
                text = wire.FORMATS[name].write(answer, TOOLS)
            except ValueError:  # json has no plain text, pythonic no brackets in it
                continue
            yield calls, text, fits(answer, calls)


@pytest.mark.parametrize("name", wire.FORMATS)
def test_a_shape_of_calls_takes_what_has_it_and_nothing_else(constraints, tokenizer, name):
    for calls, text, fit in cases(name):
        constraint = wire.FORMATS[name].constraint(TOOLS, calls)
        assert accepts(constraints, tokenizer, constraint, text) == fit, (calls, text)
        assert problem(constraint) is None


@pytest.mark.parametrize("name", wire.FORMATS)
def test_the_same_of_xgrammar(name):
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    raw = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256])
    compiler = xgrammar.GrammarCompiler(raw)
    for calls, text, fit in cases(name):
        tag = json.dumps(structural_tag(wire.FORMATS[name].constraint(TOOLS, calls).part))
        matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(tag))
        taken = matcher.accept_string(text.encode()) and matcher.accept_token(256)
        assert taken == fit or not text, (calls, text)  # plain text may be empty there


@pytest.mark.parametrize("name", wire.FORMATS)
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_a_damaged_call_is_refused(constraints, tokenizer, name, data):
    call = Answer(calls=(Call("find_train", {"to": "A", "seats": 2, "via": ["B"]}),))
    text = wire.FORMATS[name].write(call, TOOLS)
    constraint = wire.FORMATS[name].constraint(TOOLS, Calls())
    assert accepts(constraints, tokenizer, constraint, text)
    place = data.draw(st.integers(0, len(text) - 1).filter(lambda place: text[place] not in "AB2"))
    if name == "kimi_k2" and text[place] == "0":  # any number will do
        return
    assert not accepts(constraints, tokenizer, constraint, text[:place] + text[place + 1 :])
    if "A" not in text[place - 1 : place + 1]:  # beside a string without quotes, it is part of the string
        assert not accepts(constraints, tokenizer, constraint, text[:place] + "\x01" + text[place:])


@pytest.mark.parametrize("name", ["hermes", "kimi_k2", "deepseek_v3", "mistral", "glm", "harmony", "qwen_xml"])
def test_special_tokens_of_a_format_are_asked_for_as_tokens(tagged_tokenizer, name):
    constraints = TokenConstraints(tagged_tokenizer)
    answer = Answer("Well", (Call("find_bus", {"to": "A"}),))
    text = wire.FORMATS[name].write(answer, TOOLS)
    constraint = wire.FORMATS[name].constraint(TOOLS, Calls(text="before"))
    ids = tagged_tokenizer.encode(text)
    assert max(ids) >= 49152
    assert takes(constraints, constraint, ids)
    spelt = tagged_tokenizer.encode(text, split_special_tokens=True)
    assert max(spelt) < 49152
    assert not takes(constraints, constraint, spelt)


def test_an_end_token_that_the_format_writes_is_taken_and_rolled_back(tagged_tokenizer):
    call, end = tagged_tokenizer.convert_tokens_to_ids(["<|call|>", "<|return|>"])
    constraints = TokenConstraints(tagged_tokenizer, [call, end])
    text = wire.harmony.write(Answer(calls=(Call("find_bus", {"to": "A"}),)), TOOLS)
    ids = tagged_tokenizer.encode(text)
    token = constraints.compile(wire.harmony.constraint(TOOLS, Calls()).to_json())
    for one in ids[:-1]:
        assert not token.allows(call)
        token.accept(one)
    assert ids[-1] == call
    assert not token.allows(end)
    assert allowed(token, words=1540) == {call}
    token.accept(call)
    assert token.finished
    token.rollback(2)
    assert not token.finished
    for one in ids[-2:]:
        token.accept(one)
    assert token.finished


def test_free_text_ends_where_what_follows_begins(constraints, tokenizer):
    free = Constraint(row(Free(("<a>", "<b>")), Text("\n<a>"), Json({"type": "boolean"})))
    assert accepts(constraints, tokenizer, free, "one\n<\n<a>true")
    assert accepts(constraints, tokenizer, free, "\n<a>true")
    assert not accepts(constraints, tokenizer, free, "one <b>\n<a>true")
    assert not accepts(constraints, tokenizer, free, "one\n<a>\n<a>true")
    bounded_text = Constraint(row(Text("("), choice([Free((")",), 2, 3, "[a-z)]+"), Text("none")]), Text(")")))
    for text, taken in (("(ab)", True), ("(abc)", True), ("(a)", False), ("(abcd)", False), ("(AB)", False)):
        assert accepts(constraints, tokenizer, bounded_text, text) is taken
    assert accepts(constraints, tokenizer, bounded_text, "(none)")


@pytest.mark.parametrize(
    ("least", "most", "counts"),
    [(0, 2, {0, 1, 2}), (1, None, {1, 2, 3, 4}), (2, 2, {2}), (0, 1, {0, 1}), (1, 1, {1})],
)
def test_parts_come_as_often_as_they_may(constraints, tokenizer, least, most, counts):
    for between in ("", ", "):
        part = row(Text("<"), repeat(Text("ab"), least, most, between), Text(">"))
        found = {
            count
            for count in range(5)
            if accepts(constraints, tokenizer, Constraint(part), f"<{between.join(['ab'] * count)}>")
        }
        assert found == counts


def test_a_person_s_own_grammar_and_expression(constraints, tokenizer):
    own = Constraint(Ebnf('root ::= "select " name ("," name)*\nname ::= [a-z]+\n'))
    assert problem(own) is None
    assert accepts(constraints, tokenizer, own, "select a,bc")
    assert not accepts(constraints, tokenizer, own, "select a,")
    expression = Constraint(Regex("[a-c]+/[0-9]{2}"))
    assert accepts(constraints, tokenizer, expression, "abc/12")
    assert not accepts(constraints, tokenizer, expression, "abc/123")
    assert own.sglang() == {"ebnf": own.part.grammar}
    assert expression.sglang() == {"regex": "[a-c]+/[0-9]{2}"}
    assert own.vllm() == {"grammar": own.part.grammar}
    assert expression.vllm() == {"regex": "[a-c]+/[0-9]{2}"}
    assert json.loads(Constraint(Text("a")).vllm()["structural_tag"])["format"]["value"] == "a"


THOUGHTS = {
    "<think>\nWell, {1}.\n</think>\n\n{}": True,
    "a template began it</think>\n{}": True,
    "</think>{}": True,
    "{}": False,
    "<think>\nWell.": False,
    "<think></think></think>\n\n{}": False,
    "Well.</think>\n\nSo: {}": False,
}


@pytest.mark.parametrize("text", THOUGHTS)
def test_a_thought_comes_before_what_is_held_to(constraints, tokenizer, tagged_tokenizer, text):
    constraint = Constraint(Json(bounded({"type": "object", "maxProperties": 0})), thinks=True)
    assert accepts(constraints, tokenizer, constraint, text) is THOUGHTS[text]
    special = copy.deepcopy(tagged_tokenizer)
    special.add_tokens([AddedToken(tag, special=True, normalized=False) for tag in ("<think>", "</think>")])
    assert accepts(TokenConstraints(special), special, constraint, text) is THOUGHTS[text]
    xgrammar = pytest.importorskip("xgrammar")
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)]))
    compiled = compiler.compile_structural_tag(json.dumps(structural_tag(constraint.whole)))
    matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
    assert (matcher.accept_string(text) and matcher.is_terminated()) is THOUGHTS[text]


def test_a_thought_is_kept_in_json_and_says_nothing_where_there_is_none():
    plain = Constraint(Text("a"))
    assert "thinks" not in plain.to_json()
    assert plain.whole == plain.part
    thinks = replace(plain, thinks=True)
    assert Constraint.from_json(thinks.to_json()) == thinks


def test_sglang_is_not_sent_two_limits_of_one_string():
    schema = {"properties": {"pattern": {"type": "string", "pattern": "^a", "maxLength": 9}, "maxLength": {}}}
    sent = json.loads(Constraint(Json(schema)).sglang()["json_schema"])
    assert sent == {"properties": {"pattern": {"type": "string", "pattern": "^a"}, "maxLength": {}}}


def test_what_an_engine_reads_over_is_told():
    odd = Constraint(row(Json({"type": "number", "multipleOf": 3}), Json({"type": "string", "format": "iri"})))
    for engine in ("xgrammar", "sglang", "vllm"):
        found = unsupported(odd, engine)
        assert found == ["xgrammar reads over the keyword multipleOf", "xgrammar does not know the format iri"]
    (only,) = unsupported(wire.glm.constraint(TOOLS, Calls()), "xgrammar")
    assert "a text of a limited length" in only
    stamped = {"t": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}}}}
    assert "a pattern and to an end" in unsupported(wire.glm.constraint(stamped, Calls()), "sglang")[0]


def test_what_is_told_of_a_text_with_a_limited_length_is_so():
    xgrammar = pytest.importorskip("xgrammar")
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)]))

    def taken(schema):
        compiled = compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)
        matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
        return matcher.accept_string(r'"a\"b"')

    limited = {"type": "string", "maxLength": 9}
    assert taken({"type": "string"})
    assert not taken(limited)
    assert "hold no quotation mark" in unsupported(Constraint(Json(limited)), "sglang")[0]
    assert unsupported(Constraint(Json({"type": "string"})), "sglang") == []


@pytest.mark.parametrize("name", ["pythonic", "glm", "qwen_xml"])
def test_literals_follow_the_schema(constraints, tokenizer, name):
    tools = {
        "go": {
            "type": "object",
            "properties": {
                "kind": {"enum": ["a", 1, None]},
                "sure": {"type": "boolean"},
                "day": {"type": "string", "format": "date"},
                "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
                "deep": {
                    "type": "object",
                    "properties": {
                        "x": {"type": "number"},
                        "y": {"type": "array", "items": {"type": "boolean"}},
                    },
                    "required": ["y"],
                },
                "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
        }
    }
    constraint = wire.FORMATS[name].constraint(tools, Calls())
    right = (
        {},
        {"kind": "a"},
        {"kind": None, "sure": True},
        {"sure": False, "deep": {"x": 1.5, "y": [True, False]}},
        {"day": "2025-01-31", "code": "ABC", "either": None},
        {"deep": {"y": []}, "either": 7},
    )
    wrong = ({"kind": "b"}, {"day": "tomorrow"}, {"code": "ABCD"}, {"deep": {"x": 1}}, {"other": "a"})
    for arguments in (*right, *wrong):
        text = wire.FORMATS[name].write(Answer(calls=(Call("go", arguments),)), tools)
        assert accepts(constraints, tokenizer, constraint, text) is (arguments in right), text


def test_what_pythonic_has_no_way_to_hold_a_target_to_is_told_by_check(load):
    odd = {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}, {"maxLength": 3}]}}}
    with pytest.raises(UserError, match="pythonic cannot be held to the keyword allOf"):
        load(
            tools=[{"name": "go", "parameters": odd}],
            wire_format="pythonic",
            examples=[{"name": "go", "arguments": {}}],
        )
