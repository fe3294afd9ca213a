"""The JSON inside the wire formats: one way to write it, a strict reader, and where its values stand."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

_TOKEN = re.compile(r'[ \t\r\n]*("(?:[^"\\]|\\.)*(?:(")|\\?\Z)|[{}\[\]:,]|[^ \t\r\n{}\[\]:,"]+)', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


def dumps(value: Any) -> str:
    """JSON as a model writes it: `{"a": 1, "b": 2}`, letters of all scripts as themselves.

    Raises:
        ValueError: a number that JSON has no text for.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # Half of a surrogate pair has no UTF-8, so it stays an escape.
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def loads(text: str) -> Any:
    """The value of a whole JSON text; see `decode`."""
    value, end = decode(text, 0)
    if text[end:].strip(" \t\n\r"):
        raise ValueError(f"there is more after the JSON value, from character {end}")
    return value


def decode(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start` (spaces before it are skipped), and where it ends.

    Raises:
        ValueError: it is no JSON, holds a key twice, or a number that is none (NaN, 1e999).
    """
    start += len(text[start:]) - len(text[start:].lstrip(" \t\n\r"))
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON from character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except ValueError as error:
        if "digits" in str(error):  # Python turns only so many into a number
            raise ValueError("the JSON holds a number of thousands of digits") from None
        raise


def scan(text: str, start: int, skip: frozenset[str] = frozenset()) -> list[tuple[int, int]]:
    """Find the scalars in a JSON value: strings without their quotes, numbers, true, false, null.

    Keys are no scalars.  A value that is cut off is scanned as far as it goes.

    Args:
        start: where the value begins, in characters; what is behind it is not looked at.
        skip: keys of the outermost object whose own scalars are left out.

    Returns:
        [start, end) of each scalar that is not empty, in characters and in order.
    """
    found: list[tuple[int, int]] = []
    above: list[str] = []
    key_next = False
    key = ""
    names = {dumps(name) for name in skip}
    at = start
    while token := _TOKEN.match(text, at):
        word, begin, at = token[1], token.start(1), token.end()
        if word in ("{", "["):
            above.append(word)
            key_next = word == "{"
        elif word in ("}", "]"):
            above = above[:-1]
            key_next = False
        elif word == ":":
            key_next = False
        elif word == ",":
            key_next = above[-1:] == ["{"]
        elif key_next:
            key = word if len(above) == 1 else key
        elif above != ["{"] or key not in names:
            inside = (begin + (word[0] == '"'), token.start(2) if token[2] else at)
            if inside[0] < inside[1]:
                found.append(inside)
        if not above:
            break
    return found


def end_of(text: str, start: int) -> int | None:
    """Where the JSON object or list that begins at `start` ends, by its brackets; None if it is cut off."""
    depth, at = 0, start
    while token := _TOKEN.match(text, at):
        at = token.end()
        depth += (token[1] in ("{", "[")) - (token[1] in ("}", "]"))
        if depth <= 0:
            return at
    return None


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large for JSON readers")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has the same key twice")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_float=_number, parse_constant=_no_constant)
