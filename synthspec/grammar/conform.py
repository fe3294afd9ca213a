"""Whether a completion is what its grammar says, and what each of its tokens is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from llguidance import LLMatcher

from synthspec.grammar import wire, written
from synthspec.grammar.bytewise import byte_matcher
from synthspec.grammar.constraint import THOUGHT_BEGINS, THOUGHT_ENDS, Constraint, Json
from synthspec.grammar.examples import is_call
from synthspec.grammar.schemas import validator_of
from synthspec.grammar.tokens import TokenTable, split_end, token_table
from synthspec.grammar.wire.answer import Answer, Calls
from synthspec.grammar.wire.jsontext import scan
from synthspec.grammar.wire.reader import Range, read

if TYPE_CHECKING:
    from synthspec.grammar.model import Grammar

MAX_REASON = 200  # characters
_THOUGHT = re.compile(rb".*?</think>\s*", re.DOTALL)

# What a byte is; of a token's bytes the largest decides what the token is.
_FORCED, _STRUCTURE, _FREE, _VALUE = 0, 1, 2, 3  # new bytes are 0: forced
_KINDS = ("forced", "structure", "free", "value")


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
        value: what a kept completion of a grammar says: a text, an extraction's value, or an `Answer`.
    """

    state: str
    spans: tuple[Span, ...] = ()
    reason: str = ""
    value: Any = None


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
        request: a row with `purpose`, `constraint` (JSON, or None for the grammar's own), and `turn` where the
            answer is not the last one of its conversation.
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
    own = _own_tokens((grammar and grammar.wire_format) or "", table)
    text_ids, _ = split_end(ids, table, own)
    if grammar is None:
        if request["purpose"] == "replay" and (reason := _degenerate(text_ids)):
            return Verdict("degenerate", reason=reason)
        return Verdict("kept", tuple(label(None, ids, tokenizer)))
    if finish_reason == "length":
        return Verdict("truncated", reason=f"it was not finished after {len(ids)} tokens")
    if not (table.special - own).isdisjoint(text_ids):
        return Verdict("invalid", reason="it holds a special token before its end")
    written_down = b"".join(table.bytes_of[token] for token in text_ids)
    try:
        text = written_down[_thought(written_down) :].decode()
    except UnicodeDecodeError:
        return Verdict("invalid", reason="it is not UTF-8")
    constraint = request.get("constraint") or grammar.constraint.to_json()
    calls = wire.calls_of(grammar, request.get("turn"))
    verdict = judge_text(grammar, text, _constraint(constraint).tools, calls)
    if verdict.state != "kept":
        return verdict
    return replace(verdict, spans=tuple(label(constraint, ids, tokenizer)))


def _thought(text: bytes) -> int:
    """How many bytes of a text are what the target thought before it answered."""
    found = _THOUGHT.match(text)
    return found.end() if found else 0


def judge_text(grammar: Grammar, text: str, shown: Collection[str] = (), calls: Calls | None = None) -> Verdict:
    """Whether a finished text is what a grammar says; kept or invalid, without spans.

    Args:
        shown: names of the tools that may be called; none: all of the grammar's.
        calls: how many it makes; None: as the grammar's last answers do.
    """
    try:
        value = wire.parse(grammar, text)
        wrong = violation(grammar, value, calls)
        if not wrong and shown and any(call.name not in shown for call in value.calls):
            wrong = "it calls a tool that may not be called here"
    except (UnicodeError, SyntaxError):
        return Verdict("invalid", reason="it holds a text or number that cannot be read")
    except RecursionError:
        return Verdict("invalid", reason="it is nested too deeply")
    except ValueError as error:
        return Verdict("invalid", reason=str(error)[:MAX_REASON])
    return Verdict("invalid", reason=wrong) if wrong else Verdict("kept", value=value)


def label(constraint: str | None, ids: Sequence[int], tokenizer: Any) -> list[Span]:
    """What each token of a completion is, also of one that was cut off; the spans partition it.

    Decided on bytes: a token that holds a byte of a value is `value`, else one with a byte where the
    constraint allows more than one to follow `free`, where it stands in plain text, or `structure`, else
    `forced`.  What the target thought before it answered is `free`.  End tokens are `forced`, and so is a
    value that the constraint forces from its first byte to its last.

    Args:
        constraint: JSON of a `Constraint`; None: everything is `free`.
        ids: token ids of the completion, all in the vocabulary.
        tokenizer: a Hugging Face fast tokenizer.
    """
    if constraint is None:
        return [Span("free", 0, len(ids))] if ids else []
    table = token_table(tokenizer)
    held = _constraint(constraint)
    text_ids, end_ids = split_end(ids, table, _own_tokens(held.wire_format, table))
    pieces = [table.bytes_of[token] for token in text_ids]
    text = b"".join(pieces)
    thought = _thought(text) or (len(text) if held.thinks else 0)
    text = text[thought:]
    kinds = _byte_kinds(text, constraint)
    free, values = _places(text, held)
    for start, end in free:
        kinds[start:end] = bytes(kind and _FREE for kind in kinds[start:end])
    for start, end in values:
        if any(kinds[start:end]):
            kinds[start:end] = bytes([_VALUE]) * (end - start)
    kinds = bytearray([_FREE]) * thought + kinds
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


def violation(grammar: Grammar, value: Any, calls: Calls | None = None) -> str | None:
    """Why a parsed value is not what the grammar says; None if it is.

    JSON Schema draft 2020-12, formats asserted.  The reason names places and keywords, never values.

    Args:
        value: a text, an extraction's value, an `Answer`, one call {name, arguments}, or a list of calls.
        calls: how many it makes; None: as the grammar's last answers do.
    """
    if grammar.written is not None:
        return written.problem(grammar.written, value)
    if grammar.kind == "extraction":
        return _first_error(_validators(grammar)[""], value, "")
    if not isinstance(value, Answer):
        listed = value if isinstance(value, list) else [value]
        if not all(map(is_call, listed)):
            return "a call is an object of name and arguments, and nothing else"
        value = wire.answer_of(listed)
    return miscounted(value, calls or wire.calls_of(grammar)) or unfit(grammar, value)


def unfit(grammar: Grammar, value: Any) -> str | None:
    """The same of a value with any number of calls, such as an earlier turn."""
    if not isinstance(value, Answer):
        return violation(grammar, value)
    validators = _validators(grammar)
    for call in value.calls:
        if call.name not in validators:
            return "it calls a tool that the grammar does not have"
        if wrong := _first_error(validators[call.name], call.arguments, f"{call.name}.arguments"):
            return wrong
    return None


def miscounted(answer: Answer, calls: Calls) -> str | None:
    """Why an answer has not as many calls, or as little plain text, as is asked for; None if it has."""
    count = len(answer.calls)
    if answer.text and calls.text == "none":
        return "there is plain text where only calls are asked for"
    if count >= calls.least and (calls.most is None or count <= calls.most):
        return None
    if calls.least == calls.most:
        asked = "one is" if calls.least == 1 else f"{calls.least} are"
    elif calls.most is None:
        asked = f"at least {calls.least} are"
    else:
        asked = f"{calls.least} to {calls.most} are"
    told = "is 1 call" if count == 1 else f"are {count or 'no'} calls"
    return f"there {told} where {asked} asked for"


_VALIDATORS: dict[str, dict[str, Any]] = {}


def _validators(grammar: Grammar) -> dict[str, Any]:
    """Validators by tool name; that of an extraction has the name ''."""
    found = _VALIDATORS.get(grammar.fingerprint)
    if found is None:
        schemas = {tool.name: tool.parameters for tool in grammar.tools}
        if grammar.schema_ is not None:
            schemas = {"": grammar.schema_}
        found = {name: validator_of(schema) for name, schema in schemas.items()}
        _VALIDATORS[grammar.fingerprint] = found
    return found


def _first_error(validator: Any, value: Any, place: str) -> str | None:
    if validator.is_valid(value):
        return None
    error = next(iter(validator.iter_errors(value)))
    # A key that the schema does not name is somebody's value.
    known = set(map(str, error.schema_path))
    path = [str(step) if isinstance(step, int) or step in known else "*" for step in error.instance_path]
    where = ".".join([*([place] if place else []), *path]) or "the value"
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


@lru_cache(maxsize=64)
def _own_tokens(wire_format: str, table: TokenTable) -> frozenset[int]:
    """The special tokens that a wire format, or a thought, writes itself."""
    tags = {THOUGHT_BEGINS, THOUGHT_ENDS, *(wire.FORMATS[wire_format].TAGS if wire_format else ())}
    return frozenset(token for token in table.special if table.bytes_of[token].decode(errors="replace") in tags)


def _places(text: bytes, constraint: Constraint) -> tuple[list[Range], list[Range]]:
    """Where plain text and where users' values stand, as [start, end) in bytes."""
    # A character that is cut off keeps its bytes.
    told = text.decode(errors="surrogateescape")
    free: Sequence[Range] = ()
    values: Sequence[Range] = ()
    if constraint.wire_format:
        reading = read(wire.FORMATS[constraint.wire_format], told, constraint.tools)
        free, values = reading.free, reading.values
    elif constraint.written is not None:
        values = written.values(constraint.written, told)
    elif isinstance(constraint.part, Json):
        values = scan(told, 0)
    if len(told) == len(text):
        return list(free), list(values)
    at = [0, *accumulate(len(one.encode(errors="surrogateescape")) for one in told)]
    return [(at[start], at[end]) for start, end in free], [(at[start], at[end]) for start, end in values]


@lru_cache(maxsize=1024)
def _constraint(constraint: str) -> Constraint:
    return Constraint.from_json(constraint)


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
    return byte_matcher(replace(_constraint(constraint), thinks=False).lark())
