"""Jinja templates that people write, rendered where they can reach nothing but their values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False
)

_FAILURES = (
    TemplateError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    MemoryError,
    RecursionError,
)


def variables(source: str) -> set[str]:
    """The names that a template uses and does not set itself; ValueError if it is no template."""
    try:
        return meta.find_undeclared_variables(_ENVIRONMENT.parse(source))
    except TemplateError as error:
        raise ValueError(_told(error)) from None


def render_template(source: str, values: Mapping[str, Any]) -> str:
    """The text of a template with its values.

    Raises:
        ValueError: it is no template, uses a name without a value, or reaches for what it may not. Its text
            may quote a value; the exception behind it (`__cause__`) says what kind of failure it is.
    """
    try:
        return _compiled(source).render(values)
    except _FAILURES as error:
        raise ValueError(_told(error)) from error


@lru_cache(maxsize=512)
def _compiled(source: str) -> Template:
    return _ENVIRONMENT.from_string(source)


def _told(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    text = str(error).strip() or type(error).__name__
    return f"{text} (line {line} of the template)" if line else text
