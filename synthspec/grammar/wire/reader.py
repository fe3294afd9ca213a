"""Reading an answer, whole, cut off or still on its way: what all wire formats share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from synthspec.grammar.wire.answer import Answer, Call, Tools, joined
from synthspec.grammar.wire.jsontext import decode, end_of, scan

Range = tuple[int, int]  # [start, end) in characters


class Unfinished(Exception):
    """The text ends inside of a call."""


class Blocks(Protocol):
    """The part of a wire format that reads."""

    OPEN: re.Pattern[str]  # where a block of calls begins
    HOLD: re.Pattern[str]  # the end of a text that may become such a place, up to `\\Z`

    def block(self, reader: Reader, tools: Tools) -> None:
        """Read the block at `reader.at`; Unfinished, or ValueError in words."""


@dataclass(frozen=True)
class Reading:
    """What a text holds, also one that is cut off or wrong from some place on.

    Args:
        answer: the finished calls, and the plain text.
        pieces: plain text and calls as they came.
        values: where users' values stand, also those of a call that is not finished.
        free: where plain text stands.
        open: where the call begins that is not finished; None if there is none.
        wrong: why the rest cannot be read, in words and without its text; empty if it can.
    """

    answer: Answer
    pieces: tuple[str | Call, ...]
    values: tuple[Range, ...]
    free: tuple[Range, ...]
    open: int | None
    wrong: str


class Reader:
    """A place in a text, and what was found on the way to it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.pieces: list[str | Call] = []
        self.values: list[Range] = []
        self.free: list[Range] = []

    def space(self) -> None:
        """Skip white space."""
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1

    def skip(self, text: str) -> bool:
        """Step over a text if it stands here."""
        here = self.text.startswith(text, self.at)
        if here:
            self.at += len(text)
        return here

    def take(self, *texts: str) -> str:
        """Step over the one of some texts that stands here, the first that fits.

        Raises:
            Unfinished: the text ends before this can be told.
            ValueError: none stands here.
        """
        rest = self.text[self.at : self.at + max(map(len, texts))]
        if any(text.startswith(rest) and text != rest for text in texts) and self.at + len(rest) == len(
            self.text
        ):
            raise Unfinished
        for text in texts:
            if self.skip(text):
                return text
        raise ValueError(f"there is no {' or '.join(texts)} at character {self.at}")

    def until(self, *ends: str) -> str:
        """Step over the text before the first of some ends; Unfinished if there is none."""
        places = [place for end in ends if (place := self.text.find(end, self.at)) >= 0]
        if not places:
            raise Unfinished
        start, self.at = self.at, min(places)
        return self.text[start : self.at]

    def json(self, skip: Iterable[str] = ()) -> Any:
        """Step over a JSON object or list, and note its values but those of the skipped keys at its top."""
        self.space()
        start = self.at
        if start == len(self.text):
            raise Unfinished
        if self.text[start] not in "{[":
            raise ValueError(f"there is no JSON object or list at character {start}")
        self.values += scan(self.text, start, frozenset(skip))
        if end_of(self.text, start) is None:
            raise Unfinished
        value, self.at = decode(self.text, start)
        return value

    def arguments(self) -> dict[str, Any]:
        """Step over a JSON object of arguments."""
        value = self.json()
        if not isinstance(value, dict):
            raise ValueError("a tool call's arguments are an object")
        return value

    def plain(self, end: int) -> None:
        """Step to `end` over plain text."""
        if self.at < end:
            self.pieces.append(self.text[self.at : end])
            self.free.append((self.at, end))
        self.at = end

    def call_object(self, also: tuple[str, ...] = ()) -> None:
        """Step over one call as a JSON object of name and arguments, as some families say, parameters.

        Args:
            also: further keys that it may have, which say nothing.
        """
        value = self.json(skip=("name", *also))
        if not isinstance(value, dict) or value.keys() - {*also} not in (
            {"name", "arguments"},
            {"name", "parameters"},
        ):
            raise ValueError("a tool call is an object of name and arguments, and nothing else")
        arguments = value["arguments"] if "arguments" in value else value["parameters"]
        if not isinstance(value["name"], str) or not isinstance(arguments, dict):
            raise ValueError("a tool call's name is a text and its arguments are an object")
        self.call(value["name"], arguments)

    def call(self, name: str, arguments: dict[str, Any]) -> None:
        """Note a finished call."""
        self.pieces.append(Call(name, arguments))


def read(blocks: Blocks, text: str, tools: Tools) -> Reading:
    """Read as much of a text as there is to read; what is wrong or missing is said, not raised."""
    reader = Reader(text)
    opened: int | None = None
    wrong = ""
    while opened is None and not wrong:
        found = blocks.OPEN.search(text, reader.at)
        reader.plain(found.start() if found else len(text))
        if not found:
            break
        try:
            blocks.block(reader, tools)
        except Unfinished:
            opened = found.start()
        except ValueError as error:
            wrong = str(error)
    calls = tuple(piece for piece in reader.pieces if isinstance(piece, Call))
    answer = Answer(joined([piece for piece in reader.pieces if isinstance(piece, str)]), calls)
    pieces, values, free = tuple(reader.pieces), tuple(reader.values), tuple(reader.free)
    return Reading(answer, pieces, values, free, opened, wrong)


class Stream:
    """Reads an answer that comes in pieces.

    Args:
        blocks: the module of a wire format.
        tools: as `write` takes them.
    """

    def __init__(self, blocks: Blocks, tools: Tools) -> None:
        self._blocks, self._tools = blocks, tools
        self._text = ""
        self._given: list[str | Call] = []

    def feed(self, piece: str) -> list[str | Call]:
        """Take the next piece, and give the plain text and the calls that are finished by it.

        Raises:
            ValueError: the text is not of this wire format.
        """
        self._text += piece
        return self._news(last=False)

    def end(self) -> list[str | Call]:
        """Say that no more comes, and take what was held back because more might have come.

        Raises:
            ValueError: the text ends inside of a call.
        """
        return self._news(last=True)

    def _news(self, last: bool) -> list[str | Call]:
        held = None if last else self._blocks.HOLD.search(self._text)
        reading = read(self._blocks, self._text, self._tools)
        if reading.wrong:
            raise ValueError(reading.wrong)
        if last and reading.open is not None:
            raise ValueError(f"the tool call at character {reading.open} is not finished")
        pieces = list(reading.pieces)
        if held and reading.open is None and pieces and isinstance(pieces[-1], str):
            pieces[-1] = pieces[-1][: len(pieces[-1]) - (len(self._text) - held.start())]
        given, self._given = self._given, pieces
        news = pieces[len(given) :]
        # Plain text grows; a call does not.
        if given and isinstance(given[-1], str) and len(given) <= len(pieces):
            grown = pieces[len(given) - 1]
            news = [grown[len(given[-1]) :] if isinstance(grown, str) else grown, *news]
        return [piece for piece in news if piece != ""]


def opening(*texts: str, also: str = "") -> tuple[re.Pattern[str], re.Pattern[str]]:
    """`OPEN` and `HOLD` for blocks that begin with one of some texts, or with a further expression."""
    starts = {text[:length] for text in texts for length in range(1, len(text))}
    longest_first = sorted(starts, key=len, reverse=True)
    found = [*map(re.escape, texts), *([also] if also else [])]
    return re.compile("|".join(found)), re.compile(f"(?:{'|'.join(map(re.escape, longest_first))})\\Z")


def plain_text(answer: Answer, tags: Iterable[str], begin: re.Pattern[str]) -> str:
    """An answer's plain text, if it can be told from calls.

    Args:
        tags: texts that the wire format begins or ends something with.
        begin: its `OPEN`.

    Raises:
        ValueError: it holds a text that the wire format means otherwise, or white space at its ends.
    """
    text = answer.text
    if text != text.strip():
        raise ValueError("plain text cannot begin or end with white space")
    if begin.search(text) or any(tag in text for tag in tags):
        raise ValueError("plain text cannot hold what the wire format begins or ends a call with")
    return text
