"""What a completion is held to while it is decoded, and the engines' ways to say it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from torch import Tensor

# `{"a": 1, "b": 2}`: the spaces that models trained on Python's json.dumps write.
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class Constraint:
    """A JSON value between two fixed texts, independent of any engine.

    Args:
        begin: the text before the value.
        schema: JSON Schema of the value, without references; its properties come in the order written.
        end: the text behind it.
        own: keys of the outermost object whose values are the wire format's own and never a user's, such
            as the name of a tool.
    """

    begin: str
    schema: dict[str, Any]
    end: str
    own: tuple[str, ...] = ()

    def to_json(self) -> str:
        # Keys keep their order, because the order of properties is part of the constraint.
        parts = {"begin": self.begin, "schema": self.schema, "end": self.end, "own": self.own}
        return json.dumps(parts, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Constraint:
        parts = json.loads(text)
        return cls(parts["begin"], parts["schema"], parts["end"], tuple(parts["own"]))

    def lark(self) -> str:
        """The constraint as a grammar for llguidance."""
        schema = json.dumps({**self.schema, "x-guidance": _SPACES})
        parts = [_literal(self.begin), "body", _literal(self.end)]
        return f"%llguidance {{}}\nstart: {' '.join(filter(None, parts))}\nbody: %json {schema}\n"

    def sglang(self) -> dict[str, str]:
        """The constraint as sampling parameters of SGLang 0.5.23 (its default backend, xgrammar).

        Inside a bare `json_schema` the server decides about spaces: start it with
        `--constrained-json-disable-any-whitespace` to get those of `lark`.  A `structural_tag` allows
        none or one at a time, so that a model cannot fill its answer with them.
        """
        if not self.begin and not self.end:
            return {"json_schema": json.dumps(self.schema)}
        content = {"type": "json_schema", "json_schema": self.schema, "max_whitespace_cnt": 1}
        tag = {"type": "tag", "begin": self.begin, "content": content, "end": self.end}
        return {"structural_tag": json.dumps({"type": "structural_tag", "format": tag})}


def problem(constraint: Constraint) -> str | None:
    """Why llguidance cannot honour a constraint, in one line, or None if it can."""
    from llguidance import LLMatcher

    wrong, messages = LLMatcher.validate_grammar_with_warnings(constraint.lark())
    if not wrong:
        return None
    first = str(messages[0]).splitlines()[0]
    return first.partition("failed to compile JSON schema: ")[2] or first


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
        if self._ended or token in self._end_ids:
            return not self._ended and bool(self._matcher.is_accepting())
        # Where the text is forced, the tokenizer's own way to cut it is the only one allowed.
        forced = self._matcher.compute_ff_tokens()
        if forced:
            return bool(token == forced[0])
        return bool(self._matcher.validate_tokens([token]) == 1)

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
        from synthspec.grammar.tokens import ll_tokenizer

        self._tokenizer: LLTokenizer = ll_tokenizer(tokenizer, tuple(end_ids))
        self._end_ids = frozenset(end_ids) or frozenset({int(tokenizer.eos_token_id)})
        self._compiled: dict[str, LLMatcher] = {}

    def compile(self, constraint: str) -> TokenConstraint:
        """A fresh token constraint from a constraint's JSON; ValueError if llguidance cannot honour it."""
        if constraint not in self._compiled:
            from llguidance import LLMatcher

            matcher = LLMatcher(self._tokenizer, Constraint.from_json(constraint).lark(), log_level=0)
            if matcher.is_error():
                raise ValueError(matcher.get_error())
            self._compiled[constraint] = matcher
        matcher = self._compiled[constraint].deep_copy()
        return TokenConstraint(matcher, self._end_ids, self._tokenizer.vocab_size)


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""
