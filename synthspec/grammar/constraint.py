"""What a completion is held to while it is decoded, whatever engine decodes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from torch import Tensor

THOUGHT_BEGINS, THOUGHT_ENDS = "<think>", "</think>"


@dataclass(frozen=True)
class Text:
    """A fixed text; the names of special tokens in it stand for the tokens, where a tokenizer has them."""

    text: str


@dataclass(frozen=True)
class Json:
    """A JSON value of a schema without references; properties come in the order written."""

    schema: dict[str, Any]


@dataclass(frozen=True)
class Regex:
    """A text that a regular expression matches from its beginning to its end."""

    pattern: str


@dataclass(frozen=True)
class Free:
    """Text of one's own, up to what follows it.

    Args:
        without: texts that it does not hold; what follows, if anything does, begins with one of them.
        least, most: number of characters; most None: no limit.
        pattern: a regular expression that it also matches from its beginning to its end.
    """

    without: tuple[str, ...]
    least: int = 0
    most: int | None = None
    pattern: str = ""


@dataclass(frozen=True)
class Row:
    """Parts one after the other."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Choice:
    """One of some parts."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Repeat:
    """A part again and again.

    Args:
        least, most: how often; most None: no limit.
        between: a text between two of them.
    """

    part: Part
    least: int = 0
    most: int | None = None
    between: str = ""


@dataclass(frozen=True)
class Ebnf:
    """A person's own grammar, in the EBNF of llama.cpp that engines share; its first rule is `root`."""

    grammar: str


Part = Text | Json | Regex | Free | Row | Choice | Repeat | Ebnf


@dataclass(frozen=True)
class Constraint:
    """What a whole completion must be.

    Args:
        part: its text.
        wire_format: how tool calls are written in it; empty where it holds none.
        tools: by the name of each tool that may be called the schema of its arguments, which is empty where
            reading the calls does not need it; none, where every tool of the grammar may be.
        written: for code and text, the `Written` of its grammar as JSON, which tells where values stand.
        thinks: whether the target thinks before it: free text that ends with `</think>`.
    """

    part: Part
    wire_format: str = ""
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: dict[str, Any] | None = None
    thinks: bool = False

    def to_json(self) -> str:
        # Keys keep their order, because the order of properties is part of the constraint.
        whole: dict[str, Any] = {
            "part": _plain(self.part),
            "wire_format": self.wire_format,
            "tools": self.tools,
        }
        if self.written is not None:
            whole["written"] = self.written
        if self.thinks:
            whole["thinks"] = True
        return json.dumps(whole, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Constraint:
        whole = json.loads(text)
        named = {name: whole[name] for name in ("written", "thinks") if name in whole}
        return cls(_part(whole["part"]), whole["wire_format"], whole["tools"], **named)

    @property
    def whole(self) -> Part:
        """What is decoded: the part, behind a thought where the target thinks.

        A template may have begun the thought already.
        """
        if not self.thinks:
            return self.part
        thought = Free((THOUGHT_ENDS,))
        begun = choice([row(Text(THOUGHT_BEGINS), thought), thought])
        return row(begun, Text(THOUGHT_ENDS), choice([Text("\n\n"), Text("\n"), Text("")]), self.part)

    def lark(self, special: Mapping[str, int] | None = None) -> str:
        """The constraint for llguidance.

        Args:
            special: ids of the tokenizer's special tokens by their text.
        """
        from synthspec.grammar.engines import lark

        return lark(self.whole, special or {})

    def sglang(self) -> dict[str, str]:
        """The constraint as sampling parameters of SGLang 0.5.23 (its default backend, xgrammar)."""
        from synthspec.grammar.engines import sglang

        return sglang(self.whole)

    def vllm(self) -> dict[str, Any]:
        """The constraint as `structured_outputs` of a request to vLLM."""
        from synthspec.grammar.engines import vllm

        return vllm(self.whole)


def row(*parts: Part) -> Part:
    """Parts one after the other: rows inside are opened, texts side by side joined, empty ones dropped."""
    flat: list[Part] = []
    for part in parts:
        for one in part.parts if isinstance(part, Row) else (part,):
            if isinstance(one, Text) and flat and isinstance(flat[-1], Text):
                flat[-1] = Text(flat[-1].text + one.text)
            elif one != Text(""):
                flat.append(one)
    return flat[0] if len(flat) == 1 else Row(tuple(flat))


def choice(parts: Sequence[Part]) -> Part:
    """One of some parts."""
    return parts[0] if len(parts) == 1 else Choice(tuple(parts))


def repeat(part: Part, least: int, most: int | None, between: str = "") -> Part:
    """A part again and again, see `Repeat`; simply the part where it comes once."""
    if most == 0:
        return Text("")
    return part if (least, most) == (1, 1) else Repeat(part, least, most, between)


def parts_of(part: Part) -> Iterator[Part]:
    """A part and all parts inside it."""
    yield part
    match part:
        case Row(parts) | Choice(parts):
            for inner in parts:
                yield from parts_of(inner)
        case Repeat(inner):
            yield from parts_of(inner)


def problem(constraint: Constraint) -> str | None:
    """Why llguidance cannot honour a constraint, in one line, or None if it can."""
    from synthspec.grammar.engines import unsupported

    return next(iter(unsupported(constraint, "llguidance")), None)


class TokenConstraint:
    """A constraint on its way through one completion; fits `synthspec.targets.generate.Constraint`."""

    def __init__(self, matcher: LLMatcher, end_ids: frozenset[int], vocabulary: int) -> None:
        self._matcher = matcher
        self._words = (vocabulary + 31) // 32
        self._end_ids = end_ids
        # The end token is kept here: the matcher would not always count it for `rollback`.
        self._ended = False

    @property
    def finished(self) -> bool:
        """Whether the end token has been accepted."""
        return self._ended

    def fill(self, bitmask: Tensor, row: int) -> None:
        """Write the tokens allowed next into row `row` of an int32 bitmask [rows, ⌈vocabulary / 32⌉].

        After the end token only end tokens are allowed; columns behind the tokenizer's last token never.
        """
        words = bitmask[row]
        if len(words) < self._words:
            raise ValueError(f"a bitmask of {len(words)} words is too small for {self._words}")
        words[self._words :] = 0
        if self._ended:
            words.zero_()
            for token in self._end_ids:
                words[token // 32] |= (1 << (token % 32)) - ((1 << 32) if token % 32 == 31 else 0)
            return
        self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), self._words * words.element_size())
        self._check()

    def accept(self, token: int) -> None:
        """Move on by one token; ValueError if it is not allowed."""
        if self._ended or token in self._end_ids:
            if not self.allows(token):
                raise ValueError(f"token {token} does not end this constraint here")
            self._ended = True
            return
        self._matcher.consume_token(token)
        self._check()

    def allows(self, token: int) -> bool:
        """Whether the token may come next, as `fill` says it."""
        if self._ended:
            return False
        if token in self._end_ids:
            return bool(self._matcher.is_accepting()) or self._takes(token)
        # Where the text is forced, the tokenizer's own way to cut it is the only one allowed.
        forced = self._matcher.compute_ff_tokens()
        if forced:
            return bool(token == forced[0])
        return bool(self._matcher.validate_tokens([token]) == 1)

    def _takes(self, token: int) -> bool:
        # An end token that the wire format itself writes: llguidance consumes it, but does not validate it.
        ahead = self._matcher.deep_copy()
        return bool(ahead.consume_token(token)) and not ahead.is_error()

    def rollback(self, tokens: int) -> None:
        """Take the last accepted tokens back."""
        if tokens and self._ended:
            self._ended = False
            tokens -= 1
        if tokens:
            self._matcher.rollback(tokens)
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())


class TokenConstraints:
    """Makes token constraints for one tokenizer; each distinct constraint is compiled once.

    Args:
        tokenizer: a Hugging Face fast tokenizer.
        end_ids: tokens that end an answer; by default the tokenizer's end token.
    """

    def __init__(self, tokenizer: Any, end_ids: Sequence[int] = ()) -> None:
        from synthspec.grammar.tokens import ll_tokenizer, special_tokens

        self._tokenizer: LLTokenizer = ll_tokenizer(tokenizer, tuple(end_ids))
        self._end_ids = frozenset(end_ids) or frozenset({int(tokenizer.eos_token_id)})
        self._special = special_tokens(tokenizer)
        self._compiled: dict[str, LLMatcher] = {}

    def compile(self, constraint: str) -> TokenConstraint:
        """A fresh token constraint from a constraint's JSON; ValueError if llguidance cannot honour it."""
        if constraint not in self._compiled:
            from llguidance import LLMatcher

            lark = Constraint.from_json(constraint).lark(self._special)
            matcher = LLMatcher(self._tokenizer, lark, log_level=0)
            if matcher.is_error():
                raise ValueError(matcher.get_error())
            self._compiled[constraint] = matcher
        matcher = self._compiled[constraint].deep_copy()
        return TokenConstraint(matcher, self._end_ids, self._tokenizer.vocab_size)


def _plain(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"text": text}
        case Json(schema):
            return {"json": schema}
        case Regex(pattern):
            return {"regex": pattern}
        case Free(without, least, most, pattern):
            return {"free": list(without), "least": least, "most": most, "pattern": pattern}
        case Row(parts):
            return {"row": [_plain(inner) for inner in parts]}
        case Choice(parts):
            return {"choice": [_plain(inner) for inner in parts]}
        case Repeat(inner, least, most, between):
            return {"repeat": _plain(inner), "least": least, "most": most, "between": between}
        case Ebnf(grammar):
            return {"ebnf": grammar}


def _part(plain: dict[str, Any]) -> Part:
    match plain:
        case {"text": text}:
            return Text(text)
        case {"json": schema}:
            return Json(schema)
        case {"regex": pattern}:
            return Regex(pattern)
        case {"free": without}:
            return Free(tuple(without), plain["least"], plain["most"], plain["pattern"])
        case {"row": parts}:
            return Row(tuple(map(_part, parts)))
        case {"choice": parts}:
            return Choice(tuple(map(_part, parts)))
        case {"repeat": inner}:
            return Repeat(_part(inner), plain["least"], plain["most"], plain["between"])
        case _:
            return Ebnf(plain["ebnf"])
