import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthspec.grammar.code import filled, grammar, mistakes, problem, values
from tests.grammar.code.conftest import accepts, code, engine


def regex(pattern):
    return code(language="regex", pattern=pattern)


PATTERNS = (
    r"PNR-[A-Z]{3}\d{4}",
    r"^(?:yes|no|)(?P<why>, \w{1,8}){0,2}[.!/]$",
    r"[^a-c\]\-^]\S\D\W[\w.]?",
    r"(a|aa){0,9}b??.{2}",
    r"\x41é\u00e9\t?[é-ü]",
)


@given(st.sampled_from(PATTERNS), st.integers(0, 2**32))
def test_texts_of_a_pattern_are_taken_and_damaged_ones_are_not(pattern, seed):
    one, held = regex(pattern), engine(regex(pattern))
    text = filled(one, "<redacted>", {}, random.Random(seed))
    for said in (text, text[:-1], f"{text}x", text.replace("-", "_"), text.upper(), f"{text}\n"):
        fits = re.fullmatch(pattern, said, re.ASCII) is not None
        assert (problem(one, said) is None) == fits
        assert accepts(held, said) == fits
    assert problem(one, text) is None


@pytest.mark.parametrize("character", "٣éß\xa0\r\v\u2028\u212aK_")
@pytest.mark.parametrize("pattern", [r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", ".", "[^k]", r"[\w-]"])
def test_engine_and_judge_read_classes_alike(pattern, character):
    one = regex(pattern)
    assert accepts(engine(one), character) == (problem(one, character) is None)


def test_what_a_constraint_lets_through_the_judge_takes(walk):
    for pattern in PATTERNS:
        one = regex(pattern)
        texts = walk(one, number=10)
        assert texts
        assert [told for text in texts if (told := problem(one, text))] == []


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        (r"(a+)+$", "matches more than 10,000 characters"),
        (r".*", "matches more than 10,000 characters"),
        (r"((a{0,99}){0,99}){0,99}", "matches more than 10,000 characters"),
        (r"(a", "is no regular expression: missing ), unterminated subpattern at character 1"),
        (r"\p{L}", "is no regular expression"),
        ("(" * 5000 + ")" * 5000, "is no regular expression"),
        (r"(?i)a", "has flags"),
        (r"(?i:a)", "has flags"),
        (r"(?=a)b", "looks ahead or behind"),
        (r"(?<!a)b", "looks ahead or behind"),
        (r"(a)\1", "refers back to a group"),
        (r"a{1,2}+", "has a possessive repetition"),
        (r"a\bb", r"has ^, $ or \b in its middle"),
        (r"a|b$", r"has ^, $ or \b in its middle"),
        (r"[a\D]", r"has \D, \W or \S beside others"),
        (r"[a&&b]", "has a set inside a set"),
        (r"^$", "matches nothing but the empty text"),
    ],
)
def test_unsafe_patterns_are_told_at_once(pattern, sentence):
    begin = time.monotonic()
    [(place, told)] = mistakes(regex(pattern))
    assert time.monotonic() - begin < 2
    assert place == ("pattern",)
    assert sentence in told


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a|a|aa){0,60}b",
        r"(a?){99}a{99}",
        r"([a-z]{0,60}[0-9]{0,60}){0,80}!",
        r".{0,5000}a.{0,4000}!",
        r"(.{0,50}a){0,90}",
    ],
)
def test_patterns_that_would_explode_elsewhere_are_decided_at_once(pattern):
    one = regex(pattern)
    begin = time.monotonic()
    mistakes(one)
    problem(one, "a" * 9000)
    assert time.monotonic() - begin < 5


def test_everything_in_a_text_of_a_pattern_may_be_a_value():
    assert values(regex("a{1,3}"), "aa") == [(0, 2)]
    assert values(regex("a{1,3}"), "") == []


def test_marks_inside_of_a_text_take_slots():
    assert filled(regex("x{1,9}"), "A-<redacted:n>!", {"n": 7}, random.Random(0)) == "A-7!"


def test_the_pattern_is_said_in_words_that_engines_share():
    assert grammar(regex(r"^\d(?P<x>a|)[\w.-]$")) == r"[0-9](?:(?:a){0,1})[0-9A-Z_a-z.\-]"
