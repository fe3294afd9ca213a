"""Examples of production outputs in which `<redacted>` stands where a user's value stood."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from synthspec.grammar import plausible
from synthspec.grammar.alternatives import Parts, Schemas, alternatives, item_of, kinds_of, part_of
from synthspec.grammar.invent import TRIES, Draw, Turn, Unfillable, drawer, new_key, verified

# `<redacted>` takes its value from the schema, `<redacted:name>` from the slot of that name.
MARK = re.compile(r"<redacted(?::([^<>]*))?>")

Fill = Callable[[Mapping[str, Any], random.Random], Any]


def slot_names(example: Any) -> Iterator[str]:
    """The slots that an example names, in order."""
    if isinstance(example, dict):
        for key, inner in example.items():
            yield from slot_names(key)
            yield from slot_names(inner)
    elif isinstance(example, list):
        for inner in example:
            yield from slot_names(inner)
    elif isinstance(example, str):
        yield from (found[1] for found in MARK.finditer(example) if found[1] is not None)


def filler(example: Any, schema: Any) -> Fill:
    """Prepare an example, to put a value in place of every mark.

    A slot has the same value everywhere.  A mark that is the whole text becomes a value of the type
    that the schema asks for; inside a longer text it becomes text, in a number digits.

    Args:
        example: JSON with marks.
        schema: its JSON Schema, without references.

    Returns:
        A function of the value of each slot that the example names, and the dice that the values of
        nameless marks are drawn with.  It raises Unfillable where nothing it draws fits the schema.

    Raises:
        Unfillable: it can be told beforehand that nothing fits.
    """
    draw = verified(_drawer(example, (schema,), "", 0), schema)
    return lambda slots, dice: draw(Turn(dice, slots))


def filled(example: Any, schema: Any, slots: Mapping[str, Any], dice: random.Random) -> Any:
    """An example with a value in place of every mark; see `filler`."""
    return filler(example, schema)(slots, dice)


def _drawer(example: Any, schemas: Schemas, name: str, depth: int) -> Draw:
    if isinstance(example, dict):
        return _one_of([_object(example, parts, depth) for parts in alternatives(schemas)], "properties")
    if isinstance(example, list):
        return _one_of([_array(example, parts, name, depth) for parts in alternatives(schemas)], "items")
    if not isinstance(example, str):
        return lambda turn: example
    whole = MARK.fullmatch(example)
    if whole is None:
        return _text(example, schemas) if MARK.search(example) else lambda turn: example
    if not whole[1]:
        return drawer(schemas, name, depth)
    slot, wanted = whole[1], _wanted(schemas)
    return lambda turn: _fitted(slot_value(turn.slots, slot), wanted)


def slot_value(slots: Mapping[str, Any], name: str) -> Any:
    """The value of a slot, or of a field of a record, `place.city`."""
    slot, dot, field = name.partition(".")
    return slots[slot][field] if dot else slots[slot]


def _one_of(makers: list[Callable[[], Draw]], keyword: str) -> Draw:
    """Any of the alternatives that can be prepared."""
    found: list[Draw] = []
    failure: Unfillable | None = None
    for make in makers:
        try:
            found.append(make())
        except Unfillable as error:
            failure = failure or error
    if not found:
        raise failure or Unfillable(keyword)
    if len(found) == 1:
        return found[0]
    return lambda turn: found[int(turn.dice.random() * len(found))](turn)


def _object(example: dict[str, Any], parts: Parts, depth: int) -> Callable[[], Draw]:
    def make() -> Draw:
        # How each value is drawn, and the key too where that is marked.
        inner: list[tuple[str, Draw | None, Draw | None]] = []
        for key, value in example.items():
            try:
                if MARK.search(key):
                    inner.append((key, _key(key, parts), None))
                else:
                    inner.append((key, None, _drawer(value, part_of(parts, key), key, depth + 1)))
            except Unfillable as error:
                raise error.below(key) from None
        known: dict[tuple[str, tuple[int, ...]], Draw] = {}

        def of(key: str, name: str) -> Draw:
            """How the value at a marked key is drawn, once the key is."""
            schemas = part_of(parts, name)
            place = key, tuple(map(id, schemas))
            if place not in known:
                known[place] = _drawer(example[key], schemas, "", depth + 1)
            return known[place]

        def draw(turn: Turn) -> dict[str, Any]:
            turn.left -= 1
            value: dict[str, Any] = {}
            name = ""
            try:
                for key, draw_key, how in inner:
                    name = _fresh(draw_key, turn, value, example) if draw_key else key
                    value[name] = (how or of(key, name))(turn)
            except Unfillable as error:
                raise error.below(name) from None
            return value

        return draw

    return make


def _fresh(draw: Draw, turn: Turn, *taken: Mapping[str, Any]) -> str:
    """A key that is not there yet."""
    for _ in range(TRIES):
        key = str(draw(turn))
        if not any(key in keys for keys in taken):
            return key
    raise Unfillable("propertyNames")


def _key(key: str, parts: Parts) -> Draw:
    whole = MARK.fullmatch(key)
    if whole and not whole[1]:
        draw = new_key(parts)
        if draw is None:
            raise Unfillable("additionalProperties")
        return draw
    names = tuple(part["propertyNames"] for part in parts if "propertyNames" in part)
    return _drawer(key, ({"type": "string"}, *names), "", 0)


def _array(example: list[Any], parts: Parts, name: str, depth: int) -> Callable[[], Draw]:
    def make() -> Draw:
        inner: list[Draw] = []
        for index, value in enumerate(example):
            try:
                inner.append(_drawer(value, item_of(parts, index), name, depth + 1))
            except Unfillable as error:
                raise error.below(index) from None

        def draw(turn: Turn) -> list[Any]:
            turn.left -= 1
            value: list[Any] = []
            try:
                for how in inner:
                    value.append(how(turn))
            except Unfillable as error:
                raise error.below(len(value)) from None
            return value

        return draw

    return make


def _text(example: str, schemas: Schemas) -> Draw:
    """Marks inside a longer text, which may be that of a number."""
    wanted = _wanted(schemas)
    is_number = bool(wanted) and "string" not in wanted

    def draw(turn: Turn) -> Any:
        def value(mark: re.Match[str]) -> str:
            if mark[1]:
                return str(slot_value(turn.slots, mark[1]))
            return str(turn.dice.randint(1, 99)) if is_number else plausible.word(turn.dice)

        return _fitted(MARK.sub(value, example), wanted)

    return draw


def _wanted(schemas: Schemas) -> frozenset[str]:
    """The types that a value may have; empty if any will do."""
    found = alternatives(schemas)
    if not all(any("type" in part for part in parts) for parts in found):
        return frozenset()
    return frozenset(kind for parts in found for kind in kinds_of(parts))


def _fitted(value: Any, wanted: frozenset[str]) -> Any:
    """A slot's value as a type that the schema asks for, where it can be that."""
    if not wanted:
        return value
    if isinstance(value, str) and "string" not in wanted:
        for kind, read in (("integer", int), ("number", float)):
            if kind in wanted or (kind == "integer" and "number" in wanted):
                try:
                    return read(value)
                except ValueError:
                    continue
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = (
        isinstance(value, str)
        or (isinstance(value, bool) and "boolean" in wanted)
        or (is_number and "number" in wanted)
        or (isinstance(value, int) and not isinstance(value, bool) and "integer" in wanted)
    )
    return value if fits or "string" not in wanted else str(value)
