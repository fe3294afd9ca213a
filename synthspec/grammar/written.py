"""What is neither calls nor JSON: code of a language, and text of a template."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, TypeAdapter

from synthspec.files import canonical
from synthspec.grammar import code, text
from synthspec.grammar.code import Code, regex
from synthspec.grammar.constraint import Constraint, Ebnf, Regex
from synthspec.spec import Part

if TYPE_CHECKING:
    from synthspec.grammar.redacted import Fill


class Templates(Part):
    """Texts with marks, one of which a completion follows."""

    language: Literal["text"] = "text"
    templates: tuple[str, ...] = Field(min_length=1)


Written = Code | Templates

_ADAPTER: TypeAdapter[Written] = TypeAdapter(Written)


def constraint(written: Written) -> Constraint:
    """What a target is held to."""
    plain = written.model_dump(mode="json")
    if isinstance(written, Templates):
        return Constraint(Ebnf(text.grammar(written.templates)), written=plain)
    said = code.grammar(written)
    return Constraint(Regex(said) if isinstance(written, regex.Regex) else Ebnf(said), written=plain)


def problem(written: Written, value: Any) -> str | None:
    """Why a text is not what is asked for, in words without its values; None if it is."""
    if not isinstance(value, str):
        return "it is no text"
    if isinstance(written, Templates):
        return text.problem(written.templates, value)
    return code.problem(written, value)


def values(written: Mapping[str, Any], told: str) -> list[tuple[int, int]]:
    """Where users' values stand in a text, as [start, end) in characters.

    Args:
        written: a `Written` as JSON.
    """
    found = _read(canonical(written))
    if isinstance(found, Templates):
        return text.values(found.templates, told)
    return code.values(found, told)


@lru_cache(maxsize=64)
def _read(written: str) -> Written:
    return _ADAPTER.validate_json(written)


def filler(written: Written, example: str) -> Fill:
    """How an example is filled."""

    def fill(slots: Mapping[str, Any], dice: random.Random) -> str:
        if isinstance(written, Templates):
            return text.filled(example, slots, dice)
        return code.filled(written, example, slots, dice)

    return fill
