"""Answers of gpt-oss: messages on channels, tool calls on the one called commentary."""

from __future__ import annotations

import re

from synthspec.grammar.constraint import Constraint, Free, Json, Part, Repeat, Text, choice, repeat, row
from synthspec.grammar.schemas import bounded
from synthspec.grammar.wire.answer import Answer, Calls, Tools
from synthspec.grammar.wire.jsontext import dumps
from synthspec.grammar.wire.reader import Reader, Unfinished, opening, plain_text

TAGS: tuple[str, ...] = (
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
)
_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _CALL, _RETURN = TAGS
_NEXT = f"{_START}assistant"

# A message begins behind the prompt's `<|start|>assistant`, or with its own; a newer template names the
# receiver before the channel.
OPEN, _ = opening(_START, _CHANNEL, also=r"\A to=")
HOLD = re.compile(rf"{opening(*TAGS)[1].pattern}|\A (?:t|to)?\Z")

_HEADER = re.compile(
    r"(?: to=(?P<before>\S+?))?<\|channel\|>(?P<channel>analysis|commentary|final)"
    r"(?: to=(?P<behind>[^\s<]+))?\s*(?P<kind><\|constrain\|>json|json|code)?\s*\Z"
)


def write(answer: Answer, tools: Tools) -> str:
    """The text of an answer, up to the token that ends it: a final message, or a preamble and calls."""
    text = plain_text(answer, TAGS, OPEN)
    if not answer.calls:
        return f"{_FINAL}{text}{_RETURN}" if text else ""
    calls = [f"{_begin(call.name)}{dumps(call.arguments)}{_CALL}" for call in answer.calls]
    return _NEXT.join([*([f"{_PREAMBLE}{text}{_END}"] if text else []), *calls])


def block(reader: Reader, tools: Tools) -> None:
    """One message.  What is thought (analysis) is free text, but no part of the answer."""
    if reader.skip(_START):
        reader.take("assistant")
    place = reader.at
    header = _HEADER.fullmatch(reader.until(_MESSAGE))
    if not header or (header["before"] and header["behind"]):
        raise ValueError(f"there is no channel of a message at character {place}")
    reader.take(_MESSAGE)
    receiver = header["before"] or header["behind"]
    if receiver and header["channel"] == "commentary":
        arguments = reader.arguments()
        reader.space()
        reader.take(_CALL)
        reader.call(receiver.removeprefix("functions."), arguments)
        return
    start, ends = reader.at, (_END, _RETURN, _CALL)
    try:
        text = reader.until(*ends)
    except Unfinished:
        if header["channel"] != "final":
            reader.free.append((start, len(reader.text)))
            raise
        # A final message may end with the answer.
        text = reader.text[start:]
        reader.at = len(reader.text)
    if header["channel"] == "analysis":
        reader.free.append((start, reader.at))
    else:
        reader.at = start
        reader.plain(start + len(text))
    if reader.at < len(reader.text):
        reader.take(*ends)


def constraint(tools: Tools, calls: Calls) -> Constraint:
    """What an answer must be: calls, behind thoughts and a preamble where text may be, or a final message."""
    each = choice(
        [row(Text(_begin(name)), Json(bounded(schema)), Text(_CALL)) for name, schema in tools.items()]
    )
    free = Free(TAGS)
    talk = (
        Repeat(choice([row(Text(begin), free, Text(_END + _NEXT)) for begin in (_ANALYSIS, _PREAMBLE)]))
        if calls.text != "none"
        else Text("")
    )
    shapes: list[Part] = []
    if calls.most != 0:
        shapes.append(row(talk, repeat(each, max(calls.least, 1), calls.most, _NEXT)))
    if not calls.least:
        shapes.append(Text("") if calls.text == "none" else row(talk, Text(_FINAL), free, Text(_RETURN)))
    return Constraint(choice(shapes), "harmony")


_FINAL = f"{_CHANNEL}final{_MESSAGE}"
_PREAMBLE = f"{_CHANNEL}commentary{_MESSAGE}"
_ANALYSIS = f"{_CHANNEL}analysis{_MESSAGE}"


def _begin(name: str) -> str:
    return f"{_CHANNEL}commentary to=functions.{name} {_CONSTRAIN}json{_MESSAGE}"
