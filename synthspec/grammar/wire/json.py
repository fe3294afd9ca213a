"""The bare JSON value: an extraction's object, or one tool call `{"name": ..., "arguments": ...}`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synthspec.grammar.wire.jsontext import dumps, loads

if TYPE_CHECKING:
    from synthspec.grammar.constraint import Constraint
    from synthspec.grammar.model import Grammar

KINDS = frozenset({"tool_call", "extraction"})


def write(value: Any) -> str:
    """The text of any JSON value."""
    return dumps(value)


def parse(text: str) -> Any:
    """The value of a whole text; ValueError, in words, if it is not JSON."""
    return loads(text)


def constraint(grammar: Grammar) -> Constraint:
    """One value of the grammar's schema, or one call of one of its tools."""
    from synthspec.grammar.constraint import Constraint
    from synthspec.grammar.schemas import bounded, call_schema, inlined

    if grammar.kind == "tool_call":
        schema = call_schema({tool.name: tool.parameters for tool in grammar.tools})
        return Constraint("", schema, "", own=("name",))
    return Constraint("", bounded(inlined(grammar.schema_ or {})), "")
