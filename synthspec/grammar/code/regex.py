"""Texts of a regular expression."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as regex_parser  # type: ignore[attr-defined]
from typing import Any, Literal

from pydantic import Field

from synthspec.grammar.code.marks import substituted
from synthspec.grammar.invent import text_of
from synthspec.grammar.redacted import MARK
from synthspec.spec import Part

MAX_PATTERN = 20_000  # characters
MAX_TEXT = 10_000  # characters that a pattern may match

# A letter, a digit, a space: those of ASCII, because engines disagree about all others.
_CLASSES = {
    op.CATEGORY_DIGIT: r"0-9",
    op.CATEGORY_WORD: r"0-9A-Z_a-z",
    op.CATEGORY_SPACE: "\\t\\n\v\f\\r ",
}
_REST = {
    op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT,
    op.CATEGORY_NOT_WORD: op.CATEGORY_WORD,
    op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE,
}
_REASONS = {
    op.ASSERT: "looks ahead or behind",
    op.ASSERT_NOT: "looks ahead or behind",
    op.GROUPREF: "refers back to a group",
    op.GROUPREF_EXISTS: "refers back to a group",
    op.POSSESSIVE_REPEAT: "has a possessive repetition such as a*+",
    op.ATOMIC_GROUP: "has an atomic group",
    op.AT: r"has ^, $ or \b in its middle",
}


class Regex(Part):
    """Texts that one regular expression matches from beginning to end."""

    language: Literal["regex"]
    pattern: str = Field(
        min_length=1,
        max_length=MAX_PATTERN,
        description=r"regular expression without look-around or endless repetition; \d, \w and \s are ASCII's",
    )


def plain(pattern: str) -> str:
    """The expression in words that all engines read alike: literals, classes, groups, `|` and `{m,n}`.

    Raises:
        ValueError: a sentence's end that says why it cannot be.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of sets inside sets, which engines read in their own way
            parsed = regex_parser.parse(pattern)
    except FutureWarning:
        raise ValueError("has a set inside a set; put a backslash in front of [, &, - or ~ there") from None
    except re.error as error:
        at = "" if error.pos is None else f" at character {error.pos + 1}"
        raise ValueError(f"is no regular expression: {error.msg}{at}") from None
    except (OverflowError, RecursionError):
        raise ValueError("is no regular expression: a number or its depth is too large") from None
    flags = parsed.state.flags & ~re.UNICODE.value
    if flags:
        raise ValueError("has flags such as (?i); write classes such as [Aa] instead")
    most = int(parsed.getwidth()[1])
    if most > MAX_TEXT:
        raise ValueError(
            f"matches more than {MAX_TEXT:,} characters; bound its repetitions, as in [0-9]{{1,8}} for [0-9]+"
        )
    if not most:
        raise ValueError("matches nothing but the empty text; write what it should match")
    items = list(parsed)
    if items and items[0] in ((op.AT, op.AT_BEGINNING), (op.AT, op.AT_BEGINNING_STRING)):
        items = items[1:]
    if items and items[-1] in ((op.AT, op.AT_END), (op.AT, op.AT_END_STRING)):
        items = items[:-1]
    try:
        return _row(items)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def problem(code: Regex, text: str) -> str | None:
    """Why a text does not match as a whole, in time that grows with its length alone; None if it does."""
    if len(text) > MAX_TEXT or not _validator(code.pattern).is_valid(text):
        return "it does not match the pattern from its beginning to its end"
    return None


def values(code: Regex, text: str) -> list[tuple[int, int]]:
    """The whole text: what the pattern forces is known to who has the constraint."""
    return [(0, len(text))] if text else []


def filled(code: Regex, example: str, slots: Mapping[str, Any], dice: random.Random) -> str:
    """A redacted text with values; one that is a nameless mark as a whole is drawn from the pattern."""
    whole = MARK.fullmatch(example)
    if whole and whole[1] is None:
        return text_of(plain(code.pattern))(dice)
    return substituted(example, slots, dice)


def mistakes(code: Regex) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What is wrong with the pattern, as (place, sentence)."""
    try:
        plain(code.pattern)
    except ValueError as error:
        yield ("pattern",), str(error)
        return
    try:
        _validator(code.pattern)
    except ValueError:
        yield ("pattern",), "is too large once its repetitions are written out; make them smaller"


@lru_cache(maxsize=256)
def _validator(pattern: str) -> Any:
    import jsonschema_rs

    # Rust's `regex` needs time in proportion to the text, whatever the expression.
    return jsonschema_rs.Draft202012Validator(
        {"pattern": f"^(?:{plain(pattern)})$"}, pattern_options=jsonschema_rs.RegexOptions(), offline=True
    )


def _row(items: Iterable[Any]) -> str:
    return "".join(_item(kind, argument) for kind, argument in items)


def _item(kind: Any, argument: Any) -> str:
    if kind is op.LITERAL:
        return _literal(argument, r"\.+*?()|[]{}^$/")
    if kind is op.NOT_LITERAL:
        return f"[^{_literal(argument, _IN_SET)}]"
    if kind is op.ANY:
        return r"[^\n]"
    if kind is op.IN:
        return _set(argument)
    if kind is op.BRANCH:
        options = [_row(one) for one in argument[1]]
        often = "{0,1}" if "" in options else ""  # not all engines read an empty option
        return f"(?:{'|'.join(one for one in options if one)}){often}"
    if kind is op.SUBPATTERN:
        if argument[1] or argument[2]:
            raise ValueError("has flags such as (?i); write classes such as [Aa] instead")
        return f"(?:{_row(argument[3])})"
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        low, high, inner = argument
        # What matches nothing may stand without end.
        bound = low if high is op.MAXREPEAT else high
        return f"(?:{_row(inner)}){{{low},{bound}}}"
    raise ValueError(
        f"{_REASONS.get(kind, 'has a part that engines do not share')}, which engines cannot enforce"
    )


_IN_SET = r"\[]^-/"


def _set(items: list[Any]) -> str:
    negated = items[0][0] is op.NEGATE
    said: dict[str, None] = {}
    for kind, argument in items[negated:]:
        if kind is op.LITERAL:
            said[_literal(argument, _IN_SET)] = None
        elif kind is op.RANGE:
            said["-".join(_literal(end, _IN_SET) for end in argument)] = None
        elif argument in _CLASSES:
            said[_CLASSES[argument]] = None
        elif len(items) == 1:
            return f"[^{_CLASSES[_REST[argument]]}]"
        else:
            raise ValueError(r"has \D, \W or \S beside others in a set; write what it stands for")
    return f"[{'^' if negated else ''}{''.join(said)}]"


def _literal(code: int, special: str) -> str:
    one = chr(code)
    short = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}.get(one)
    return short or (f"\\{one}" if one in special else one)
