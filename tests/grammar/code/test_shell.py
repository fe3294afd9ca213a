import random
import re
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthspec.grammar.code import filled, mistakes, problem, values
from tests.grammar.code.conftest import accepts, code, drawn, engine

COMMANDS = {"git": ["status", "log", "-n", "-a", "--all", "--format="], "grep": ["-i"], "ls": []}


def shell(**keys):
    return code(language="shell", **{"commands": COMMANDS, **keys})


SHELL = shell(pipes=True)
ENGINE = engine(SHELL)


@pytest.mark.parametrize(
    "text",
    [
        "ls",
        "git status",
        "git log -n 5 --all --format='%h %s' main..dev",
        "git -a log",
        "grep -i \"two words\" a/b.txt | grep 'it' | ls",
    ],
)
def test_engine_and_judge_take_it(text):
    assert accepts(ENGINE, text)
    assert problem(SHELL, text) is None


@pytest.mark.parametrize(
    "text", ["git log -an5", "grep a\\ b -- -x", "grep 'a'\"b\"c", "grep -5 '$HOME'", "grep $"]
)
def test_the_judge_knows_more_than_the_engine_is_held_to(text):
    assert problem(SHELL, text) is None
    assert not accepts(ENGINE, text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rm secret", "it calls a command that is not allowed"),
        ("X=secret ls", "it calls a command that is not allowed"),
        ("git push secret", "git has no such subcommand"),
        ("git", "git is called without a subcommand"),
        ("git log --secret", "git has no such flag"),
        ("git log '-s'", "git has no such flag"),
        ("git log -ax", "git has no such flag"),
        ("grep 'secret", "a quote is not closed"),
        ("grep secret\\", "it ends in a backslash"),
        ("grep secret # why", "it has a comment"),
        ("ls | ", "a command is missing"),
        ("grep $'-rf' x", "a shell writes out as something else"),
        ('grep $"-rf" x', "a shell writes out as something else"),
        ("grep {-rf,x}", "a shell writes out as something else"),
        ("grep {1..9}", "a shell writes out as something else"),
        ("grep $[1+1]", "which cannot be checked"),
        ("grep -٣", "grep has no such flag"),
        ("grep a\0b", "it holds a NUL character"),
        ("", "a command is missing"),
        *(
            (f"ls{sign}ls", "it does more than call commands")
            for sign in (";", "&", "&&", "||", "\n", ">", "<", "|&")
        ),
        *((f"grep {it}", "which cannot be checked") for it in ("`ls`", "$(ls)", "$HOME", '"$HOME"', '"`ls`"')),
    ],
)
def test_what_is_refused(text, reason):
    told = problem(SHELL, text)
    assert told is not None
    assert reason in told
    assert "secret" not in told
    assert not accepts(ENGINE, text)


def test_pipes_stand_only_where_they_are_allowed():
    one = shell()
    assert problem(one, "ls | ls") == "it joins commands with a pipe, which is not allowed"
    assert not accepts(engine(one), "ls | ls")


def test_what_a_constraint_lets_through_the_judge_takes(walk):
    for one in (SHELL, shell(fence=True)):
        texts = walk(one, number=20)
        assert len(texts) > 5
        assert [told for text in texts if (told := problem(one, text))] == []


@given(st.integers(0, 2**32))
def test_texts_of_the_grammar_satisfy_engine_and_judge(seed):
    text = drawn(SHELL, seed)
    assert problem(SHELL, text) is None
    assert accepts(ENGINE, text)


characters = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
# A value that begins with - would be a flag.
arguments = st.lists(characters.filter(lambda text: not text.startswith("-")), max_size=5)


@given(arguments)
def test_values_cover_exactly_the_arguments(words):
    text = shlex.join(["git", "log", "-n", *words])
    assert problem(SHELL, text) is None
    found = [text[start:end] for start, end in values(SHELL, text)]
    assert found == [shlex.quote(word) for word in words]


@given(st.data())
def test_values_of_a_text_that_is_cut_off(data):
    text = 'git log --format=\'a | b\' zq -n 17 | grep -i "x \\" y" q\\ q'
    whole = {at for start, end in values(SHELL, text) for at in range(start, end)}
    end = data.draw(st.integers(0, len(text)))
    found = {at for start, stop in values(SHELL, text[:end]) for at in range(start, stop)}
    assert found == {at for at in whole if at < end}


def test_values_of_flags_and_of_what_is_no_command():
    text = "git log -n5 --format=x; rm 'y"
    assert [text[start:end] for start, end in values(SHELL, text)] == ["5", "x", ";", "rm", "'y"]
    assert [*values(SHELL, "sudo rm x")] == [(0, 4), (5, 7), (8, 9)]


@given(characters)
def test_filled_values_come_back_whole(value):
    example = "grep '<redacted:it>' \"<redacted:it>\" x<redacted:it> '\\' <redacted>"
    text = filled(SHELL, example, {"it": value}, random.Random(0))
    words = shlex.split(text)
    in_double_quotes = re.sub(r"[$`]", r"\\\g<0>", value)  # which shlex leaves as they are
    assert words[:5] == ["grep", value, in_double_quotes, f"x{value}", "\\"]
    assert len(words) == 6
    if not value.startswith("-"):
        assert problem(SHELL, text) is None


def test_a_shell_reads_filled_values_as_they_were():
    value = '$HOME `ls` \\ "it\'s" *'
    text = filled(
        SHELL, "grep '<redacted:it>' \"<redacted:it>\" <redacted:it>", {"it": value}, random.Random(0)
    )
    said = subprocess.run(
        ["sh", "-c", f"grep() {{ printf '%s\\n' \"$@\"; }}; {text}"], capture_output=True, text=True
    )
    assert said.stdout == f"{value}\n" * 3


@pytest.mark.parametrize(
    ("commands", "place", "sentence"),
    [
        ({"a b": []}, ("commands", "a b"), "is no name of a command"),
        ({"-x": []}, ("commands", "-x"), "is no name of a command"),
        ({"ls": ["a b"]}, ("commands", "ls", 0), "is no flag and no subcommand"),
        ({"ls": ["--"]}, ("commands", "ls", 0), "is no flag and no subcommand"),
        ({"ls": ["-l", "-l"]}, ("commands", "ls", 0), "-l stands twice"),
    ],
)
def test_mistakes_in_commands_are_told(commands, place, sentence):
    found = mistakes(shell(commands=commands))
    assert found[0][0] == place
    assert sentence in found[0][1]
