"""Jinja templates that people write, rendered where they can reach nothing but their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from synthspec.yamlfile import brief, shown

MAX_RANGE = 100  # items of a range
MAX_LOOPS = 2  # inside each other
MAX_SOURCE = 100_000  # characters of a template
MAX_TAGS = 2_000  # of {{ and {% together
MAX_TEXT = 1_000_000  # characters of a whole text
MAX_STEPS = 20_000  # parts of a template, those of a loop as often as it goes round
MAX_WORK = 3_000_000  # characters and items that filters give in one rendering, together

_OF_A_LOOP = ("first", "index", "index0", "last", "length", "revindex", "revindex0")

# Filters that give hardly more than they take.
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "e", "first", "float", "int", "last", "length", "list",
    "lower", "reverse", "round", "sort", "string", "title", "trim", "truncate", "unique", "upper",
    "wordcount",
)  # fmt: skip
# What reaches out, or makes a text twice as long at each step.
_REFUSED = (
    nodes.Macro, nodes.CallBlock, nodes.Block, nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport,
    nodes.Concat, nodes.AssignBlock, nodes.FilterBlock,
)  # fmt: skip


class _Environment(ImmutableSandboxedEnvironment):
    """Lets templates do what can neither reach out nor go on for long."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A record's field; nothing else has any, and no value a method such as `format`."""
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, LoopContext) and argument in _OF_A_LOOP:
            return getattr(obj, argument)
        try:
            return obj[argument]
        except (LookupError, TypeError, AttributeError):
            return self.undefined(f"there is no {shown(argument)} in it", obj=obj, name=argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic of small numbers only: a text times a million is a text of a million."""
        if not all(isinstance(side, int | float) and abs(side) < 1e12 for side in (left, right)):
            raise SecurityError(f"{operator} is for numbers")
        if operator == "**" and abs(right) > 16:
            raise SecurityError("** is for small exponents")
        return super().call_binop(context, operator, left, right)


def _range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > MAX_RANGE:
        raise SecurityError(f"a range has at most {MAX_RANGE} items")
    return found


def _as_json(value: Any, indent: int | None = None) -> str:
    """A value as JSON: on one line, or with so many spaces a level."""
    if indent is not None and indent not in range(9):
        raise ValueError("tojson indents by 8 spaces at most")
    return json.dumps(value, ensure_ascii=False, indent=indent)


# What filters have given in this rendering; outside of one, where Jinja would work ahead, they give nothing.
_work: ContextVar[list[int] | None] = ContextVar("work", default=None)


def _bounded(name: str) -> Callable[..., Any]:
    """A filter that cannot go on for long: some give twice what they take."""
    given = _ENVIRONMENT.filters[name] if name != "tojson" else _as_json

    def worked(*args: Any, **options: Any) -> Any:
        done = _work.get()
        if done is None:
            raise SecurityError("filters work while a template is rendered")
        found = given(*args, **options)
        found = [*found] if name in ("reverse", "unique") and not isinstance(found, str) else found
        done[0] += len(found) if isinstance(found, str | list | tuple) else 1
        if done[0] > MAX_WORK:
            raise SecurityError("its filters make too much text")
        return found

    return wraps(given)(worked)


_ENVIRONMENT = _Environment(
    undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False
)
_ENVIRONMENT.globals = {"range": _range}
_ENVIRONMENT.filters = {name: _bounded(name) for name in (*_FILTERS, "tojson")}

_FAILURES = (
    TemplateError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    MemoryError,
    RecursionError,
    SyntaxError,
)


def variables(source: str) -> set[str]:
    """The names that a template uses and does not set itself; ValueError if it is no template."""
    try:
        if len(source) > MAX_SOURCE or source.count("{{") + source.count("{%") > MAX_TAGS:
            raise SecurityError(
                f"it has over {MAX_SOURCE:,} characters, or over {MAX_TAGS:,} tags; write it shorter"
            )
        tree = _ENVIRONMENT.parse(source)
        if next(tree.find_all(_REFUSED), None) is not None:
            raise SecurityError("macros, blocks, ~ and other templates are not possible here")
        if any(_is_growing(named) for named in tree.find_all((nodes.Assign, nodes.With))):
            raise SecurityError("a list or a mapping cannot be given a name, only used where it stands")
        if not all(_is_short(loop.iter) for loop in tree.find_all(nodes.For)):
            raise SecurityError("a loop goes over a range or a list that stands there, as in range(3)")
        if _loops(tree) > MAX_LOOPS:
            raise SecurityError(f"loops stand at most {MAX_LOOPS} deep")
        if _steps(tree) > MAX_STEPS:
            raise SecurityError(
                f"it takes over {MAX_STEPS:,} steps; write it shorter, with fewer rounds of loops"
            )
        called = {id(call.node) for call in tree.find_all(nodes.Call)}
        for named in tree.find_all(nodes.Name):
            if named.name in _ENVIRONMENT.globals and id(named) not in called:
                raise SecurityError(f"{named.name} is called, as in {named.name}(3)")
        return meta.find_undeclared_variables(tree) - set(_ENVIRONMENT.globals)
    except _FAILURES as error:
        raise ValueError(_told(error)) from None


def _is_growing(named: nodes.Node) -> bool:
    """Whether a list or mapping gets a name: one of it twice, again and again, would be without end."""
    kinds = (nodes.List, nodes.Tuple, nodes.Dict)
    values = named.iter_child_nodes(exclude=("target", "targets", "body"))
    return any(isinstance(one, kinds) or next(one.find_all(kinds), None) is not None for one in values)


def _is_short(over: nodes.Node) -> bool:
    """Whether what a loop goes over is a `range` or is written out: a prompt may have any length."""
    if isinstance(over, nodes.Call):
        return isinstance(over.node, nodes.Name) and over.node.name == "range"
    return isinstance(over, nodes.List | nodes.Tuple) and len(over.items) <= MAX_RANGE


def _loops(node: nodes.Node) -> int:
    """How deep loops stand inside each other."""
    inside = max((_loops(child) for child in node.iter_child_nodes()), default=0)
    return inside + isinstance(node, nodes.For)


def _steps(node: nodes.Node) -> int:
    """How many parts of a template are worked through, at most."""
    rounds = 1
    if isinstance(node, nodes.For):
        over = node.iter
        rounds = len(over.items) if isinstance(over, nodes.List | nodes.Tuple) else _most(over)
    return 1 + rounds * sum(map(_steps, node.iter_child_nodes()))


def _most(over: nodes.Node) -> int:
    """The rounds of a range, where it says how many."""
    arguments = [one.value for one in getattr(over, "args", ()) if isinstance(one, nodes.Const)]
    if len(arguments) != len(getattr(over, "args", ())) or not all(type(one) is int for one in arguments):
        return MAX_RANGE
    try:
        return min(len(range(*arguments)), MAX_RANGE)
    except (TypeError, ValueError):
        return MAX_RANGE


def render_template(source: str, values: Mapping[str, Any]) -> str:
    """The text of a template with its values.

    Raises:
        ValueError: it is no template, uses a name without a value, or reaches for what it may not. Its text
            may quote a value; the exception behind it (`__cause__`) says what kind of failure it is.
    """
    before = _work.set([0])
    try:
        text = ""
        for piece in _compiled(source).generate(values):
            text += piece
            if len(text) > MAX_TEXT:
                raise SecurityError(f"its text has over {MAX_TEXT:,} characters")
        return text
    except _FAILURES as error:
        raise ValueError(_told(error)) from error
    finally:
        _work.reset(before)


@lru_cache(maxsize=512)
def _compiled(source: str) -> Template:
    return _ENVIRONMENT.from_string(source)


def _told(error: Exception) -> str:
    if isinstance(error, RecursionError | SyntaxError | MemoryError):
        return "it is nested too deeply; write it plainer"
    if isinstance(error, TemplateSyntaxError):
        known = (
            f"; there are {', '.join(sorted(_ENVIRONMENT.filters))}" if "filter" in str(error.message) else ""
        )
        return f"{brief(str(error.message or '').rstrip('.'))} (line {error.lineno} of the template){known}"
    if "digits" in str(error):  # Python turns only so many into a number
        return "it holds a number of thousands of digits; write a shorter one"
    if "between instances of" in str(error):
        return "it compares or sorts values of different kinds"
    return str(error).partition("\n")[0].strip() or type(error).__name__
