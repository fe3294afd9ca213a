"""Grammars of kind text: templates whose words stand fixed, with a hole for each value."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from synthspec.grammar.code import gbnf
from synthspec.grammar.code.marks import substituted
from synthspec.grammar.redacted import MARK

MAX_VALUE = 200  # characters of a value, all on one line
MAX_MARKS = 100  # of a template
MAX_ALL_MARKS = 2_000  # of all templates

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

Range = tuple[int, int]


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
    if sum(len(MARK.findall(template)) for template in templates) > MAX_ALL_MARKS:
        yield (), f"have over {MAX_ALL_MARKS:,} marks together; keep those that one purpose needs"
        return
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
        elif found := _CONTROL.search(template):
            yield (
                (index,),
                f"has the control character {found[0]!r}, which engines cannot be held to; remove it",
            )


def _words(template: str) -> list[str]:
    """What stands before, between and behind the marks."""
    words, at = [], 0
    for mark in MARK.finditer(template):
        words.append(template[at : mark.start()])
        at = mark.end()
    return [*words, template[at:]]


def _holes(words: Sequence[str], text: str, *, cut: bool = False) -> list[Range] | None:
    """Where values stand between fixed words, the first ones as short as can be; None if the words do not.

    A set of places in the text is a number with a bit for each, so that a step takes all ways at once.

    Args:
        cut: whether the text may end before the words do.
    """
    if cut and words[0].startswith(text):
        return []
    if not text.startswith(words[0]) or len(text) > sum(map(len, words)) + MAX_VALUE * (len(words) - 1):
        return None
    places = _Places(text)
    behind = [1 << len(words[0])]  # for each word, where it may end
    for word in words[1:]:
        behind.append((places.ends(behind[-1]) & places.of(word)) << len(word))
    if behind[-1] >> len(text):
        return _shortest(places, words, behind)
    if not cut:
        return None
    while not behind[-1]:
        behind.pop()
    for number in range(len(behind), 0, -1):
        before = behind[:number]
        if before[-1] >> len(text):  # right behind a word
            return _shortest(places, words[:number], before)
        ends = places.ends(before[-1])
        for begun in range(min(len(words[number]), len(text)), -1, -1) if number < len(words) else ():
            word = words[number][:begun]
            if text.endswith(word) and ends >> (len(text) - begun) & 1:
                return _shortest(places, [*words[:number], word], [*before, 1 << len(text)])
    return None


def _shortest(places: _Places, words: Sequence[str], behind: Sequence[int]) -> list[Range]:
    """The values between words, the last of which ends the text, given where each may end."""
    way = 1 << len(places.text)
    starts: list[int] = []  # from the last word to the second, where it may stand
    for word, may in zip(words[:0:-1], behind[-2::-1], strict=True):
        starts.append((way >> len(word)) & places.of(word))
        way = may & places.starts(starts[-1])
    found: list[Range] = []
    at = len(words[0])
    for word, start in zip(words[1:], starts[::-1], strict=True):
        later = start >> (at + 1)
        end = at + (later & -later).bit_length()  # of the bits behind `at`, the lowest
        found.append((at, end))
        at = end + len(word)
    return found


class _Places:
    """Where something stands in a text: a number whose bit i says that it does before character i."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        self._known: dict[str, int] = {}
        line = ((1 << len(text)) - 1) & ~(self._of("\n") | self._of("\r"))
        # From values of 1 to `step` characters to those of 1 to `step + more`: where `more` of a line follow.
        self._runs = [(1, line)]
        step = 2
        while step < MAX_VALUE:
            last, run = self._runs[-1]
            more = min(step, MAX_VALUE - step)
            self._runs.append((more, run & run >> more - last))
            step += more
        self._line = line

    def of(self, word: str) -> int:
        """Where a word begins."""
        found = (1 << len(self.text) + 1) - 1
        for index, one in enumerate(word):
            found &= self._of(one) >> index
        return found

    def ends(self, starts: int) -> int:
        """Where a value may end that begins at one of some places: 1 to `MAX_VALUE` characters of a line."""
        reached = (starts & self._line) << 1
        for more, run in self._runs:
            reached |= (reached & run) << more
        return reached

    def starts(self, ends: int) -> int:
        """Where a value may begin that ends at one of some places."""
        reached = (ends >> 1) & self._line
        for more, run in self._runs:
            reached |= (reached >> more) & run
        return reached

    def _of(self, one: str) -> int:
        if one not in self._known:
            bits = np.packbits(self._codes == ord(one), bitorder="little")
            self._known[one] = int.from_bytes(bits.tobytes(), "little")
        return self._known[one]
