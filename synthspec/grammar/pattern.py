"""Texts that match a regular expression as JSON Schema has them (ECMA-262), invented with dice."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as regex_parser  # type: ignore[attr-defined]
from typing import Any

MAX_PATTERN = 20_000  # characters of an expression
MAX_LENGTH = 10_000  # characters of a text
_ENDLESS = 1 << 40  # what stands for no limit

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789"
_PRINTABLE = "".join(map(chr, range(32, 127)))
_PLAIN = _LETTERS + _DIGITS  # what a text is of where any character will do

# Some characters of Unicode's classes, inside square brackets of Python's expressions.
_CLASSES = {
    "l": "A-Za-zÀ-ÖØ-öø-ÿ", "lu": "A-ZÀ-ÖØ-Þ", "ll": "a-zß-öø-ÿ", "lt": "ǅ", "lm": "ʰ", "lo": "一-龥", "m":
    "\u0300", "mn": "\u0300", "n": "0-9", "nd": "0-9", "nl": "Ⅰ-Ⅻ", "no": "²³", "p":
    r"!-#%-*,-/:;?@\[-\]_{}", "pd": r"\-", "ps": r"(\[{", "pe": r")\]}", "pc": "_", "po": "!-#%-'*,./:;?@",
    "s": "$+<->|~", "sc": "$€£", "sm": "+<->|~", "sk": r"\^`", "so": "©°", "z": " ", "zs": " ", "c": "\t",
    "cc": "\t", "ascii": "!-~", "any": "!-~", "latin": "A-Za-zÀ-ÖØ-öø-ÿ", "greek": "α-ω", "cyrillic": "а-я",
    "han": "一-龥", "hiragana": "ぁ-ん", "katakana": "ァ-ン", "arabic": "ا-ي", "hebrew": "א-ת", "thai": "ก-ฮ",
    "hangul": "가-힣", "devanagari": "अ-ह", "emoji": "😀-😏", "extended_pictographic": "😀-😏",
    "xalnum": "A-Za-z0-9", "xprint": " -~",
}  # fmt: skip
_ALIASES = {
    "letter": "l", "alphabetic": "l", "alpha": "l", "uppercase_letter": "lu", "uppercase": "lu", "upper":
    "lu", "lowercase_letter": "ll", "lowercase": "ll", "lower": "ll", "other_letter": "lo", "mark": "m",
    "number": "n", "decimal_number": "nd", "digit": "nd", "punctuation": "p", "punct": "p", "symbol": "s",
    "currency_symbol": "sc", "separator": "z", "space_separator": "zs", "white_space": "z", "control": "cc",
    "other": "c", "latn": "latin", "grek": "greek", "cyrl": "cyrillic", "hani": "han", "id_start": "l",
    "id_continue": "l", "isalphabetic": "l", "alnum": "xalnum", "print": "xprint", "graph": "any",
    "ispunctuation": "p", "iswhitespace": "z", "space": "z", "blank": "z", "cntrl": "cc", "xdigit": "nd",
    "assigned": "any",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:(?P<not>[pP])(?:\{(?P<name>[^}]*)\}|(?P<short>[A-Z]))|[ux]\{(?P<code>[0-9A-Fa-f]+)\}|c(?P<control>[A-Za-z])"
    r"|k<(?P<group>\w+)>|(?P<start>[A])|(?P<end>[zZ])|(?P<other>.))",
    re.DOTALL,
)
_FLAGS = re.compile(r"\(\?[imsux-]+\)")

Match = Callable[[random.Random, int, dict[int, str]], str]


@dataclass(frozen=True)
class _Piece:
    """A part of an expression: least and most characters of what it matches, and how one is drawn.

    `draw` takes the dice, the number of characters wanted (kept to where it can be) and the groups so far.
    """

    least: int
    most: int
    draw: Match


@dataclass(frozen=True)
class Pattern:
    """What is known of an expression before a text is drawn.

    Args:
        body: what is matched, without looking around.
        needed: what must also stand somewhere in the text, from its look-aheads.
        looks: whether it looks ahead or behind at all.
        open: whether text may follow.
    """

    body: _Piece
    needed: tuple[_Piece, ...]
    looks: bool
    open: bool

    @property
    def least(self) -> int:
        """The fewest characters of a text that matches."""
        return self.body.least


@lru_cache(maxsize=4096)
def pattern(expression: str) -> Pattern:
    """Read an expression once, to draw texts from it often.

    Raises:
        ValueError: it is too long, or is none that can be read here.
    """
    if len(expression) > MAX_PATTERN:
        raise ValueError(f"a pattern of over {MAX_PATTERN:,} characters is too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = list(regex_parser.parse(_python(expression)))
        needed: list[_Piece] = []
        body = _sequence(parsed, needed)
    except (regex_parser.error, OverflowError, RecursionError, ValueError):
        raise ValueError("the pattern cannot be read") from None
    ends = bool(parsed) and parsed[-1] in ((op.AT, op.AT_END), (op.AT, op.AT_END_STRING))
    return Pattern(body, tuple(needed), "(?=" in expression or "(?!" in expression, not ends)


def matching(
    wanted: Pattern, dice: random.Random, least: int = 0, most: int = MAX_LENGTH, *, beyond: int = 3
) -> str:
    """A text that most probably matches; the caller checks that it does.

    Args:
        least, most: characters that it should have.
        beyond: characters that it has more than the fewest, where it can; of an expression such as `.*` the
            fewest are none at all.
    """
    body = wanted.body
    low = max(least, body.least, sum(piece.least for piece in wanted.needed) if wanted.needed else 0)
    high = min(most, body.most, MAX_LENGTH, low + 12)
    usual = min(low + beyond, high)
    text = body.draw(dice, dice.randint(usual, high) if usual < high else high, {})
    if wanted.needed and text:
        text = _with(text, wanted.needed, dice)
    if wanted.looks and dice.random() < 0.2:
        # What is looked for may be asked for in ways that are not read here: some of everything.
        text = _with("".join(dice.choices(_PLAIN, k=max(low, min(high, 10)))), _EVERY_KIND, dice)
    if len(text) < least and wanted.open:
        text += "".join(dice.choices(_PLAIN, k=min(least, MAX_LENGTH) - len(text)))
    return text


def _with(text: str, needed: Iterable[_Piece], dice: random.Random) -> str:
    """The text with what is needed written over parts of it that do not overlap."""
    pieces = [piece.draw(dice, piece.least, {}) for piece in needed]
    spare = len(text) - sum(map(len, pieces))
    if spare < 0:
        return text
    dice.shuffle(pieces)
    result, at = "", 0
    for piece in pieces:
        skip = dice.randint(0, spare)
        spare -= skip
        result += text[at : at + skip] + piece
        at += skip + len(piece)
    return result + text[at:]


def _python(expression: str) -> str:
    """ECMA's (and Rust's) way to write an expression as Python's."""
    result, inside, at = "", False, 0
    while at < len(expression):
        if found := _ESCAPE.match(expression, at):
            result += _escaped(found, inside)
            at = found.end()
            continue
        character = expression[at]
        if inside:
            if character == "]":
                inside = False
            elif character == "[":
                character = r"\["
        elif character == "[":
            inside = True
            if expression.startswith("[^]", at):
                result, inside, at = result + r"[\s\S]", False, at + 3
                continue
        elif found := _FLAGS.match(expression, at):  # a text in the case it is written in matches anyway
            at = found.end()
            continue
        elif expression.startswith("(?<", at) and expression[at + 3 : at + 4] not in ("=", "!"):
            result, at = result + "(?P<", at + 3
            continue
        result += character
        at += 1
    return result


def _escaped(found: re.Match[str], inside: bool) -> str:
    if found["not"]:
        name = (found["name"] or found["short"] or "").rpartition("=")[2].lower().replace(" ", "_")
        name = name.lstrip("^")
        listed = _CLASSES.get(_ALIASES.get(name, name))
        if listed is None:
            raise ValueError("a class of characters that is not known here")
        if (found["not"] == "P") == (found["name"] or "").startswith("^"):
            return listed if inside else f"[{listed}]"
        # What is not in a class, without Python's help: a few that surely are something else.
        others = "".join(
            one for one in "a A0-_. " if one in _PRINTABLE and not re.match(f"[{listed}]", one) and one != "-"
        )
        return re.escape(others) if inside else f"[^{listed}]"
    if found["code"]:
        return re.escape(chr(int(found["code"], 16)))
    if found["control"]:
        return re.escape(chr(ord(found["control"].upper()) - 64))
    if found["group"]:
        return f"(?P={found['group']})"
    if found["start"]:
        return r"\A"
    if found["end"]:
        return r"\Z"
    other = found["other"]
    return other if other in "/\"'`<>_=:;,!@%" else found[0]


def _sequence(parsed: list[Any], needed: list[_Piece] | None = None) -> _Piece:
    """Pieces one behind the other.

    Args:
        needed: takes what the look-aheads in this sequence ask for.
    """
    pieces: list[_Piece] = []
    for kind, argument in parsed:
        if kind is op.ASSERT and argument[0] == 1 and needed is not None:
            if (core := _core(list(argument[1]))) is not None:
                needed.append(core)
        elif kind is op.SUBPATTERN and needed is not None and argument[0] is not None:
            # The look-aheads of a group around everything ask as much as those outside.
            pieces.append(_group(argument[0], _sequence(list(argument[-1]), needed)))
        elif (piece := _piece(kind, argument)) is not None:
            pieces.append(piece)
    if len(pieces) == 1:
        return pieces[0]
    least = sum(piece.least for piece in pieces)
    most = min(_ENDLESS, sum(piece.most for piece in pieces))

    def draw(dice: random.Random, length: int, groups: dict[int, str]) -> str:
        spare = length - least
        lengths = [piece.least for piece in pieces]
        if spare > 0:
            for index in dice.sample(range(len(pieces)), len(pieces)):
                room = pieces[index].most - pieces[index].least
                if room > 0:
                    more = dice.randint(0, min(room, spare))
                    lengths[index] += more
                    spare -= more
            for index, piece in enumerate(pieces):  # what is left goes wherever it can
                more = min(piece.most - lengths[index], spare)
                lengths[index] += more
                spare -= more
        return "".join(piece.draw(dice, count, groups) for piece, count in zip(pieces, lengths, strict=True))

    return _Piece(least, most, draw)


def _core(parsed: list[Any]) -> _Piece | None:
    """What a look-ahead asks for, without the `.*` before and behind it; None if that is all of it."""

    def loose(item: Any) -> bool:
        kind, argument = item
        return kind is op.AT or (kind in (op.MAX_REPEAT, op.MIN_REPEAT) and argument[0] == 0)

    while parsed and loose(parsed[0]):
        parsed = parsed[1:]
    while parsed and loose(parsed[-1]):
        parsed = parsed[:-1]
    # A look-ahead to the end, such as (?=.{8,}$), speaks of the length; the caller's check does too.
    if not parsed or all(
        kind in (op.MAX_REPEAT, op.MIN_REPEAT) and argument[2][0][0] is op.ANY for kind, argument in parsed
    ):
        return None
    return _sequence(parsed)


def _piece(kind: Any, argument: Any) -> _Piece | None:
    """One item of a parsed expression; None for what matches no character."""
    if kind is op.LITERAL:
        return _literal(chr(argument))
    if kind in (op.ANY, op.NOT_LITERAL, op.IN):
        if kind is op.ANY:
            characters = _PLAIN
        elif kind is op.NOT_LITERAL:
            characters = _among([(op.NEGATE, None), (op.LITERAL, argument)])
        else:
            characters = _among(argument)
        return _Piece(1, 1, lambda dice, length, groups: characters[int(dice.random() * len(characters))])
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        low, high, inner = argument
        return _repeat(int(low), _ENDLESS if high is op.MAXREPEAT else int(high), _sequence(list(inner)))
    if kind is op.SUBPATTERN:
        inner_piece = _sequence(list(argument[-1]))
        return inner_piece if argument[0] is None else _group(argument[0], inner_piece)
    if kind is op.ATOMIC_GROUP:
        return _sequence(list(argument))
    if kind is op.BRANCH:
        return _branch([_sequence(list(one)) for one in argument[1]])
    if kind is op.GROUPREF:
        return _Piece(0, 0, lambda dice, length, groups: groups.get(argument, ""))
    if kind in (op.AT, op.ASSERT, op.ASSERT_NOT):
        return None
    raise ValueError("a feature of expressions that is not known here")


def _literal(text: str) -> _Piece:
    return _Piece(1, 1, lambda dice, length, groups: text)


# What passwords must hold.
_EVERY_KIND = tuple(
    _Piece(1, 1, lambda dice, length, groups, kind=kind: dice.choice(kind))  # type: ignore[misc]
    for kind in (_LETTERS, _LETTERS.upper(), _DIGITS, "!@#$%&*")
)


def _group(number: int, inner: _Piece) -> _Piece:
    def draw(dice: random.Random, length: int, groups: dict[int, str]) -> str:
        groups[number] = inner.draw(dice, length, groups)
        return groups[number]

    return _Piece(inner.least, inner.most, draw)


def _branch(options: list[_Piece]) -> _Piece:
    def draw(dice: random.Random, length: int, groups: dict[int, str]) -> str:
        fitting = [one for one in options if one.least <= length <= one.most] or options
        return fitting[int(dice.random() * len(fitting))].draw(dice, length, groups)

    return _Piece(min(one.least for one in options), max(one.most for one in options), draw)


def _repeat(low: int, high: int, inner: _Piece) -> _Piece:
    if low * max(inner.least, 1) > MAX_LENGTH:
        raise ValueError("matches only texts that are too long")
    least = low * inner.least
    most = min(_ENDLESS, high * inner.most)

    def draw(dice: random.Random, length: int, groups: dict[int, str]) -> str:
        if inner.most == 0:
            return inner.draw(dice, 0, groups) * low
        fewest = max(low, -(-length // inner.most))
        largest = max(fewest, min(high, length // max(inner.least, 1)))
        count = dice.randint(fewest, largest)
        if inner.least == inner.most:
            return "".join([inner.draw(dice, inner.least, groups) for _ in range(count)])
        parts, spare = [], length - count * inner.least
        for left in range(count, 0, -1):
            room = inner.most - inner.least
            # No less than what the others cannot take.
            more = dice.randint(max(0, spare - (left - 1) * room), max(0, min(room, spare)))
            spare -= more
            parts.append(inner.draw(dice, inner.least + more, groups))
        return "".join(parts)

    return _Piece(least, most, draw)


def _among(items: list[Any]) -> str:
    """Some characters that a class in square brackets takes."""
    negated = bool(items) and items[0][0] is op.NEGATE
    found: list[str] = []
    for kind, argument in items:
        if kind is op.LITERAL:
            found.append(chr(argument))
        elif kind is op.RANGE:
            first, last = argument
            found += map(
                chr, range(first, last + 1, 1 if negated or last - first < 512 else (last - first) // 256)
            )
        elif kind is op.CATEGORY:
            found += _category(argument)
    if negated:
        shut_out = set(found)
        rest = [one for one in _PLAIN if one not in shut_out] or [
            one for one in (*_PRINTABLE, *"äßλж中") if one not in shut_out
        ]
    else:
        visible = [one for one in found if one.isprintable() and not "\ud800" <= one <= "\udfff"]
        # Spaces and signs are rare in what people write, where letters or digits may stand too.
        plain = [one for one in visible if one.isalnum()]
        rest = plain * 3 + visible if plain else visible or found
    if not rest:
        raise ValueError("a class of characters that takes none")
    return "".join(rest)


def _category(kind: Any) -> str:
    word = _LETTERS + _LETTERS.upper() + _DIGITS + "_"
    return {
        op.CATEGORY_DIGIT: _DIGITS,
        op.CATEGORY_NOT_DIGIT: _LETTERS + " -",
        op.CATEGORY_SPACE: " ",
        op.CATEGORY_NOT_SPACE: _PRINTABLE[1:],
        op.CATEGORY_WORD: word,
        op.CATEGORY_NOT_WORD: " -.,",
    }[kind]
