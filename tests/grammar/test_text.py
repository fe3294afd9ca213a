import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance.gbnf_to_lark import gbnf_to_lark

from synthspec.grammar.bytewise import byte_matcher
from synthspec.grammar.text import filled, grammar, mistakes, problem, values
from tests.grammar.code.conftest import accepts

TEMPLATES = ['Dear <redacted:name>,\nyour order <redacted:order> of <redacted> "left".', "Sorry."]
ENGINE = byte_matcher(gbnf_to_lark(grammar(TEMPLATES)))

line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), min_size=1, max_size=30)


@given(line, line, line)
def test_engine_and_judge_take_what_follows_a_template(name, order, day):
    text = f'Dear {name},\nyour order {order} of {day} "left".'
    assert accepts(ENGINE, text)
    assert problem(TEMPLATES, text) is None
    ranges = values(TEMPLATES, text)
    assert len(ranges) == 3
    between, at = "", 0
    for start, end in ranges:
        between += text[at:start] + "_"
        at = end
    assert between + text[at:] == 'Dear _,\nyour order _ of _ "left".'
    for damaged in (text[:-1], f"{text} ", text.replace("Dear", "dear"), f"{name}\n{text}"):
        assert problem(TEMPLATES, damaged) == "it follows none of the templates"
        assert not accepts(ENGINE, damaged)


plain = st.text("ab\n", max_size=12)


@given(
    st.lists(st.text("ab", min_size=1, max_size=2), min_size=2, max_size=5), plain, st.booleans(), st.booleans()
)
def test_values_are_those_of_a_plain_regular_expression(words, text, opens, closes):
    words = [*([""] if opens else []), *words, *([""] if closes else [])]
    found = re.fullmatch("([^\n]{1,200}?)".join(words), text)
    template = "<redacted>".join(words)
    assert (problem([template], text) is None) == (found is not None)
    if found:
        assert values([template], text) == [found.span(number) for number in range(1, len(words))]


@given(st.lists(st.text("ab", min_size=1, max_size=2), min_size=2, max_size=5), plain)
def test_values_of_a_text_that_is_cut_off_are_between_its_words(words, text):
    ranges = values(["<redacted>".join(words)], text)
    whole = re.fullmatch("([^\n]{1,200}?)".join(words), text)
    begins = any(
        re.fullmatch("([^\n]{1,200}?)".join([*words[:number], words[number][:begun]]), text)
        for number in range(len(words))
        for begun in range(len(words[number]) + 1)
    )
    if not whole and not begins:
        assert ranges == ([(0, len(text))] if text else [])
    between, at = [], 0
    for start, end in ranges:
        assert at <= start < end
        between.append(text[at:start])
        at = end
    if whole or begins:
        between.append(text[at:])
        assert "\0".join(words).startswith("\0".join(between)) or not "".join(between)


def test_a_text_in_which_every_word_stands_everywhere_is_judged_at_once():
    words = ["a" * (1 + number % 7) for number in range(100)]
    text = "a" * 15_000
    assert problem(["<redacted>".join(words)], text) is None
    assert problem(["<redacted>".join([*words[:-1], "b"])], text) == "it does not follow the template"


def test_values_are_as_short_as_can_be():
    text = 'Dear A of, B,\nyour order 1 of 2 of May "left".'
    assert [text[start:end] for start, end in values(TEMPLATES, text)] == ["A of, B", "1", "2 of May"]


def test_a_value_longer_than_a_line_is_none():
    assert problem(["a<redacted>b"], "axb") is None
    assert problem(["a<redacted>b"], "a\nb") == "it does not follow the template"
    assert problem(["a<redacted>b"], f"a{'x' * 201}b") == "it does not follow the template"
    assert problem(["a<redacted>b"], "ab") == "it does not follow the template"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("De", []),
        ("Dear ", []),
        ("Dear Bo", ["Bo"]),
        ("Dear Bo,", ["Bo"]),
        ("Dear Bo,\nyour ord", ["Bo"]),
        ("Dear Bo,\nyour order 12 o", ["Bo", "12"]),
        ("Dear Bo,\nyour order 12 of M", ["Bo", "12", "M"]),
        ("Hello Bo", ["Hello Bo"]),
        ("", []),
    ],
)
def test_values_of_a_text_that_is_cut_off_or_of_no_template(text, found):
    assert [text[start:end] for start, end in values(TEMPLATES, text)] == found


@given(st.text(min_size=1).filter(lambda text: text.split()))
def test_filled_templates_follow_themselves(name):
    text = filled(TEMPLATES[0], {"name": name, "order": 12}, random.Random(0))
    assert problem(TEMPLATES, text) is None
    assert "order 12 of" in text


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("", "is empty"),
        ("<redacted><redacted:a>", "has two marks side by side"),
        ("a\r\n", "has a carriage return"),
        ("a\0", "has the control character '\\x00'"),
        ("a\x1b", "has the control character '\\x1b'"),
    ],
)
def test_mistakes_in_a_template_are_told(template, sentence):
    [(place, told)] = mistakes(["fine", template])
    assert place == (1,)
    assert sentence in told


def test_too_many_marks_together_are_told():
    ((place, told),) = mistakes(["<redacted> " * 50] * 41)
    assert place == ()
    assert "have over 2,000 marks together" in told


def test_a_right_template_has_no_mistakes():
    assert [*mistakes([*TEMPLATES, "<redacted> and <redacted>"])] == []
