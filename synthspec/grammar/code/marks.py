"""Values for the marks in redacted code."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from synthspec.grammar.invent import invented
from synthspec.grammar.redacted import MARK, slot_value


def substituted(
    text: str, slots: Mapping[str, Any], dice: random.Random, escaped: Callable[[str], str] = str
) -> str:
    """A text with a value in place of each mark.

    Args:
        text: what stands inside of quotes, or is no code.
        slots: the value of each slot that the text names; for a record its row.
        dice: what the values of nameless marks are drawn with.
        escaped: how a value is written there.
    """
    return MARK.sub(lambda mark: escaped(str(value_of(mark, slots, dice, quoted=True))), text)


def value_of(mark: re.Match[str], slots: Mapping[str, Any], dice: random.Random, *, quoted: bool) -> Any:
    """The value that a mark stands for: its slot's, a field of its slot's row, or an invented one.

    Args:
        mark: a match of `redacted.MARK`.
        quoted: whether it stands inside of a text; else a nameless mark is a number.
    """
    if mark[1] is None:
        return invented({"type": "string"}, dice) if quoted else dice.randint(1, 999)
    return slot_value(slots, mark[1])
