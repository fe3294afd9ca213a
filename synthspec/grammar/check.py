"""What can be wrong with a grammar although each of its fields is well formed."""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from synthspec.grammar.constraint import Constraint, problem
from synthspec.grammar.redacted import filled, slot_names
from synthspec.grammar.schemas import Path, bounded, inlined, schema_mistakes, types
from synthspec.grammar.slots import fill
from synthspec.grammar.template import render_template, variables
from synthspec.grammar.wire import FORMATS

if TYPE_CHECKING:
    from synthspec.grammar.model import Grammar

Mistake = tuple[Path, str]  # the place inside the file, and a sentence


def mistakes(grammar: Grammar) -> list[Mistake]:
    """Every mistake that can be told; later checks wait until what they rest on is right."""
    found = [*_shape(grammar)]
    if not found:
        found = [*_schemas(grammar), *_templates(grammar)]
    if not found:
        found = [*_examples(grammar)]
    if not found:
        found = [*_constraint(grammar)]
    return found


def filled_examples(grammar: Grammar, slots: dict[str, Any], seed: int) -> list[Any]:
    """The grammar's examples with a value in place of each mark; calls keep the form {name, arguments}."""
    dice = random.Random(seed)
    return [filled(example, _example_schema(grammar, example), slots, dice) for example in grammar.examples]


def _shape(grammar: Grammar) -> Iterator[Mistake]:
    if grammar.kind == "tool_call":
        if not grammar.tools:
            yield ("kind",), "a grammar of kind tool_call needs tools; write at least one"
        if grammar.schema_ is not None:
            yield ("schema",), "belongs to kind extraction; a tool has its schema in parameters"
    else:
        if grammar.schema_ is None:
            yield (
                ("kind",),
                "a grammar of kind extraction needs a schema; write the JSON Schema of its object",
            )
        if grammar.tools:
            yield ("tools",), "belong to kind tool_call; remove them or change the kind"
    if grammar.kind not in FORMATS[grammar.wire_format].KINDS:
        fits = [name for name, wire in FORMATS.items() if grammar.kind in wire.KINDS]
        yield (
            ("wire_format",),
            f"{grammar.wire_format} cannot write the kind {grammar.kind}; write {' or '.join(fits)}",
        )
    first: dict[str, int] = {}
    for index, tool in enumerate(grammar.tools):
        if tool.name in first:
            yield (
                ("tools", index, "name"),
                f"{tool.name!r} is already the name of tools[{first[tool.name]}]; give it another",
            )
        first.setdefault(tool.name, index)
    if "prompt" in grammar.slots:
        yield ("slots", "prompt"), "is the name of the prompt itself; call the slot something else"


def _schemas(grammar: Grammar) -> Iterator[Mistake]:
    for index, tool in enumerate(grammar.tools):
        place: Path = ("tools", index, "parameters")
        found = schema_mistakes(tool.parameters)
        yield from (((*place, *inner), sentence) for inner, sentence in found)
        if not found and types(tool.parameters) != {"object"}:
            yield place, "must describe an object; write type: object and its properties"
    if grammar.schema_ is not None:
        yield from ((("schema", *inner), sentence) for inner, sentence in schema_mistakes(grammar.schema_))


def _templates(grammar: Grammar) -> Iterator[Mistake]:
    known = {*grammar.slots, "prompt"}
    values = {**fill(grammar, 0), "prompt": "a prompt"}
    shows_prompt = False
    for field in ("system", "user"):
        source = getattr(grammar, field)
        try:
            used = variables(source)
            shows_prompt |= "prompt" in used
            strange = sorted(used - known)
            if strange:
                for name in strange:
                    yield (field,), f"{name!r} is not a slot of this grammar; {_rather(name, known)}"
            else:
                render_template(source, values)
        except ValueError as error:
            yield (field,), f"the template does not work: {error}"
            return
    if not shows_prompt:
        yield ("user",), "no template shows the public prompt; write {{ prompt }} where it goes"


def _examples(grammar: Grammar) -> Iterator[Mistake]:
    from synthspec.grammar.conform import violation

    slots = fill(grammar, 0)
    for index, example in enumerate(grammar.examples):
        place: Path = ("examples", index)
        strange = [name for name in dict.fromkeys(slot_names(example)) if name not in grammar.slots]
        if strange:
            for name in strange:
                yield place, f"<redacted:{name}> names no slot; {_rather(name, grammar.slots)}"
            continue
        if grammar.kind == "tool_call":
            if not isinstance(example, dict) or set(example) != {"name", "arguments"}:
                yield place, "must be one call: name and arguments, and nothing else"
                continue
            names = [tool.name for tool in grammar.tools]
            if example["name"] not in names:
                yield (
                    (*place, "name"),
                    f"there is no tool {example['name']!r}; {_rather(example['name'], names)}",
                )
                continue
        try:
            value = filled(example, _example_schema(grammar, example), slots, random.Random(0))
        except Exception as error:  # schemas can ask for more than the invented values know
            yield place, f"no value can be invented for a mark ({type(error).__name__}); write a value there"
            continue
        wrong = violation(grammar, value)
        if wrong:
            yield place, f"does not fit its schema once it is filled: {wrong}"


def _constraint(grammar: Grammar) -> Iterator[Mistake]:
    if not problem(grammar.constraint):
        return
    # Which of the schemas it is that llguidance cannot honour.
    named: list[tuple[Path, dict[str, Any]]] = [
        (("tools", index, "parameters"), tool.parameters) for index, tool in enumerate(grammar.tools)
    ]
    if grammar.schema_ is not None:
        named.append((("schema",), grammar.schema_))
    told = [
        (place, f"cannot be enforced while decoding ({wrong}); write the schema without it")
        for place, schema in named
        if (wrong := problem(Constraint("", bounded(inlined(schema)), "")))
    ]
    yield from told or [((), f"cannot be enforced while decoding ({problem(grammar.constraint)})")]


def _example_schema(grammar: Grammar, example: Any) -> dict[str, Any]:
    if grammar.kind == "extraction":
        return inlined(grammar.schema_ or {})
    name = example.get("name") if isinstance(example, dict) else None
    for tool in grammar.tools:
        if tool.name == name:
            return {"properties": {"name": {"const": name}, "arguments": inlined(tool.parameters)}}
    return {}


def _rather(name: Any, known: Iterable[str]) -> str:
    """`did you mean x?`, or what there is."""
    choices = sorted(known)
    close = difflib.get_close_matches(str(name), choices, 1, 0.6)
    if close:
        return f"did you mean {close[0]}?"
    return f"there are {', '.join(choices)}" if choices else "there are none; define it under slots"
