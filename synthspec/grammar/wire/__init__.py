"""How a target writes its answer: one module per wire format, all with the same four names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from synthspec.grammar.wire import hermes, json

if TYPE_CHECKING:
    from synthspec.grammar.constraint import Constraint
    from synthspec.grammar.model import Grammar


class Wire(Protocol):
    """What a module of a wire format holds."""

    KINDS: frozenset[str]  # the kinds of grammar that it can write

    def write(self, value: Any) -> str:
        """The text of a value: a tool call {name, arguments} or a list of them, or an extraction's value."""

    def parse(self, text: str) -> Any:
        """The value of a whole text; ValueError, in words, if it is not this format."""

    def constraint(self, grammar: Grammar) -> Constraint:
        """What a target has to be held to, so that it writes this format."""


FORMATS: dict[str, Wire] = {"hermes": hermes, "json": json}


def write(grammar: Grammar, value: Any) -> str:
    """A value as the grammar's target writes it."""
    return FORMATS[grammar.wire_format].write(value)


def parse(grammar: Grammar, text: str) -> Any:
    """The value of a whole completion; ValueError, in words, if it is not in the grammar's format."""
    return FORMATS[grammar.wire_format].parse(text)


def constraint(grammar: Grammar) -> Constraint:
    """What a completion of the grammar is held to."""
    return FORMATS[grammar.wire_format].constraint(grammar)
