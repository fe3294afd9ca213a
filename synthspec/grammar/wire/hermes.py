"""Tool calls as the Hermes and Qwen 2.5 and 3 families write them: JSON between `<tool_call>` tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from synthspec.grammar.wire.jsontext import decode, dumps

if TYPE_CHECKING:
    from synthspec.grammar.constraint import Constraint
    from synthspec.grammar.model import Grammar

KINDS = frozenset({"tool_call"})

BEGIN = "<tool_call>\n"
END = "\n</tool_call>"

_OPEN = re.compile(r"\s*<tool_call>\s*")
_CLOSE = re.compile(r"\s*</tool_call>\s*")


def write(value: Any) -> str:
    """The text of one call `{name, arguments}`, or of a list of calls, one under the other."""
    calls: Sequence[Any] = value if isinstance(value, list) else [value]
    return "\n".join(BEGIN + dumps(call) + END for call in calls)


def parse(text: str) -> list[dict[str, Any]]:
    """The calls of a whole text, at least one.

    The JSON is read before its closing tag is looked for, so that a string may hold the tag.

    Raises:
        ValueError: there is text outside of the tags, or no call between them.
    """
    calls: list[dict[str, Any]] = []
    at = 0
    while opened := _OPEN.match(text, at):
        call, at = decode(text, opened.end())
        closed = _CLOSE.match(text, at)
        if not closed:
            raise ValueError(f"the tool call has no </tool_call> at character {at}")
        if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
            raise ValueError("a tool call is an object of name and arguments, and nothing else")
        if not isinstance(call["name"], str) or not isinstance(call["arguments"], dict):
            raise ValueError("a tool call's name is a text and its arguments are an object")
        calls.append(call)
        at = closed.end()
    if at < len(text) or not calls:
        raise ValueError(f"there is no <tool_call> at character {at}")
    return calls


def constraint(grammar: Grammar) -> Constraint:
    """Exactly one call."""
    from synthspec.grammar.constraint import Constraint
    from synthspec.grammar.schemas import call_schema

    schema = call_schema({tool.name: tool.parameters for tool in grammar.tools})
    return Constraint(BEGIN, schema, END, own=("name",))
