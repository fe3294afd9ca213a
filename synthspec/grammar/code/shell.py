"""Command lines of a POSIX shell."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from synthspec.grammar.code.gbnf import PLAIN, one_of, row, said
from synthspec.grammar.code.marks import value_of
from synthspec.grammar.redacted import MARK
from synthspec.spec import Part

FENCE = "bash"

MAX_COMMANDS = 100
MAX_LISTED = 200  # flags and subcommands of one command
MAX_PIPED = 4  # commands that an engine joins with pipes
MAX_WORDS = 8  # behind a command
MAX_BARE = 40  # characters of a word without quotes
MAX_QUOTED = 60  # characters between quotes

_WORD = re.compile(r"[A-Za-z0-9_./:=@%+,-]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_BRACES = re.compile(r"\{[^\s{}]*(,|\.\.)[^\s{}]*\}")


class Shell(Part):
    """One command, or several joined by pipes, of those that may be called."""

    language: Literal["shell"]
    commands: dict[str, Annotated[list[str], Field(max_length=MAX_LISTED)]] = Field(
        min_length=1,
        max_length=MAX_COMMANDS,
        description="the commands that may be called, each with its flags (-n, --all, --format=) and its "
        "subcommands (status); where it has subcommands, one of them comes first",
    )
    pipes: bool = Field(False, description="whether commands may be joined by |")
    fence: bool = Field(False, description="whether it stands in a Markdown fence")


def rules(code: Shell) -> dict[str, str]:
    """The rules of what an engine is held to."""
    calls = []
    quote, apostrophe = said('"'), said("'")
    found = {
        "root": "",
        "bare": f"[A-Za-z0-9_./] [A-Za-z0-9_./:=@%+,-]{{0,{MAX_BARE - 1}}}",
        # An argument that begins with - would be a flag.
        "single": rf"""{apostrophe} ([^'\x2d{PLAIN}] [^'{PLAIN}]{{0,{MAX_QUOTED - 1}}})? {apostrophe}""",
        "double": rf"""{quote} ([^"$`\\!\x2d{PLAIN}] [^"$`\\!{PLAIN}]{{0,{MAX_QUOTED - 1}}})? {quote}""",
        "argument": "bare | single | double",
    }
    for index, (command, words) in enumerate(code.commands.items()):
        flags = [
            said(flag) + (" argument" if flag.endswith("=") else "") for flag in words if flag.startswith("-")
        ]
        subcommands = [word for word in words if not word.startswith("-")]
        before = f'(" " ({" | ".join(flags)})){{0,2}} ' if flags and subcommands else ""
        first = f'{before}" " {one_of(subcommands)} ' if subcommands else ""
        found[f"call-{index}"] = (
            f'{said(command)} {first}(" " ({" | ".join([*flags, "argument"])})){{0,{MAX_WORDS}}}'
        )
        calls.append(f"call-{index}")
    found["call"] = " | ".join(calls)
    found["root"] = row("call", said(" | "), MAX_PIPED if code.pipes else 1)
    return found


def problem(code: Shell, text: str) -> str | None:
    """Why a text is not a command line that may be called; None if it is."""
    try:
        calls = list(_calls(text))
    except ValueError as error:
        return str(error)
    if len(calls) > 1 and not code.pipes:
        return "it joins commands with a pipe, which is not allowed"
    for call in calls:
        if not call:
            return "a command is missing"
        if (name := call[0].text) not in code.commands:
            return "it calls a command that is not allowed"
        for word, kind in zip(call[1:], _kinds(code.commands[name], call), strict=True):
            if kind == "subcommand" and word.text not in code.commands[name]:
                return f"{name} has no such subcommand"
            if kind == "flag" and not _flag(word.text, code.commands[name]):
                return f"{name} has no such flag"
        if _subcommands(code.commands[name]) and "subcommand" not in _kinds(code.commands[name], call):
            return f"{name} is called without a subcommand"
    return None


def values(code: Shell, text: str) -> list[tuple[int, int]]:
    """Where arguments stand: [start, end) in characters, with their quotes; what is no shell counts as one."""
    found: list[tuple[int, int]] = []
    for call in _calls(text, cut=True):
        words = code.commands.get(call[0].text, ()) if call else ()
        if call and not words and call[0].text not in code.commands:
            last = call[0].end == len(text)
            if not (last and any(name.startswith(call[0].text) for name in code.commands)):
                found.append((call[0].start, call[0].end))
        for word, kind in zip(call[1:], _kinds(words, call), strict=True):
            begun = word.end == len(text) and any(one.startswith(word.text) for one in words)
            if kind == "subcommand" and (word.text in words or begun):
                continue
            if kind == "flag" and (known := _flag(word.text, words)):
                if word.start + known < word.end:
                    found.append((word.start + known, word.end))
                continue
            if begun and (kind == "flag" or word.text == "-"):
                continue
            found.append((word.start, word.end))
    return found


def filled(code: Shell, example: str, slots: Mapping[str, Any], dice: random.Random) -> str:
    """A redacted command line with values, quoted where the shell needs it."""
    result, at, quote = "", 0, ""
    while at < len(example):
        if mark := MARK.match(example, at):
            value = str(value_of(mark, slots, dice, quoted=True))
            if quote == "'":
                result += value.replace("'", "'\\''")
            else:
                result += re.sub(r'[\\"$`]', r"\\\g<0>", value) if quote else shlex.quote(value)
            at = mark.end()
            continue
        one = example[at]
        if one == "\\" and quote != "'":
            one = example[at : at + 2]
        elif one in ("'", '"') and quote in ("", one):
            quote = "" if quote else one
        result += one
        at += len(one)
    return result


def mistakes(code: Shell) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What is wrong with the commands, as (place, sentence)."""
    for command, words in code.commands.items():
        if not _WORD.fullmatch(command) or command.startswith("-") or "=" in command:
            yield ("commands", command), "is no name of a command; write letters, digits and ./:@%+,_-"
        for index, word in enumerate(words):
            place = ("commands", command, index)
            if not _WORD.fullmatch(word) or word in ("-", "--"):
                yield (
                    place,
                    "is no flag and no subcommand; write one without spaces, such as -n, --all or status",
                )
            elif words.count(word) > 1:
                yield place, f"{word} stands twice; remove one"


@dataclass(frozen=True)
class _Word:
    """A word as the shell reads it, and where it stands: [start, end) in characters."""

    text: str
    start: int
    end: int


def _calls(text: str, *, cut: bool = False) -> Iterator[list[_Word]]:
    """The words of each command of a pipe.

    Args:
        cut: the text may be cut off, or no command line at all; then nothing is refused.

    Raises:
        ValueError: in words, what it holds that cannot be checked.
    """
    words: list[_Word] = []
    at = 0
    while at < len(text):
        one = text[at]
        if one in " \t":
            at += 1
        elif one == "|" and (cut or text[at : at + 2] not in ("||", "|&")):
            yield words
            words, at = [], at + 1
        elif one in "|&;<>()\n":
            if not cut:
                raise ValueError(
                    "it does more than call commands: it has ;, &, ||, a redirection or several lines"
                )
            words.append(_Word(one, at, at + 1))
            at += 1
        else:
            word = _word(text, at, cut=cut)
            if word.text[:1] == "#" and text[at] == "#" and not cut:
                raise ValueError("it has a comment")
            words.append(word)
            at = word.end
    yield words


def _word(text: str, start: int, *, cut: bool) -> _Word:
    """The word that begins at a character."""
    said, at, quote = "", start, ""
    while at < len(text):
        one, following = text[at], text[at + 1 : at + 2]
        if not quote and one in " \t\n|&;<>()":
            break
        expands = one == "$" and re.match(r"[\w({\[@*#?$!-]", following)
        if quote != "'" and (one == "`" or expands) and not cut:
            raise ValueError("it holds a variable or another command's output, which cannot be checked")
        if not quote and not cut and ((one == "$" and following in ("'", '"')) or _BRACES.match(text, at)):
            raise ValueError("it holds $'…' or {a,b}, which a shell writes out as something else")
        if one == "\0" and not cut:
            raise ValueError("it holds a NUL character")
        if one == "\\" and quote != "'" and following:
            # Inside of double quotes a backslash is one, unless it stands before what has a meaning there.
            keeps = quote and following not in '$`"\\\n'
            said += (one if keeps else "") + ("" if following == "\n" else following)
            at += 2
            continue
        if one in ("'", '"') and quote in ("", one):
            quote = "" if quote else one
        elif one == "\\" and not quote and not cut:
            raise ValueError("it ends in a backslash")
        else:
            said += one
        at += 1
    if quote and not cut:
        raise ValueError("a quote is not closed")
    return _Word(said, start, at)


def _kinds(words: Any, call: list[_Word]) -> list[str]:
    """What each word behind a command is: flag, subcommand or argument."""
    kinds: list[str] = []
    named = not _subcommands(words)
    over = False  # behind -- all are arguments
    for word in call[1:]:
        if not over and word.text.startswith("-") and word.text != "-" and not _NUMBER.fullmatch(word.text):
            kinds.append("flag")
            over = word.text == "--"
        elif not named:
            kinds.append("subcommand")
            named = True
        else:
            kinds.append("argument")
    return kinds


def _subcommands(words: Any) -> list[str]:
    return [word for word in words if not word.startswith("-")]


def _flag(text: str, words: Any) -> int:
    """How many characters of a word are a flag of the command; what follows is its value; 0 if it is none."""
    if text in words or text == "--":
        return len(text)
    name, equals, _ = text.partition("=")
    if equals and (name in words or f"{name}=" in words):
        return len(name) + 1
    # Short flags stand together, with a number behind: -la, -n5.
    short = re.fullmatch(r"-([A-Za-z]+)(\d*)", text)
    if short and all(f"-{letter}" in words for letter in short[1]):
        return len(short[1]) + 1
    return 0
