import random

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthspec.grammar.pattern import MAX_PATTERN, matching, pattern

dice = random.Random


def matches(expression, text):
    return jsonschema_rs.Draft202012Validator({"pattern": expression}).is_valid(text)


PLAIN = (
    r"^AS\d+$", r"^[A-Z]{2}[0-9]{3}$", r"^(?:red|green|blue)(,(?:red|green|blue))*$",
    r"^\p{L}+ \p{Lu}\P{L}$", r"^[^\s@]+@[^\s@]+\.[a-z]{2,}$", r"^\+?[1-9]\d{1,14}$", r"^(\d{3})-\1$",
    r"^(?<year>\d{4})/x$", r"^\u0041\x42\/$", r"^[\w.-]+$", r"^.*\S.*$", r"^$|^[a-f0-9]{8}$",
    r"^[\p{L}\p{N}_-]{3,9}$", r"(?i)^true|false$", r"^[^[\]]{4}$", r"^\u{1F600}$", r"x{2,}y?", r"",
    r"^(a|b){3}?c+?$", r"\bword\b", r"^\p{Script=Greek}+$", r"^[\x20-\x7e]{1,80}$",
)  # fmt: skip


@pytest.mark.parametrize("expression", PLAIN)
def test_texts_match_their_pattern(expression):
    read = pattern(expression)
    for seed in range(20):
        assert matches(expression, matching(read, dice(seed)))


@pytest.mark.parametrize("expression", ["^(?=.{8,64}$)(?=.*[A-Z])(?=.*[0-9]).*$", r"^(?!.*--)[a-z-]{4,}$"])
def test_most_texts_match_a_pattern_that_looks_around(expression):
    read = pattern(expression)
    texts = [matching(read, dice(seed), 8, 64) for seed in range(50)]
    assert sum(matches(expression, text) for text in texts) > 20


@pytest.mark.parametrize(("least", "most"), [(1, 3), (17, 17), (60, 90), (0, 0)])
def test_a_text_has_the_length_that_is_asked_for(least, most):
    for expression in (r"^[a-z]*$", r"^(ab|c)*d?$", r"^[a-z]*-?[0-9]*$"):
        for seed in range(10):
            assert least <= len(matching(pattern(expression), dice(seed), least, most)) <= most


def test_text_behind_an_open_pattern_fills_up_what_lacks():
    assert len(matching(pattern("^ab"), dice(0), 12, 12)) == 12


@pytest.mark.parametrize(
    "expression", ["(", "[a", r"\p{Klingon}", "a{99999999}", "(a{1000}){1000}", "x" * (MAX_PATTERN + 1)]
)
def test_what_cannot_be_read_or_is_too_long_is_refused(expression):
    with pytest.raises(ValueError, match=r"pattern|too long"):
        pattern(expression)


atoms = st.sampled_from(["a", "Z", r"\d", r"\w", "[a-f]", "[^x]", r"\.", "(?:ab|c)", r"\p{Lu}", "é"])
counts = st.sampled_from(["", "?", "*", "+", "{2}", "{1,3}", "*?"])
expressions = st.recursive(
    st.builds(str.__add__, atoms, counts),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
    ),
    max_leaves=6,
)


@given(expressions, st.integers(0, 2**32))
def test_texts_match_any_plain_pattern(expression, seed):
    anchored = f"^(?:{expression})$"
    assert matches(anchored, matching(pattern(anchored), dice(seed)))
