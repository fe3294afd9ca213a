"""The three ways a command may fail; each is one plain sentence and an exit code."""

from __future__ import annotations

import re

MAX_LINE = 1000  # characters of a message's line

# What a terminal obeys, breaks lines at, or turns the direction at.
_CONTROL = re.compile(
    "[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]"
)


def printable(text: str) -> str:
    """A text whose control characters, but for the ends of lines, are written out, such as \\x1b."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def first_line(error: BaseException) -> str:
    """What a library says in its exception, in a few words."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class SynthspecError(Exception):
    """A failure that is told in words, never as a traceback."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        lines = printable(message).split("\n")
        super().__init__("\n".join(one if len(one) <= MAX_LINE else f"{one[:MAX_LINE]}…" for one in lines))


class UserError(SynthspecError):
    """Something a person wrote is wrong: says what, where, and what to do."""

    exit_code = 2


class GateRefused(SynthspecError):
    """The trained drafter may not ship."""

    exit_code = 3


class Stopped(SynthspecError):
    """Something outside gave way (disk, workers); the same command goes on later."""

    exit_code = 4
