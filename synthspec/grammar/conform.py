"""Whether a completion is what its grammar says, and what each of its tokens is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import jsonschema_rs
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from synthspec.grammar import wire
from synthspec.grammar.constraint import Constraint
from synthspec.grammar.tokens import split_end, token_table
from synthspec.grammar.wire.jsontext import scan

if TYPE_CHECKING:
    from synthspec.grammar.model import Grammar

MAX_REASON = 200  # characters

# What a byte is; of a token's bytes the largest decides what the token is.
_FORCED, _STRUCTURE, _VALUE = 0, 1, 2  # new bytes are 0: forced
_KINDS = ("forced", "structure", "value")


class Span(NamedTuple):
    """The tokens [start, end) of a completion, all of one kind: forced, structure, value or free."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class Verdict:
    """What became of a completion.

    Args:
        state: kept, truncated, invalid, degenerate or error.
        spans: for a kept completion the kinds of its tokens; they partition it, end token included.
        reason: why it was not kept, without its text; empty for a kept one.
    """

    state: str
    spans: tuple[Span, ...] = ()
    reason: str = ""


def conform(
    request: Mapping[str, Any], completion: Mapping[str, Any], grammar: Grammar | None, tokenizer: Any
) -> Verdict:
    """The stage's word on one completion; see `judge`.

    Args:
        request, completion: rows of `samples.schema.REQUESTS` and `COMPLETIONS`.
    """
    return judge(request, completion["ids"], completion["finish_reason"], grammar, tokenizer)


def judge(
    request: Mapping[str, Any],
    completion_ids: Sequence[int],
    finish_reason: str,
    grammar: Grammar | None,
    tokenizer: Any,
) -> Verdict:
    """Judge one completion, independently of the engine that wrote it.

    A free answer (no grammar) is kept also when its length was the end of it: it is merely cut.

    Args:
        request: a row with `purpose` and `constraint` (JSON, or None for the grammar's own).
        completion_ids: what the target wrote, the end token included.
        finish_reason: `stop` or `length`; anything else is the engine's error.
        grammar: what the completion must be, or None for a free answer.
        tokenizer: the target's, a Hugging Face fast tokenizer.
    """
    ids = list(completion_ids)
    if finish_reason not in ("stop", "length"):
        return Verdict("error", reason=f"the engine ended it with {finish_reason!r}")
    table = token_table(tokenizer)
    if not all(0 <= token < len(table.bytes_of) for token in ids):
        return Verdict("error", reason="it holds a token id that the tokenizer does not have")
    text_ids, _ = split_end(ids, table)
    if grammar is None:
        if request["purpose"] == "replay" and (reason := _degenerate(text_ids)):
            return Verdict("degenerate", reason=reason)
        return Verdict("kept", tuple(label(None, ids, tokenizer)))
    if finish_reason == "length":
        return Verdict("truncated", reason=f"it was not finished after {len(ids)} tokens")
    if not table.special.isdisjoint(text_ids):
        return Verdict("invalid", reason="it holds a special token before its end")
    try:
        value = wire.parse(grammar, b"".join(table.bytes_of[token] for token in text_ids).decode())
    except UnicodeDecodeError:
        return Verdict("invalid", reason="it is not UTF-8")
    except ValueError as error:
        return Verdict("invalid", reason=str(error)[:MAX_REASON])
    if wrong := violation(grammar, value):
        return Verdict("invalid", reason=wrong)
    constraint = request.get("constraint") or grammar.constraint.to_json()
    return Verdict("kept", tuple(label(constraint, ids, tokenizer)))


def label(constraint: str | None, ids: Sequence[int], tokenizer: Any) -> list[Span]:
    """What each token of a completion is, also of one that was cut off; the spans partition it.

    Decided on bytes: a token that holds a byte of a value is `value`, else one with a byte where the
    constraint allows more than one to follow `structure`, else `forced`.  End tokens are `forced`, and
    so is a value that the constraint forces from its first byte to its last.

    Args:
        constraint: JSON of a `Constraint`; None: everything is `free`.
        ids: token ids of the completion, all in the vocabulary.
        tokenizer: a Hugging Face fast tokenizer.
    """
    if constraint is None:
        return [Span("free", 0, len(ids))] if ids else []
    table = token_table(tokenizer)
    text_ids, end_ids = split_end(ids, table)
    pieces = [table.bytes_of[token] for token in text_ids]
    text = b"".join(pieces)
    kinds = _byte_kinds(text, constraint)
    for start, end in _values(text, Constraint.from_json(constraint)):
        if any(kinds[start:end]):
            kinds[start:end] = bytes([_VALUE]) * (end - start)
    ends = accumulate(len(piece) for piece in pieces)
    tokens = [
        max(kinds[end - len(piece) : end], default=_FORCED) for piece, end in zip(pieces, ends, strict=True)
    ]
    spans: list[Span] = []
    for index, kind in enumerate([*tokens, *[_FORCED] * len(end_ids)]):
        if spans and spans[-1].kind == _KINDS[kind]:
            spans[-1] = spans[-1]._replace(end=index + 1)
        else:
            spans.append(Span(_KINDS[kind], index, index + 1))
    return spans


def violation(grammar: Grammar, value: Any) -> str | None:
    """Why a parsed value is not what the grammar says (one call, several, or an object); None if it is.

    JSON Schema draft 2020-12, formats asserted.  The reason names places and keywords, never values.
    """
    validators = _validators(grammar)
    if grammar.kind == "extraction":
        return _first_error(validators[""], value, "")
    calls = value if isinstance(value, list) else [value]
    if len(calls) != 1:
        return f"there are {len(calls)} calls where one is asked for"
    for call in calls:
        if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
            return "a call is an object of name and arguments, and nothing else"
        if not isinstance(call["name"], str) or call["name"] not in validators:
            return "it calls a tool that the grammar does not have"
        if wrong := _first_error(validators[call["name"]], call["arguments"], f"{call['name']}.arguments"):
            return wrong
    return None


_VALIDATORS: dict[str, dict[str, Any]] = {}


def _validators(grammar: Grammar) -> dict[str, Any]:
    """Validators by tool name; that of an extraction has the name ''."""
    found = _VALIDATORS.get(grammar.fingerprint)
    if found is None:
        schemas = {tool.name: tool.parameters for tool in grammar.tools}
        if grammar.schema_ is not None:
            schemas = {"": grammar.schema_}
        found = {
            name: jsonschema_rs.Draft202012Validator(schema, validate_formats=True, offline=True)
            for name, schema in schemas.items()
        }
        _VALIDATORS[grammar.fingerprint] = found
    return found


def _first_error(validator: Any, value: Any, place: str) -> str | None:
    if validator.is_valid(value):
        return None
    error = next(iter(validator.iter_errors(value)))
    where = ".".join([*([place] if place else []), *map(str, error.instance_path)]) or "the value"
    if error.kind.name == "required":
        return f"{where} has no {error.kind.property}, which is required"[:MAX_REASON]
    return f"{where} breaks the keyword {error.kind.name}"[:MAX_REASON]


def _degenerate(ids: Sequence[int]) -> str | None:
    """Whether a free answer says nothing, or over half of it the same again."""
    if not ids:
        return "it is empty"
    if len(ids) < 16:
        return None
    if Counter(ids).most_common(1)[0][1] > len(ids) / 2:
        return "over half of it is one token"
    fours = list(zip(ids, ids[1:], ids[2:], ids[3:], strict=False))
    if len(set(fours)) < len(fours) / 2:
        return "over half of its runs of four tokens were there before"
    return None


def _values(text: bytes, constraint: Constraint) -> list[tuple[int, int]]:
    """Where users' values stand, as [start, end) in bytes."""
    begin = constraint.begin.encode()
    # An engine may have put other spaces before the value than the constraint does.
    start = len(begin) if text.startswith(begin) else text.find(b"{")
    return scan(text, start, frozenset(constraint.own)) if start >= 0 else []


def _byte_kinds(text: bytes, constraint: str) -> bytearray:
    """Each byte as `_FORCED` (the constraint allows no other there) or `_STRUCTURE` (it does).

    Where a text leaves the constraint (an engine may write other spaces), all that follows counts as
    `_STRUCTURE`.
    """
    kinds = bytearray([_STRUCTURE]) * len(text)
    matcher = _byte_matcher(constraint).deep_copy()
    at = 0
    while at < len(text):
        forced = matcher.compute_ff_bytes()
        same = 0
        while same < len(forced) and text[at + same : at + same + 1] == forced[same : same + 1]:
            same += 1
        kinds[at : at + same] = bytes(same)
        step = same or 1
        if not matcher.consume_tokens(list(text[at : at + step])):
            break
        at += step
    return kinds


@lru_cache(maxsize=1024)
def _byte_matcher(constraint: str) -> LLMatcher:
    """The constraint over single bytes: what it forces does not depend on any tokenizer."""
    matcher = LLMatcher(_byte_tokenizer(), Constraint.from_json(constraint).lark(), log_level=0)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


class _Bytes:
    """A vocabulary of the 256 bytes and an end token, in the form that llguidance wants."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@lru_cache(maxsize=1)
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])
