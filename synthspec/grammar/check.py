"""What can be wrong with a grammar although each of its fields is well formed."""

from __future__ import annotations

import datetime
import difflib
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from synthspec.grammar import code, text
from synthspec.grammar.constraint import Constraint, Json, problem
from synthspec.grammar.examples import output_filler, parts
from synthspec.grammar.invent import Unfillable
from synthspec.grammar.redacted import slot_names
from synthspec.grammar.schemas import Path, bounded, inlined, parts_of, schema_mistakes, types
from synthspec.grammar.shape import MAX_CALLS, shape_mistakes
from synthspec.grammar.slots import Date, fillings, names
from synthspec.grammar.template import render_template, variables
from synthspec.grammar.wire import FORMATS, drawn, parse, write
from synthspec.grammar.written import Templates
from synthspec.yamlfile import MAX_SHOWN, brief, shown

if TYPE_CHECKING:
    from synthspec.grammar.model import Grammar

Mistake = tuple[Path, str]  # the place inside the file, and a sentence

_MAX_REASON = 200  # characters of what the backend says
_PROBES = 150  # schemas that are tried to find the keyword that cannot be enforced
_MAX_COMPARED = 300  # names that a wrong one is compared with
_MAX_NAMED = 20  # names that are listed
_HANDFUL = 12  # tools, as many as a request shows unless its catalogue says otherwise
_FILLINGS = 8  # that are tried of each example, at least
_TRIES = 6_000  # of all examples together


def mistakes(grammar: Grammar) -> list[Mistake]:
    """Every mistake that can be told; later checks wait until what they rest on is right."""
    found = [*_shape(grammar)]
    if not found:
        found = [*_slots(grammar)]
    if not found:
        found = [*_schemas(grammar), *_written(grammar), *_templates(grammar), *_turns(grammar)]
    if not found and grammar.catalogue is not None and not grammar.tools:
        return []  # the rest is checked with the tools of the catalogue
    if not found:
        found = [*_places(grammar), *_examples(grammar), *_earlier_outputs(grammar)]
    if not found:
        found = [*_constraint(grammar)]
    return found


_BELONGS = {  # field: the kind that it belongs to
    "tools": "tool_call",
    "catalogue": "tool_call",
    "schema_": "extraction",
    "code": "code",
}


def _shape(grammar: Grammar) -> Iterator[Mistake]:
    kind = grammar.kind
    for field, owner in _BELONGS.items():
        if owner != kind and getattr(grammar, field) not in (None, []):
            yield (field.rstrip("_"),), f"fits kind {owner} only; remove it or change the kind"
    if kind == "tool_call" and not grammar.tools and grammar.catalogue is None:
        yield ("kind",), "a grammar of kind tool_call needs tools or a catalogue; write at least one tool"
    if kind == "extraction" and grammar.schema_ is None:
        yield ("kind",), "a grammar of kind extraction needs a schema; write the JSON Schema of its object"
    if kind == "code" and grammar.code is None:
        yield ("kind",), "a grammar of kind code needs code; write its language and what of it is written"
    if kind in ("code", "text"):
        if grammar.wire_format is not None:
            yield ("wire_format",), f"a grammar of kind {kind} has none; remove it"
        if not all(isinstance(example, str) for example in grammar.examples):
            yield ("examples",), f"of kind {kind} are texts; write each as one"
    elif kind == "tool_call" and grammar.wire_format is None:
        formats = ", ".join(FORMATS)
        yield ("kind",), f"a grammar of kind tool_call needs a wire_format; write one of {formats}"
    elif kind == "extraction" and grammar.wire_format not in (None, "json"):
        yield ("wire_format",), f"{grammar.wire_format} cannot write the kind extraction; write json"
    first: dict[str, int] = {}
    for index, tool in enumerate(grammar.tools):
        if tool.name in first:
            yield (
                ("tools", index, "name"),
                f"{shown(tool.name)} is already the name of tools[{first[tool.name]}]; give it another",
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
    shows_prompt = False
    for place, source in _template_places(grammar):
        try:
            used = variables(source)
            shows_prompt |= "prompt" in used
            strange = sorted(used - known)
            if strange:
                for name in strange:
                    yield place, f"{shown(name)} is not a slot of this grammar; {_rather(name, known)}"
            else:
                for slots in fillings(grammar, _FILLINGS if used & grammar.slots.keys() else 1, used):
                    render_template(source, {**slots, "prompt": "a prompt"})
        except ValueError as error:
            yield place, f"the template does not work: {error}"
            return
    if not shows_prompt:
        yield ("user",), "no template shows the public prompt; write {{ prompt }} where it goes"


def _template_places(grammar: Grammar) -> Iterator[tuple[Path, str]]:
    yield ("system",), grammar.system
    for index, turn in enumerate(grammar.turns):
        if turn.user is not None:
            yield ("turns", index, "user"), turn.user
    if grammar.user is not None:
        yield ("user",), grammar.user


def _written(grammar: Grammar) -> Iterator[Mistake]:
    if isinstance(grammar.written, Templates):
        found: Iterable[Mistake] = text.mistakes(grammar.written.templates)
        yield from ((("examples", *place), sentence) for place, sentence in found)
    elif grammar.written is not None:
        found = code.mistakes(grammar.written)
        yield from ((("code", *place), sentence) for place, sentence in found)


def _places(grammar: Grammar) -> Iterator[Mistake]:
    schemas = {tool.name: inlined(tool.parameters) for tool in grammar.tools}
    if grammar.schema_ is not None:
        schemas = {"": inlined(grammar.schema_)}
    yield from ((("shape", *place), sentence) for place, sentence in shape_mistakes(grammar.shape, schemas))
    if grammar.wire_format == "json" and (grammar.shape.prose or grammar.shape.calls.get(0)):
        yield ("shape",), "json has no place for words; remove prose and the calls of 0"
    if grammar.kind != "tool_call" and (grammar.shape.calls != {1: 1.0} or grammar.shape.prose):
        yield ("shape",), "calls and prose belong to kind tool_call; remove them"


def _turns(grammar: Grammar) -> Iterator[Mistake]:
    """A conversation in which speakers follow each other as chat templates want it."""
    before = "start"
    follows = {
        "start": ("user",),
        "user": ("assistant",),
        "assistant": ("user", "tool"),
        "tool": ("tool", "assistant", "user"),
    }
    speakers = [turn.speaker for turn in grammar.turns]
    for index, speaker in enumerate([*speakers, *(["user"] if grammar.user is not None else [])]):
        if speaker not in follows[before]:
            place: Path = ("turns", index) if index < len(speakers) else ("user",)
            after = "first" if before == "start" else f"after {_spoken(before)}"
            rather = " or ".join(map(_spoken, follows[before]))
            yield place, f"{_spoken(speaker)} cannot come {after}; there comes {rather}"
            return
        before = speaker
    yield from _played(grammar)
    if before not in ("user", "tool"):
        yield ("user",), "is null, so the last of turns must be a tool's answer; write one, or a user's turn"
    for index, turn in enumerate(grammar.turns):
        for name in _strange_slots([turn.assistant, turn.tool], grammar):
            yield (
                ("turns", index),
                f"<redacted:{brief(name)}> names no slot; {_rather(name, names(grammar.slots))}",
            )


def _played(grammar: Grammar) -> Iterator[Mistake]:
    """Turns that the target writes itself."""
    tools = [tool.name for tool in grammar.tools]
    for turn in grammar.played:
        place: Path = ("turns", turn.place, "target")
        if grammar.kind != "tool_call":
            if turn.tools or turn.calls:
                told = f"a grammar of kind {grammar.kind} calls no tools"
                yield place, f"{told}; write any, and no tool's answer behind it"
        elif not turn.calls and turn.tools:
            yield place, "names tools, but no tool's answer follows; write a tool's turn for each call, or any"
        elif grammar.wire_format == "json" and not turn.calls:
            yield place, "json has no place for words; write a tool's turn behind it"
        elif turn.calls > MAX_CALLS:
            yield place, f"makes over {MAX_CALLS} calls; write fewer tools' turns behind it"
        elif tools:
            for name in turn.tools or ():
                if name not in tools:
                    yield place, f"{brief(name)} is no tool of this grammar; {_rather(name, tools)}"


def _spoken(speaker: str) -> str:
    return {"user": "a user's turn", "assistant": "an assistant's turn", "tool": "a tool's answer"}[speaker]


def _strange_slots(value: Any, grammar: Grammar) -> list[str]:
    known = names(grammar.slots)
    return [name for name in dict.fromkeys(slot_names(value)) if name not in known]


def _slots(grammar: Grammar) -> Iterator[Mistake]:
    for name, slot in grammar.slots.items():
        if not isinstance(slot, Date) or slot.after is None:
            continue
        place: Path = ("slots", name, "after")
        dates = [other for other, kind in grammar.slots.items() if isinstance(kind, Date) and other != name]
        if slot.after not in dates:
            yield place, f"{shown(slot.after)} is no other date slot; {_rather(slot.after, dates)}"
            continue
        seen: set[str] = {name}
        at: str | None = slot.after
        while at is not None and at not in seen:
            seen.add(at)
            before = grammar.slots.get(at)
            at = before.after if isinstance(before, Date) else None
        if at is not None:
            yield place, "the days lie behind each other in a circle; give one of them from and to"
            return
    for name, slot in grammar.slots.items():
        if isinstance(slot, Date):
            try:
                _latest(grammar, slot)
            except OverflowError:
                yield ("slots", name), "may lie behind the year 9999; give fewer days, or an earlier to"


def _examples(grammar: Grammar) -> Iterator[Mistake]:
    from synthspec.grammar.conform import violation

    most = max(_FILLINGS, _TRIES // len(grammar.examples))
    for index, example in enumerate(grammar.examples):
        # A filled template follows its own, so the others need not be tried: they may be many.
        alone = grammar.but(examples=[example]) if grammar.kind == "text" else grammar
        yield from _output(alone, example, ("examples", index), violation, most)


def _earlier_outputs(grammar: Grammar) -> Iterator[Mistake]:
    """Assistant's turns, which may hold any number of calls."""
    from synthspec.grammar.conform import unfit

    for index, turn in enumerate(grammar.turns):
        if turn.assistant is not None and not isinstance(turn.assistant, str):
            yield from _output(grammar, turn.assistant, ("turns", index, "assistant"), unfit, _TRIES)


def _latest(grammar: Grammar, slot: Date) -> datetime.date:
    before = grammar.slots.get(slot.after or "")
    if not isinstance(before, Date):
        return slot.to
    return _latest(grammar, before) + datetime.timedelta(days=slot.days[1])


def _output(
    grammar: Grammar, output: Any, place: Path, wrong_with: Callable[[Grammar, Any], str | None], most: int
) -> Iterator[Mistake]:
    """What is wrong with a redacted output, once it is filled too, at most so often."""
    strange = _strange_slots(output, grammar)
    if strange:
        for name in strange:
            yield place, f"<redacted:{brief(name)}> names no slot; {_rather(name, names(grammar.slots))}"
        return
    if grammar.kind == "tool_call":
        try:
            _, calls = parts(output)
        except ValueError as error:
            yield place, str(error)
            return
        tools = [tool.name for tool in grammar.tools]
        unknown = [call["name"] for call in calls if call["name"] not in tools]
        if unknown:
            yield (*place, "name"), f"there is no tool {shown(unknown[0])}; {_rather(unknown[0], tools)}"
            return
    filled = "does not fit once it is filled"
    try:
        fill_output = output_filler(grammar, output)
        used = {name.partition(".")[0] for name in slot_names(output)}
        for seed, slots in enumerate(islice(fillings(grammar, _FILLINGS, used), most)):
            if seed == _FILLINGS:  # from here on every value of a slot with few
                filled = "does not fit with one of the values of its slots"
            value = fill_output(slots, random.Random(seed))
            if wrong := wrong_with(grammar, value) or _unwritable(grammar, value):
                yield place, f"{filled}: {wrong}"
                return
    except Unfillable as error:
        yield place, f"{filled}: {error}"


def _unwritable(grammar: Grammar, value: Any) -> str | None:
    """Why the wire format cannot write an example so that it is read back as it is."""
    try:
        said = write(grammar, value)
        return None if parse(grammar, said) == value else f"{grammar.wire_format} would read it otherwise"
    except ValueError as error:
        return str(error)


def _constraint(grammar: Grammar) -> Iterator[Mistake]:
    if grammar.catalogue is not None:
        # No request is held to all tools together; a handful at once takes a third of the time.
        for first in range(0, len(grammar.tools), _HANDFUL):
            some = grammar.tools[first : first + _HANDFUL]
            together = [*_honoured(grammar.but(tools=some))]
            alone = [
                (("tools", index, *place[2:]), sentence)
                for index, tool in enumerate(some, first)
                if together
                for place, sentence in _honoured(grammar.but(tools=[tool]))
            ]
            yield from alone or together
    else:
        yield from _honoured(grammar)
        if not grammar.shape.always_alike and any(
            problem(drawn(grammar.but(shape=shape), grammar.tools, random.Random(seed)))
            for shape, seeds in (*((one, 1) for one in grammar.shape.extremes()), (grammar.shape, _FILLINGS))
            for seed in range(seeds)
        ):
            yield ("shape",), "asks for what the schema does not allow; widen its items, or leave them out"


def _honoured(grammar: Grammar) -> Iterator[Mistake]:
    try:
        if not problem(grammar.constraint):
            return
    except ValueError as error:  # the wire format has no way to say it
        yield ("wire_format",), str(error)
        return
    # Which of the schemas it is that llguidance cannot honour.
    named: list[tuple[Path, dict[str, Any]]] = [
        (("tools", index, "parameters"), tool.parameters) for index, tool in enumerate(grammar.tools)
    ]
    if grammar.schema_ is not None:
        named.append((("schema",), grammar.schema_))
    told = [
        (
            (*place, *inner),
            f"cannot be enforced while decoding ({wrong[:_MAX_REASON]}); write the schema without it",
        )
        for place, schema in named
        if (found := _not_enforced(inlined(schema)))
        for inner, wrong in [found]
    ]
    yield from told or [((), f"cannot be enforced while decoding ({problem(grammar.constraint)})")]


def _not_enforced(schema: dict[str, Any]) -> tuple[Path, str] | None:
    """The innermost keyword that llguidance cannot honour, and its reason; None if it honours the schema."""
    left = _PROBES

    def wrong(part: Any) -> str | None:
        nonlocal left
        left -= 1
        return problem(Constraint(Json(bounded(part)))) if left >= 0 else None

    reason = problem(Constraint(Json(bounded(schema))))
    if reason is None:
        return None
    if "too large" in reason:  # as a whole: no keyword is to blame
        return (), reason
    place: Path = ()
    part = schema
    while True:
        inner = [one for one in parts_of(part) if isinstance(one[1], dict)]
        while len(inner) > 1:
            # Of many parts, the half that the mistake is in.
            half = inner[: len(inner) // 2]
            together = {"type": "object", "properties": {str(i): one for i, (_, one) in enumerate(half)}}
            inner = half if wrong(together) else inner[len(half) :]
        if not inner or not (said := wrong(inner[0][1])):
            break
        place, part, reason = (*place, *inner[0][0]), inner[0][1], said
    for key in part:
        if wrong({other: value for other, value in part.items() if other != key}) is None and left >= 0:
            return (*place, key), reason
    return place, reason


def _rather(name: Any, known: Iterable[str]) -> str:
    """`did you mean x?`, or what there is."""
    choices = sorted(known)
    if len(choices) > _MAX_COMPARED:
        return f"there are {len(choices):,} others; look for the right one"
    close = difflib.get_close_matches(str(name)[:MAX_SHOWN], choices, 1, 0.6)
    if close:
        return f"did you mean {brief(close[0])}?"
    if not choices:
        return "there are none; define it under slots"
    more = f" and {len(choices) - _MAX_NAMED} more" if len(choices) > _MAX_NAMED else ""
    return f"there are {', '.join(map(brief, choices[:_MAX_NAMED]))}{more}"
