"""Grammars of kind text: templates whose words stand fixed, with a hole for each value."""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from synthspec.grammar.code import gbnf
from synthspec.grammar.code.marks import substituted
from synthspec.grammar.redacted import MARK

MAX_VALUE = 200  # characters of a value, all on one line
MAX_MARKS = 100  # of a template

Range = tuple[int, int]
_Chain = tuple["_Chain", Range] | None


def grammar(templates: Sequence[str]) -> str:
    """Rules in GBNF for all texts of the templates.

    Args:
        templates: texts with marks; a text is one of them with a value in place of each mark.
    """
    options = [" value ".join(map(gbnf.said, _words(template))) for template in templates]
    return gbnf.text({"root": " | ".join(options), "value": rf"[^\n\r]{{1,{MAX_VALUE}}}"})


def problem(templates: Sequence[str], text: str) -> str | None:
    """Why a text is of no template; None if it is of one."""
    if any(_holes(_words(template), text) is not None for template in templates):
        return None
    return "it does not follow the template" if len(templates) == 1 else "it follows none of the templates"


def values(templates: Sequence[str], text: str) -> list[Range]:
    """Where values stand in a text, also in one that is cut off: [start, end) in characters, in order.

    A text of no template is a value as a whole.
    """
    for cut in (False, True):
        for template in templates:
            found = _holes(_words(template), text, cut=cut)
            if found is not None:
                return found
    return [(0, len(text))] if text else []


def filled(template: str, slots: Mapping[str, Any], dice: random.Random) -> str:
    """A template with a value in place of each mark.

    Args:
        slots: the value of each slot that the template names; for a record its row.
        dice: what the values of nameless marks are drawn with.
    """
    return substituted(template, slots, dice, lambda value: " ".join(value.split())[:MAX_VALUE])


def mistakes(templates: Sequence[str]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What is wrong with templates, as (place, end of a sentence)."""
    for index, template in enumerate(templates):
        words = _words(template)
        if not template:
            yield (index,), "is empty; write the text with a mark such as <redacted:name> for each value"
        elif len(words) > MAX_MARKS + 1:
            yield (index,), f"has over {MAX_MARKS} marks; keep those that one purpose needs"
        elif "" in words[1:-1]:
            yield (index,), "has two marks side by side; write one, or what stands between them"
        elif "\r" in template:
            yield (index,), r"has a carriage return; end its lines with \n alone"
        elif "\0" in template:
            yield (index,), "has a NUL character, which engines cannot be held to; remove it"


def _words(template: str) -> list[str]:
    """What stands before, between and behind the marks."""
    words, at = [], 0
    for mark in MARK.finditer(template):
        words.append(template[at : mark.start()])
        at = mark.end()
    return [*words, template[at:]]


def _holes(words: Sequence[str], text: str, *, cut: bool = False) -> list[Range] | None:
    """Where values stand between fixed words, the first ones as short as can be; None if the words do not.

    Args:
        cut: whether the text may end before the words do.
    """
    if cut and words[0].startswith(text):
        return []
    if not text.startswith(words[0]):
        return None
    if len(text) > sum(map(len, words)) + MAX_VALUE * (len(words) - 1):
        return None
    # By the place that words have been found up to, the shortest first, the values so far: a chain of pairs.
    ways: dict[int, _Chain] = {len(words[0]): None}
    for number, word in enumerate(words[1:], 2):
        places = _places(text, word) if number < len(words) else [len(text) - len(word)] * text.endswith(word)
        further: dict[int, _Chain] = {}
        for start, found in ways.items():
            reach = _ends(text, start)
            for end in places[bisect_left(places, reach.start) : bisect_left(places, reach.stop)]:
                if end + len(word) not in further:
                    further[end + len(word)] = (found, (start, end))
        if not further and cut:
            return _cut(ways, text, word)
        ways = further
    return _listed(ways[len(text)]) if len(text) in ways else None


def _places(text: str, word: str) -> Sequence[int]:
    """Where a word stands in a text."""
    return [found.start() for found in re.finditer(f"(?={re.escape(word)})", text)]


def _listed(chain: _Chain) -> list[Range]:
    found: list[Range] = []
    while chain is not None:
        chain, value = chain
        found.append(value)
    return found[::-1]


def _cut(ways: Mapping[int, _Chain], text: str, word: str) -> list[Range] | None:
    """The values of a text that ends in one, or in the middle of the word behind it."""
    for start, found in ways.items():
        begun = next(size for size in range(len(word), -1, -1) if text.endswith(word[:size], start))
        end = len(text) - begun
        if start == len(text) or end in _ends(text, start):
            return _listed((found, (start, end)) if start < end else found)
    return None


def _ends(text: str, start: int) -> range:
    """Where a value that begins at a place may end."""
    line = min((at for one in "\n\r" if (at := text.find(one, start)) >= 0), default=len(text))
    return range(start + 1, min(line, start + MAX_VALUE) + 1)
