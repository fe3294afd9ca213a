import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthspec.grammar.code import filled, grammar, mistakes, problem, values
from tests.grammar.code.conftest import accepts, code, engine


def ebnf(text):
    return code(language="ebnf", grammar=text)


SUM = ebnf('root ::= term (("+" | "-") term)*\nterm ::= [0-9]{1,3} | "(" root ")"  # "root" twice\n')
ENGINE = engine(SUM)

sums = st.recursive(
    st.integers(0, 999).map(str),
    lambda inner: st.builds(
        lambda left, sign, right: f"({left}{sign}{right})", inner, st.sampled_from("+-"), inner
    ),
    max_leaves=8,
)


@given(sums)
def test_texts_of_a_grammar_are_taken_and_damaged_ones_are_not(text):
    assert problem(SUM, text) is None
    assert accepts(ENGINE, text)
    for damaged in (f"{text}+", f"+{text}", f"({text}", f"{text} "):
        assert problem(SUM, damaged) is not None
        assert not accepts(ENGINE, damaged)


def test_a_refusal_names_the_place_and_no_text():
    assert problem(SUM, "1+é") == "the grammar does not allow what stands at character 3"
    assert problem(SUM, "(1") == "it ends before the grammar does"
    assert "longer" in problem(SUM, "1" * 60_000)


def test_a_word_may_end_where_it_could_go_on():
    one = ebnf('root ::= word ", " word\nword ::= [a-z, ]+')
    assert problem(one, "a, b, c") is None
    assert problem(one, "abc") is not None


def test_characters_may_be_written_by_their_numbers():
    one = ebnf(r'root ::= [\u00e9\U0001F600] "\u0022\x41\\u"')
    assert problem(one, 'é"A\\u') is None
    assert problem(one, '😀"A\\u') is None
    assert "é" in grammar(one)


@pytest.mark.parametrize(
    "rule", ['("a"{1,3}){2,4}', '(("a"*)*)* # ")"', '("b" | ("a"?)+ )*', '(("a"+ # all\n)?)', '[(]* ("a"{2})*']
)
def test_repeats_of_repeats_are_read_by_all(rule):
    one = ebnf(f"root ::= {rule}")
    assert not list(mistakes(one))
    assert problem(one, "aaaa") is None
    assert problem(one, "aac") is not None
    assert accepts(engine(one), "aaaa")


def test_what_a_constraint_lets_through_the_judge_takes(walk):
    texts = walk(SUM, number=20)
    assert len(texts) > 5
    assert [told for text in texts if (told := problem(SUM, text))] == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('a ::= "x"', "has no rule root"),
        ('root ::= "a"\nroot ::= "b"', "has the rule root twice"),
        ('root ::= "a" other', "has no rule other, which the rule root names"),
        ('root ::= "a"\nlast ::= "b" @', "cannot be read in line 2 (rule last): expected name"),
        ('root ::= "a"{99999999999999999999}', "has a repeat of 99999999999999999999 in line 1 (rule root)"),
        ('root ::= "a', "cannot be read in line 1 (rule root): unexpected end of input"),
        ('root ::= "\\', "cannot be read"),
        ("root ::= " + "(" * 5000, "is nested too deeply"),
        ("root ::= a0\n" + "".join(f"a{n} ::= a{n + 1}\n" for n in range(1200)), "has over 1,000 rules"),
        (
            "root ::= a0\n" + "".join(f"a{n} ::= a{n + 1}\n" for n in range(900)) + "a900 ::= a0",
            "matches no text",
        ),
        ('root ::= "a" root', "matches no text, since its rule root never comes to an end"),
        ('root ::= "a"\nb ::= c\nc ::= b', "has the rule b, which never comes to an end"),
        ("root ::= .", "has a dot in line 1 (rule root)"),
        ('root ::= "x" a-B\na-B ::= [z-a]', "(rule a-B): invalid character class range"),
        ('root ::= "a"{3,2}', "(rule root): range end must be >= start"),
        ('root ::= a-b a_b\na-b ::= "x"\na_b ::= "y"', "whose names differ in -, _ and capitals alone"),
    ],
)
def test_mistakes_in_a_grammar_are_told_with_the_rule(text, sentence):
    [(place, told)] = mistakes(ebnf(text))
    assert place == ("grammar",)
    assert sentence in told


def test_a_right_grammar_has_no_mistakes():
    assert mistakes(SUM) == []
    assert mistakes(ebnf('root ::=\n  "." |\n  [.] # .\n')) == []


def test_everything_in_a_text_of_a_grammar_may_be_a_value():
    assert values(SUM, "1+2") == [(0, 3)]
    assert values(SUM, "") == []


def test_marks_take_slots():
    assert filled(SUM, "1+<redacted:n>", {"n": 7}, random.Random(0)) == "1+7"


def test_a_grammar_that_reads_a_text_in_very_many_ways_is_given_up():
    twice = ebnf('root ::= s\ns ::= s s | "a"')
    assert problem(twice, "a" * 50) is None
    assert "too many of its rules open at once" in problem(twice, "a" * 5000)
