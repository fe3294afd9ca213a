"""Texts of a person's own grammar."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from synthspec.grammar.code.marks import substituted
from synthspec.spec import Part
from synthspec.yamlfile import brief

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_GRAMMAR = 100_000  # characters
MAX_RULES = 1_000
MAX_TEXT = 50_000  # characters that are read
MAX_ITEMS = 500  # ways to read a text up to one of its bytes; reading takes the third power of them and more

_RULE = re.compile(r"^[ \t]*([\w-]+)[ \t]*::=", re.MULTILINE)
_CODE = re.compile(r"\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\.", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|#[^\n]*|[\w-]+|.', re.DOTALL)
_REPEATS = frozenset("*+?{")
_REPEATS_END = frozenset("*+?}")


class Ebnf(Part):
    """Texts of a grammar that a person writes."""

    language: Literal["ebnf"]
    grammar: str = Field(
        min_length=1,
        max_length=MAX_GRAMMAR,
        description='rules in the EBNF of llama.cpp, `root` first: root ::= "yes" | "no" [0-9]{1,3}',
    )


def grammar(code: Ebnf) -> str:
    """The grammar in words that engines read alike.

    Characters stand in place of their numbers, which llguidance does not always read, and `root` names one
    rule alone, see `gbnf.text`.
    """

    def character(found: re.Match[str]) -> str:
        number = found[1] or found[2]
        if not number:
            return found[0]
        point = int(number, 16)
        if point < 0x80:
            return f"\\x{point:02x}"
        return chr(point) if point < 0x110000 and not 0xD800 <= point < 0xE000 else found[0]

    text = _CODE.sub(character, code.grammar)
    whole = next(name for number in range(len(text)) if (name := f"whole-{number}") not in text)
    inside = _TOKEN.sub(lambda found: whole if found[0] == "root" else found[0], text)
    return f"root ::= {whole}\n{_in_brackets(inside)}"


def _in_brackets(text: str) -> str:
    """The grammar with an empty text in brackets that end in a repeat and are repeated, as in `("a"*)*`.

    llguidance's converter drops the brackets around one item.
    """
    tokens = _TOKEN.findall(text)
    solid = [index for index, token in enumerate(tokens) if not token.isspace() and token[0] != "#"]
    opened: list[int] = []
    for before, index, behind in zip([-1, *solid], solid, [*solid[1:], -1], strict=False):
        if tokens[index] == "(":
            opened.append(index)
        elif tokens[index] == ")" and opened:
            first = opened.pop()
            if tokens[before] in _REPEATS_END and behind >= 0 and tokens[behind] in _REPEATS:
                tokens[first] = '("" '
    return "".join(tokens)


def problem(code: Ebnf, text: str) -> str | None:
    """Why a text is not of the grammar; None if it is."""
    if len(text) > MAX_TEXT:
        return f"it is longer than {MAX_TEXT:,} characters"
    matcher = _matcher(grammar(code)).deep_copy()
    data = text.encode()
    taken = matcher.try_consume_tokens([*data])
    if "items; max is" in matcher.get_error():
        return (
            "the grammar has too many of its rules open at once; repeat with * in place of a rule that ends in "
            "itself, and let each text be read in one way"
        )
    if taken < len(data):
        place = len(data[:taken].decode(errors="ignore"))
        return f"the grammar does not allow what stands at character {place + 1}"
    return None if matcher.is_accepting() else "it ends before the grammar does"


def values(code: Ebnf, text: str) -> list[tuple[int, int]]:
    """The whole text: what the grammar forces is known to who has the constraint."""
    return [(0, len(text))] if text else []


def filled(code: Ebnf, example: str, slots: Mapping[str, Any], dice: random.Random) -> str:
    """A redacted text with values as they are."""
    return substituted(example, slots, dice)


def mistakes(code: Ebnf) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What is wrong with the grammar, as (place, sentence)."""
    sentence = _wrong(code)
    if sentence:
        yield ("grammar",), sentence


def _wrong(code: Ebnf) -> str | None:
    from llguidance.gbnf_to_lark import GbnfToLarkError, GrammarParser

    text = code.grammar
    names = _RULE.findall(text)
    if "root" not in names:
        return "has no rule root, with which every text begins; write root ::= …"
    if len(names) > MAX_RULES:
        return f"has over {MAX_RULES:,} rules; keep those that one purpose needs"
    for name in names:
        if names.count(name) > 1:
            return f"has the rule {name} twice; remove one"
    for found in _TOKEN.finditer(text):
        if found[0] == ".":
            return f"has a dot in {_place(text, found.start())}, which engines read differently; write [^\\n]"
    for found in _TOKEN.finditer(text):
        if found[0].isdecimal() and len(found[0]) > 4:
            return f"has a repeat of {brief(found[0])} in {_place(text, found.start())}; write 9999 at most"
    try:
        rules = GrammarParser().parse(text)
    except GbnfToLarkError as error:
        return f"cannot be read in {_place(text, error.pos.pos)}: {str(error).partition(' at line')[0].lower()}"
    except (ValueError, IndexError):
        return 'cannot be read; write rules such as root ::= "yes" | "no"'
    except RecursionError:
        return "is nested too deeply"
    used = {name: set(_references(rule.alternatives)) for name, rule in rules.items()}
    for name, others in used.items():
        for other in sorted(others - used.keys()):
            return f"has no rule {other}, which the rule {name} names"
    idle = _endless(rules)
    if "root" in idle:
        return "matches no text, since its rule root never comes to an end; give a rule a way without itself"
    for name in rules:
        if name in idle:
            return f"has the rule {name}, which never comes to an end; give it a way without itself"
    try:
        _matcher(grammar(code))
    except ValueError as error:
        return str(error)
    return None


def _place(text: str, at: int) -> str:
    """The line and the rule that a character stands in."""
    before = [found for found in _RULE.finditer(text) if found.start() <= at]
    line = text.count("\n", 0, at) + 1
    return f"line {line}" + (f" (rule {before[-1][1]})" if before else "")


def _references(node: Any) -> Iterator[str]:
    """The names of the rules that an expression uses."""
    from llguidance.gbnf_to_lark import RuleRefNode

    if isinstance(node, RuleRefNode):
        yield node.name
    for inner in node.children():
        yield from _references(inner)


def _endless(rules: Mapping[str, Any]) -> set[str]:
    """The rules that no text fits, however long."""
    from llguidance.gbnf_to_lark import AlternativeNode, RepetitionNode, RuleRefNode

    ending: set[str] = set()

    def ends(node: Any) -> bool:
        if isinstance(node, RuleRefNode):
            return node.name in ending
        if isinstance(node, AlternativeNode):
            return any(map(ends, node.children()))
        if isinstance(node, RepetitionNode) and node.min_times == 0:
            return True
        return all(map(ends, node.children()))

    users: dict[str, list[str]] = defaultdict(list)
    for name, rule in rules.items():
        for used in _references(rule.alternatives):
            users[used].append(name)
    waiting = [*rules]
    while waiting:
        name = waiting.pop()
        if name not in ending and ends(rules[name].alternatives):
            ending.add(name)
            waiting += users[name]
    return rules.keys() - ending


@lru_cache(maxsize=256)
def _matcher(text: str) -> LLMatcher:
    """The grammar over single bytes; ValueError, a sentence's end, if llguidance does not take it."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    from synthspec.grammar.bytewise import byte_matcher

    try:
        lark = gbnf_to_lark(text)
    except Exception as error:  # the converter raises bare ones
        if "already exists" in str(error):
            raise ValueError(
                "has rules whose names differ in -, _ and capitals alone, or one called start; rename one"
            ) from None
        raise ValueError('cannot be read; write rules such as root ::= "yes" | "no"') from None
    try:
        return byte_matcher(lark, MAX_ITEMS)
    except ValueError as error:
        raise ValueError(_told(str(error), lark, text)) from None


def _told(error: str, lark: str, text: str) -> str:
    """llguidance's reason, with the rule of the person's grammar that it is about."""
    lines = [line.strip() for line in error.splitlines()]
    reason = next(
        (line[7:] for line in lines if line.startswith("error: ")), lines[0].partition(": ")[2] or lines[0]
    )
    where = ""
    if found := re.match(r"at (\d+)\(", error):
        above = "\n".join(lark.splitlines()[: int(found[1])])
        converted = re.findall(r"^(\w+):", above, re.MULTILINE)[-1].lower()
        names = {
            re.sub("([a-z])([A-Z])", r"\1_\2", name.replace("-", "_")).lower(): name
            for name in _RULE.findall(text)
        }
        where = f" (rule {'root' if converted.startswith('whole_') else names.get(converted, converted)})"
    return f"cannot be enforced while decoding{where}: {reason}"
