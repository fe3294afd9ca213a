"""What a target answers: plain text and tool calls, whatever the wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# A tool's name → the JSON Schema of its arguments, without references.
Tools = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Call:
    """One call of a tool."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A whole answer.

    Args:
        text: the plain text outside of calls, without the white space at its ends; several pieces are
            joined by a line's end.
        calls: in the order written.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Calls:
    """How many calls an answer has, and where plain text may stand.

    Args:
        least, most: number of calls; most None: as many as the target likes.
        text: `none`: nowhere; `before` the first call; `between`: also between calls and behind the last.
            An answer without a call is plain text and nothing else, unless text is `none`.
    """

    least: int = 1
    most: int | None = 1
    text: Literal["none", "before", "between"] = "none"


def joined(pieces: list[str]) -> str:
    """Pieces of plain text as `Answer.text` holds them."""
    return "\n".join(filter(None, (piece.strip() for piece in pieces)))
