import copy
import itertools
import random
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from synthspec.grammar import wire
from synthspec.grammar.conform import Span, judge, label, miscounted, violation
from synthspec.grammar.constraint import Constraint, Json, TokenConstraints
from synthspec.grammar.tokens import token_table
from synthspec.grammar.wire.answer import Answer, Call, Calls
from synthspec.grammar.wire.jsontext import dumps
from tests.grammar.conftest import OTHER, TOOL

END = 2
REQUEST = {"purpose": "grammar", "constraint": None}


def written(value, wire_format="hermes"):
    return wire.FORMATS[wire_format].write(wire.answer_of(value), {})


CALL = {"name": "find_train", "arguments": {"to": "Köln", "seats": 2}}


@pytest.fixture
def judged(load, tokenizer):
    """Judge a text that the target would have ended by itself."""

    def judge_text(text, grammar=None, reason="stop", end=(END,), **request):
        ids = [*tokenizer.encode(text), *end]
        return judge({**REQUEST, **request}, ids, reason, grammar or load(), tokenizer)

    return judge_text


def call_of(name, **arguments):
    return written({"name": name, "arguments": arguments})


def pieces(ids, spans, tokenizer):
    """The spans as (kind, text) pairs."""
    return [(kind, tokenizer.decode(ids[start:end])) for kind, start, end in spans]


def partitions(spans, length):
    places = [place for span in spans for place in range(span.start, span.end)]
    apart = all(one.kind != other.kind for one, other in itertools.pairwise(spans))
    return places == list(range(length)) and apart


@pytest.mark.parametrize("wire_format", wire.FORMATS)
def test_a_tool_that_the_request_does_not_show_may_not_be_called(load, tokenizer, wire_format):
    grammar = load(
        tools=[OTHER, {**OTHER, "name": "find_tram"}],
        wire_format=wire_format,
        shape={"length": {"find_tram.to": [1, 20]}},
        examples=[{"name": "find_bus", "arguments": {"to": "<redacted>"}}],
    )
    ids = [*tokenizer.encode(wire.write(grammar, {"name": "find_bus", "arguments": {"to": "Köln"}})), END]
    verdicts = []
    for tool in grammar.tools:
        request = {**REQUEST, "constraint": wire.drawn(grammar, [tool], random.Random(0)).to_json()}
        verdicts.append(judge(request, ids, "stop", grammar, tokenizer))
    assert [verdict.state for verdict in verdicts] == ["kept", "invalid"]
    assert verdicts[1].reason == "it calls a tool that may not be called here"


def test_spans_of_a_call_of_one_tool(load, tokenizer):
    ids = [*tokenizer.encode(written(CALL)), END]
    verdict = judge(REQUEST, ids, "stop", load(), tokenizer)
    assert verdict.state == "kept"
    assert pieces(ids, verdict.spans, tokenizer) == [
        ("forced", '<tool_call>\n{"name": "find_train", "arguments": {"to": "'),
        ("value", "Köln"),
        ("structure", '",'),  # the string could have gone on
        ("forced", ' "seats": '),
        ("value", "2"),
        ("structure", "}}"),  # a comma could have followed
        ("forced", "\n</tool_call><|im_end|>"),
    ]


@pytest.mark.parametrize(
    "thought", ["<think>\nA train, so find_train.\n</think>\n\n", "hm</think>", "</think>\n"]
)
def test_what_was_thought_before_the_answer_is_free(load, tokenizer, thought):
    plain = judge(REQUEST, [*tokenizer.encode(written(CALL)), END], "stop", load(), tokenizer)
    ids = [*tokenizer.encode(thought), *tokenizer.encode(written(CALL)), END]
    verdict = judge(REQUEST, ids, "stop", load(), tokenizer)
    assert verdict.state == "kept"
    assert partitions(verdict.spans, len(ids))
    before = len(tokenizer.encode(thought))
    assert verdict.spans[0] == Span("free", 0, before)
    assert [(kind, start - before, end - before) for kind, start, end in verdict.spans[1:]] == [*plain.spans]
    wrong = [*tokenizer.encode(f"{thought}no call"), END]
    assert judge(REQUEST, wrong, "stop", load(), tokenizer).state == "invalid"


def test_the_name_of_one_of_several_tools_is_structure_where_it_is_open(load, tokenizer):
    grammar = load(tools=[TOOL, OTHER])
    ids = [*tokenizer.encode(written({"name": "find_bus", "arguments": {"to": "A"}})), END]
    verdict = judge(REQUEST, ids, "stop", grammar, tokenizer)
    found = pieces(ids, verdict.spans, tokenizer)
    assert found[:3] == [
        ("forced", '<tool_call>\n{"name": "find_'),
        ("structure", "bus"),
        ("forced", '", "arguments": {"to": "'),
    ]


def test_choices_are_values_and_constants_are_forced(extraction, tokenizer):
    schema = {
        "type": "object",
        "properties": {
            "kind": {"const": "trip"},
            "class": {"enum": ["first", "fine"]},
            "sure": {"type": "boolean"},
            "name": {"type": ["string", "null"]},
        },
        "required": ["kind", "class", "sure", "name"],
    }
    value = {"kind": "trip", "class": "first", "sure": True, "name": None}
    grammar = extraction(schema, [value], slots=None)
    ids = [*tokenizer.encode(wire.write(grammar, value)), END]
    verdict = judge(REQUEST, ids, "stop", grammar, tokenizer)
    found = pieces(ids, verdict.spans, tokenizer)
    assert found[0] == ("forced", '{"kind": "trip", "class": "')
    assert [text.strip() for kind, text in found if kind == "value"] == ["first", "true", "null"]
    assert not [text for kind, text in found if kind == "structure"]


def test_an_empty_string_has_no_value_but_a_choice(load, tokenizer):
    ids = [
        *tokenizer.encode(written({"name": "find_train", "arguments": {"to": "", "seats": 2}})),
        END,
    ]
    found = pieces(ids, judge(REQUEST, ids, "stop", load(), tokenizer).spans, tokenizer)
    assert found[1][0] == "structure"


LAST = 0x3FFFF  # SmolLM2 lacks the bytes that later characters begin with, and of some control characters
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=LAST), max_size=24)


@given(texts, st.lists(texts, max_size=3), st.sampled_from(["hermes", "json"]))
@settings(max_examples=150, deadline=None)
def test_spans_partition_and_hold_the_values(tokenizer, to, via, wire_format):
    arguments = {"to": to, "seats": 3, "via": via}
    constraint = _constraint(wire_format)
    text = written({"name": "find_train", "arguments": arguments}, wire_format)
    ids = [*tokenizer.encode(text), END]
    spans = label(constraint, ids, tokenizer)
    assert partitions(spans, len(ids))
    table = token_table(tokenizer)
    # Every byte of a value is in a value token, and every value token holds a byte of a value.
    data = text.encode()
    values, at = set(), data.index(b'"arguments"') + len(b'"arguments"')
    for key, one in (("to", to), ("seats", 3), *(("", one) for one in via)):
        raw = dumps(one).encode()
        if key:  # what separates key and value may look like a value
            at = data.index(f'"{key}":'.encode(), at) + len(f'"{key}":')
        at = data.index(raw, at)
        quoted = isinstance(one, str)
        values |= set(range(at + quoted, at + len(raw) - quoted))
        at += len(raw)
    at = 0
    for place, token in enumerate(ids[:-1]):
        held = set(range(at, at + len(table.bytes_of[token])))
        kind = next(span.kind for span in spans if span.start <= place < span.end)
        assert (kind == "value") == bool(held & values), (place, kind)
        at += len(held)


def _constraint(wire_format):
    from synthspec.grammar.model import Grammar

    grammar = Grammar.model_validate(
        {
            "name": "trains",
            "kind": "tool_call",
            "wire_format": wire_format,
            "tools": [TOOL, OTHER],
            "examples": [{"name": "find_bus", "arguments": {"to": "<redacted>"}}],
        }
    )
    return wire.constraint(grammar).to_json()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_constraint_lets_through_is_kept_and_forced_tokens_had_no_rival(load, tokenizer, seed):
    """Random walks: each token drawn from all that the constraint allows."""
    grammar = load(tools=[TOOL, OTHER], wire_format=("hermes", "json")[seed % 2])
    token = TokenConstraints(tokenizer).compile(grammar.constraint.to_json())
    table = token_table(tokenizer)
    dice = random.Random(seed)
    bitmask = torch.zeros(1, 1536, dtype=torch.int32)
    ids, options = [], []
    while not token.finished:
        token.fill(bitmask, 0)
        bits = (bitmask[0][:, None] >> torch.arange(32, dtype=torch.int32)) & 1
        can = bits.flatten().nonzero().flatten().tolist()
        quotes = [one for one in can if table.bytes_of[one].startswith(b'"')]
        ids.append(dice.choice(quotes if quotes and dice.random() < 0.3 else can))
        options.append(can)
        token.accept(ids[-1])
    verdict = judge(REQUEST, ids, "stop", grammar, tokenizer)
    assert verdict.state == "kept", verdict.reason
    assert partitions(verdict.spans, len(ids))
    for kind, start, end in verdict.spans:
        for place in range(start, end):
            own = table.bytes_of[ids[place]]
            rivals = [
                one
                for one in options[place]
                if not table.bytes_of[one].startswith(own) and not own.startswith(table.bytes_of[one])
            ]
            assert not (kind == "forced" and rivals)


def test_a_text_outside_of_the_constraint_is_judged_by_the_schema(judged, load, tokenizer):
    text = '<tool_call>\n{"name":"find_train","arguments":{"to":"Bonn","seats":2}}\n</tool_call>'
    verdict = judged(text)
    assert verdict.state == "kept"
    ids = [*tokenizer.encode(text), END]
    assert partitions(verdict.spans, len(ids))
    found = pieces(ids, verdict.spans, tokenizer)
    assert found[0][0] == "forced"
    assert [text for kind, text in found if kind == "value"] == ["Bonn", "2"]
    # A string longer than the constraint's bound is production's, if not ours.
    long = written({"name": "find_train", "arguments": {"to": "long " * 30, "seats": 2}})
    assert judged(long).state == "kept"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I cannot do that.", "plain text where only calls"),
        (call_of("find_tram"), "calls a tool that the grammar does not have"),
        (call_of("find_train", to="A"), "find_train.arguments has no seats, which is required"),
        (call_of("find_train", to="A", seats=99), "find_train.arguments.seats breaks the keyword maximum"),
        (written([CALL, CALL]), "2 calls where one is asked for"),
        (written(CALL).replace("</tool_call>", ""), "is not finished"),
        ("", "no calls where one is asked for"),
    ],
)
def test_what_is_not_the_grammar_is_invalid_with_the_reason(judged, text, reason):
    verdict = judged(text)
    assert (verdict.state, verdict.spans) == ("invalid", ())
    assert reason in verdict.reason


def test_a_reason_repeats_nothing_of_the_text(judged):
    secret = written({"name": "find_train", "arguments": {"to": 5, "seats": "Geheimrat"}})
    assert "Geheim" not in judged(secret).reason


def test_formats_are_asserted(extraction):
    schema = {
        "type": "object",
        "properties": {"day": {"type": "string", "format": "date"}},
        "required": ["day"],
    }
    grammar = extraction(schema, [{"day": "<redacted>"}], slots=None)
    assert violation(grammar, {"day": "2025-02-28"}) is None
    assert violation(grammar, {"day": "2025-02-30"}) == "day breaks the keyword format"


def test_special_tokens_inside_and_broken_utf8_are_invalid(load, tokenizer):
    ids = tokenizer.encode(written(CALL))
    middle = [*ids[:5], END, *ids[5:], END]
    assert "special token" in judge(REQUEST, middle, "stop", load(), tokenizer).reason
    table = token_table(tokenizer)
    half = next(i for i, piece in enumerate(table.bytes_of) if piece == b"\xc3")
    assert judge(REQUEST, [*ids, half], "stop", load(), tokenizer).reason == "it is not UTF-8"


def test_cut_off_answers_are_truncated_only_under_a_grammar(judged, load, tokenizer):
    ids = tokenizer.encode(written(CALL))
    assert judge(REQUEST, ids, "length", load(), tokenizer).state == "truncated"
    for purpose in ("replay", "ood"):
        free = judge({"purpose": purpose, "constraint": None}, ids, "length", None, tokenizer)
        assert free.state == "kept"
        assert free.spans == (Span("free", 0, len(ids)),)


def test_engine_errors_and_strange_ids_are_errors(load, tokenizer):
    assert judge(REQUEST, [1, 2], "abort", load(), tokenizer).state == "error"
    assert judge(REQUEST, [49152], "stop", load(), tokenizer).state == "error"
    assert judge(REQUEST, [-1], "stop", load(), tokenizer).state == "error"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("The sea is wide and the boats on it are small, but they carry us all the same.", "kept"),
        ("no no no no no no no no no no no no no no no no no no no no", "degenerate"),
        ("We go home. " * 20, "degenerate"),
        ("A long thought about the weather in spring, and why it matters to farmers. " * 4, "degenerate"),
        ("Yes.", "kept"),
        ("", "degenerate"),
    ],
)
def test_replay_that_repeats_itself_is_degenerate(tokenizer, text, state):
    ids = [*tokenizer.encode(text), END]
    replay = {"purpose": "replay", "constraint": None}
    assert judge(replay, ids, "stop", None, tokenizer).state == state
    assert judge({**replay, "purpose": "ood"}, ids, "stop", None, tokenizer).state == "kept"


def test_the_stage_takes_rows(load, tokenizer):
    ids = [*tokenizer.encode(written(CALL)), END]
    kept = judge(REQUEST, ids, "stop", load(), tokenizer)
    assert kept.state == "kept"
    assert kept == judge(REQUEST, ids, "stop", load(), tokenizer)
    cut = judge(REQUEST, ids, "length", load(), tokenizer)
    assert (cut.state, cut.spans) == ("truncated", ())
    assert cut.reason == f"it was not finished after {len(ids)} tokens"


def test_labels_of_an_answer_that_was_cut_off(load, tokenizer):
    constraint = load().constraint.to_json()
    ids = tokenizer.encode('<tool_call>\n{"name": "find_train", "arguments": {"to": "Frankf')
    spans = label(constraint, ids, tokenizer)
    assert partitions(spans, len(ids))
    assert [span.kind for span in spans] == ["forced", "value"]
    assert label(constraint, [], tokenizer) == []
    assert label(None, [5, 6], tokenizer) == [Span("free", 0, 2)]
    assert label(None, [], tokenizer) == []


def test_any_text_gets_labels(load, tokenizer):
    constraint = load().constraint.to_json()
    for text in ("hello", '}}]],{"', '{"a": [', "\\", '"', "<tool_call>\n{{{"):
        ids = tokenizer.encode(text)
        assert partitions(label(constraint, ids, tokenizer), len(ids))


@given(texts)
def test_bytes_of_tokens_add_up_to_the_text(tokenizer, text):
    table = token_table(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(table.bytes_of[token] for token in ids) == text.encode()


@given(st.lists(st.integers(17, 49151), max_size=12))
def test_bytes_of_any_tokens_are_what_the_tokenizer_decodes(tokenizer, ids):
    table = token_table(tokenizer)
    text = b"".join(table.bytes_of[token] for token in ids).decode(errors="replace")
    assert text == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def test_special_tokens_are_known(tokenizer):
    table = token_table(tokenizer)
    assert {0, 1, END, 16} <= table.special
    assert tokenizer.encode("a")[0] not in table.special
    assert len(table.bytes_of) == 49152


def test_judging_keeps_up(load, tokenizer):
    """At least 2,000 completions of about 60 tokens a minute; here with a wide margin."""
    grammar = load(tools=[TOOL, OTHER])
    arguments = {"to": "Frankfurt am Main", "seats": 2, "via": ["Hanau", "Fulda"]}
    ids = [*tokenizer.encode(written({"name": "find_train", "arguments": arguments})), END]
    judge(REQUEST, ids, "stop", grammar, tokenizer)
    started = time.perf_counter()
    for _ in range(100):
        judge(REQUEST, ids, "stop", grammar, tokenizer)
    assert time.perf_counter() - started < 100 * 60 / 2000


def test_a_constraint_without_own_keys_has_values_everywhere(tokenizer):
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    constraint = Constraint(Json({**schema, "additionalProperties": False})).to_json()
    ids = tokenizer.encode('{"name": "Ann"}')
    assert "value" in {span.kind for span in label(constraint, ids, tokenizer)}


FORMAT = pytest.mark.parametrize("name", wire.FORMATS)
TOOLS = {
    tool["name"]: tool["parameters"] for tool in (OTHER, {"name": "stop", "parameters": {"type": "object"}})
}


def spelt(tokenizer, ids, spans, kind):
    """The text of all tokens of a kind."""
    return "".join(tokenizer.decode(ids[span.start : span.end]) for span in spans if span.kind == kind)


@FORMAT
@given(texts, texts, st.booleans(), st.data())
@settings(max_examples=40, deadline=None)
def test_spans_partition_every_format_and_hold_its_values(
    tokenizer, tagged_tokenizer, name, one, other, special, data
):
    reader = tagged_tokenizer if special else tokenizer
    calls = (Call("find_bus", {"to": one}), Call("stop", {}), Call("find_bus", {"to": other}))
    try:
        text = wire.FORMATS[name].write(Answer("" if name == "json" else "Well, so be it", calls), TOOLS)
    except ValueError:
        assume(False)
    ids = reader.encode(text)
    shape = Calls(0, None, "none" if name == "json" else "before")
    constraint = wire.FORMATS[name].constraint(TOOLS, shape).to_json()
    spans = label(constraint, ids, reader)
    assert partitions(spans, len(ids))
    found = {kind: spelt(reader, ids, spans, kind) for kind in ("value", "free", "forced", "structure")}
    for word in ("find", "stop", *wire.FORMATS[name].TAGS):
        assert word not in found["value"] or word in one or word in other
    assert name == "json" or "be it" in found["free"]
    assert found["forced"]
    cut = data.draw(st.integers(0, len(ids)))
    assert partitions(label(constraint, ids[:cut], reader), cut)


@FORMAT
def test_values_are_value_and_plain_text_is_free(tokenizer, name):
    said = "" if name == "json" else "Well, so be it"
    answer = Answer(said, (Call("find_bus", {"to": "Frankfurt"}), Call("find_bus", {"to": "Oslo"})))
    ids = [*tokenizer.encode(wire.FORMATS[name].write(answer, TOOLS)), END]
    constraint = (
        wire.FORMATS[name].constraint(TOOLS, Calls(1, 2, "none" if name == "json" else "before")).to_json()
    )
    spans = label(constraint, ids, tokenizer)
    values = [tokenizer.decode(ids[span.start : span.end]) for span in spans if span.kind == "value"]
    assert [value.strip() for value in values] == ["Frankfurt", "Oslo"]
    free = [tokenizer.decode(ids[span.start : span.end]) for span in spans if span.kind == "free"]
    assert "".join(free).strip().startswith(said)
    assert spans[-1].kind == "forced"


@pytest.mark.parametrize("special", [False, True])
def test_a_thought_is_free_and_what_follows_is_judged(load, tokenizer, special):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens([AddedToken(tag, special=special) for tag in ("<think>", "</think>")])
    grammar = load()
    call = wire.write(grammar, {"name": "find_train", "arguments": {"to": "Oslo", "seats": 2}})
    ids = [*tokenizer.encode(f"<think>\nOslo, then.\n</think>\n\n{call}"), END]
    plain = [*tokenizer.encode(call), END]
    request = {**REQUEST, "constraint": replace(grammar.constraint, thinks=True).to_json()}
    verdict = judge(request, ids, "stop", grammar, tokenizer)
    assert verdict.state == "kept"
    alone = label(grammar.constraint.to_json(), plain, tokenizer)
    before = len(ids) - len(plain)
    moved = [Span(span.kind, span.start + before, span.end + before) for span in alone]
    assert list(verdict.spans) == [Span("free", 0, before), *moved]
    assert judge(request, ids[:-3], "stop", grammar, tokenizer).state == "invalid"
    cut = ids[:5]  # inside the thought
    assert label(request["constraint"], cut, tokenizer) == [Span("free", 0, 5)]


def test_spans_of_tags_that_are_special_tokens(tagged_tokenizer):
    call = Answer(calls=(Call("find_bus", {"to": "Oslo"}),))
    tools = {"find_bus": TOOLS["find_bus"]}
    ids = [*tagged_tokenizer.encode(wire.harmony.write(call, tools)), END]
    constraint = wire.harmony.constraint(tools, Calls()).to_json()
    assert pieces(ids, label(constraint, ids, tagged_tokenizer), tagged_tokenizer) == [
        ("forced", '<|channel|>commentary to=functions.find_bus <|constrain|>json<|message|>{"to": "'),
        ("value", "Oslo"),
        ("structure", '"}'),
        ("forced", "<|call|><|im_end|>"),
    ]


@FORMAT
def test_a_format_s_own_special_tokens_are_kept_and_strange_ones_are_not(load, tagged_tokenizer, name):
    grammar = load(tools=[OTHER], wire_format=name, examples=[{"name": "find_bus", "arguments": {"to": "A"}}])
    ids = tagged_tokenizer.encode(wire.write(grammar, {"name": "find_bus", "arguments": {"to": "Oslo"}}))
    assert judge(REQUEST, ids, "stop", grammar, tagged_tokenizer).state == "kept"
    kept = judge(REQUEST, [*ids, END], "stop", grammar, tagged_tokenizer)
    assert kept.state == "kept"
    assert kept.spans[-1] == Span("forced", kept.spans[-1].start, len(ids) + 1)
    odd = tagged_tokenizer.convert_tokens_to_ids("<|odd|>")
    verdict = judge(REQUEST, [*ids[:-2], odd, *ids[-2:]], "stop", grammar, tagged_tokenizer)
    assert (verdict.state, verdict.reason) == ("invalid", "it holds a special token before its end")


@pytest.mark.parametrize(
    ("calls", "answer", "reason"),
    [
        (Calls(), Answer("", (Call("find_bus", {"to": "A"}),)), None),
        (Calls(), Answer(), "there are no calls where one is asked for"),
        (
            Calls(),
            Answer("Hi", (Call("find_bus", {"to": "A"}),)),
            "there is plain text where only calls are asked for",
        ),
        (
            Calls(2, 3),
            Answer("", (Call("find_bus", {"to": "A"}),)),
            "there is 1 call where 2 to 3 are asked for",
        ),
        (
            Calls(2, None),
            Answer("", (Call("find_bus", {"to": "A"}),)),
            "there is 1 call where at least 2 are asked for",
        ),
        (Calls(0, 1, "before"), Answer("Hi"), None),
        (Calls(0, 2, "before"), Answer("Hi", (Call("find_bus", {"to": "A"}),) * 2), None),
        (
            Calls(0, 2, "before"),
            Answer("", (Call("find_bus", {"to": "A"}),) * 3),
            "there are 3 calls where 0 to 2 are",
        ),
    ],
)
def test_calls_are_counted_against_what_is_asked_for(calls, answer, reason):
    wrong = miscounted(answer, calls)
    assert reason in wrong if reason else wrong is None


def test_every_call_of_an_answer_is_validated(load):
    first, second = Call("find_bus", {"to": "A"}), Call("find_bus", {})
    grammar = load(tools=[TOOL, OTHER])
    assert violation(grammar, Answer(calls=(first,))) is None
    assert violation(grammar, Answer(calls=(second,))) == "find_bus.arguments has no to, which is required"
