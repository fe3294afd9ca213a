import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from synthspec.grammar import wire
from synthspec.grammar.constraint import Constraint, TokenConstraints, problem
from synthspec.grammar.schemas import bounded
from tests.grammar.conftest import OTHER, TOOL

END = 2  # <|im_end|>


@pytest.fixture(scope="module")
def constraints(tokenizer):
    return TokenConstraints(tokenizer)


def accepts(constraints, tokenizer, constraint, text):
    """Whether the constraint takes a text whole and lets it end there."""
    token = constraints.compile(constraint.to_json())
    for one in tokenizer.encode(text):
        if not token.allows(one):
            return False
        token.accept(one)
    return token.allows(END)


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
        return wire.hermes.write({"name": "find_train", "arguments": {"to": "A", "seats": 1, "via": ["B"] * n}})

    constraint = load().constraint
    assert accepts(constraints, tokenizer, constraint, text(5))
    assert not accepts(constraints, tokenizer, constraint, text(6))


# SmolLM2's vocabulary lacks the bytes that characters behind 3FFFF begin with.
printable = st.text(st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0x3FFFF), max_size=20)


@given(printable, st.integers(1, 9), st.lists(printable, max_size=5))
def test_what_a_format_writes_its_constraint_takes(constraints, tokenizer, to, seats, via):
    schema = bounded(TOOL["parameters"])
    text = wire.json.write({"to": to, "seats": seats, "via": via})
    assert accepts(constraints, tokenizer, Constraint("", schema, ""), text)


def test_json_of_a_constraint_keeps_everything_and_its_order():
    properties = {"z": {"type": "integer"}, "a": {"type": "string"}}
    constraint = Constraint("<b>\n", {"type": "object", "properties": properties}, "é", ("name",))
    again = Constraint.from_json(constraint.to_json())
    assert again == constraint
    assert list(again.schema["properties"]) == ["z", "a"]


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
    for one in tokenizer.encode(
        wire.hermes.write({"name": "find_train", "arguments": {"to": "A", "seats": 2}})
    ):
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
    text = wire.hermes.write({"name": "find_train", "arguments": {"to": "A", "seats": 2}})
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
    token = constraints.compile(Constraint("", {"type": "integer"}, "").to_json())
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
    assert problem(Constraint("", {"type": "string"}, "")) is None
    assert "uniqueItems" in problem(Constraint("", {"type": "array", "uniqueItems": True}, ""))


def test_sglang_gets_a_schema_or_a_tag(load):
    bare = load(wire_format="json").constraint
    assert json.loads(bare.sglang()["json_schema"]) == bare.schema
    tagged = load().constraint
    assert tagged.sglang().keys() == {"structural_tag"}
    tag = json.loads(tagged.sglang()["structural_tag"])
    assert tag["type"] == "structural_tag"
    assert (tag["format"]["begin"], tag["format"]["end"]) == ("<tool_call>\n", "\n</tool_call>")
    assert tag["format"]["content"]["json_schema"] == tagged.schema
