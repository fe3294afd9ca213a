"""Grammars of kind code: what of a language production writes, without what it says there."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import ModuleType
from typing import Annotated, Any

from pydantic import Field

from synthspec.grammar.code import ebnf, gbnf, python, regex, shell, sql
from synthspec.grammar.code.ebnf import Ebnf
from synthspec.grammar.code.python import Python
from synthspec.grammar.code.regex import Regex
from synthspec.grammar.code.shell import Shell
from synthspec.grammar.code.sql import Sql

Code = Annotated[Sql | Python | Shell | Regex | Ebnf, Field(discriminator="language")]

_LANGUAGES: dict[str, ModuleType] = {"sql": sql, "python": python, "shell": shell, "regex": regex, "ebnf": ebnf}

_END = "\n```"


def grammar(code: Code) -> str:
    """What an engine is held to: a regular expression for `regex`, else rules in GBNF, `root` first."""
    match code:
        case Regex():
            return regex.plain(code.pattern)
        case Ebnf():
            return ebnf.grammar(code)
    begin = _begin(code)
    return gbnf.text(_LANGUAGES[code.language].rules(code), begin, _END if begin else "")


def problem(code: Code, text: str) -> str | None:
    """Why a text is not what the code asks for, found without any engine, in words without its values.

    Only for `ebnf` llguidance decides, over bytes.  None: it is.
    """
    if begin := _begin(code):
        if not text.startswith(begin) or not text.endswith(_END) or len(text) < len(begin) + len(_END):
            return f"it does not stand in a fence from {begin.strip()} to ```"
        text = text[len(begin) : -len(_END)]
        if _END in f"\n{text}":
            return "its fence is closed before the end"
    wrong: str | None = _LANGUAGES[code.language].problem(code, text)
    return wrong


def values(code: Code, text: str) -> list[tuple[int, int]]:
    """Where users' values stand in a text, also in one cut off: [start, end) in characters, in order."""
    begin = _begin(code)
    start = len(begin) if text.startswith(begin) else 0
    end = len(text) - len(_END) * (bool(begin) and text.endswith(_END) and len(text) >= start + len(_END))
    found: list[tuple[int, int]] = _LANGUAGES[code.language].values(code, text[start:end])
    return [(first + start, last + start) for first, last in found]


def filled(code: Code, example: str, slots: Mapping[str, Any], dice: random.Random) -> str:
    """A redacted example with values in place of its marks, escaped as the language quotes them.

    Args:
        example: code with marks, without a fence or with it.
        slots: the value of each slot that the example names; for a record its row.
        dice: what the values of nameless marks are drawn with.
    """
    begin = _begin(code)
    inside = example.removeprefix(begin).removesuffix(_END) if begin else example
    text: str = _LANGUAGES[code.language].filled(code, inside, slots, dice)
    return f"{begin}{text}{_END}" if begin else text


def mistakes(code: Code) -> list[tuple[tuple[str | int, ...], str]]:
    """What is wrong with what a person wrote, as (place inside of it, end of a sentence)."""
    found: list[tuple[tuple[str | int, ...], str]] = [*_LANGUAGES[code.language].mistakes(code)]
    if not found and (reason := _refused(code)):
        found = [((), reason)]
    return found


def _begin(code: Code) -> str:
    """What opens the code's fence; empty if it has none."""
    fenced = not isinstance(code, Regex | Ebnf) and code.fence
    return f"```{_LANGUAGES[code.language].FENCE}\n" if fenced else ""


def _refused(code: Code) -> str | None:
    """Why llguidance does not take the grammar."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    from synthspec.grammar.bytewise import byte_matcher

    said = grammar(code)
    lark = f"start: T\nT: /{said}/" if isinstance(code, Regex) else gbnf_to_lark(said)
    try:
        byte_matcher(lark)
    except ValueError as error:
        return f"cannot be enforced while decoding ({str(error).splitlines()[0]}); ask for less"
    return None
