"""Values that fit a JSON Schema: a schema is prepared once, and values are then drawn from it with dice.

A value is built from what the parts of one alternative of the schema say together.  Where that cannot be
known to suffice, the validator decides, and other dice are tried a bounded number of times.
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

from synthspec.grammar import plausible
from synthspec.grammar.alternatives import Parts, Schemas, alternatives, every, item_of, kinds_of, part_of
from synthspec.grammar.pattern import matching, pattern
from synthspec.grammar.schemas import MAX_ITEMS, in_place, validator_of

MAX_INVENTED = 10_000  # items or characters
MAX_STEPS = 20_000  # parts drawn for one value, those thrown away included
TRIES = 40  # at one part of a value
MAX_DEPTH = 60  # of a value

# What a value built from its parts can still break.
_DOUBTFUL = frozenset(
    {
        "not", "oneOf", "if", "contains", "dependentRequired", "dependentSchemas", "maxContains",
        "maxProperties", "minProperties", "patternProperties", "propertyNames", "unevaluatedItems",
        "unevaluatedProperties", "uniqueItems",
    }
)  # fmt: skip


class Unfillable(ValueError):
    """No value is found that fits.

    Args:
        keyword: the keyword of the schema that is in the way.
        path: where in the value it is.
        missing: for the keyword `required`, the property that is not there.
    """

    def __init__(self, keyword: str, path: tuple[str | int, ...] = (), missing: str = "") -> None:
        super().__init__(keyword, path, missing)
        self.keyword = keyword
        self.path = path
        self.missing = missing

    def __str__(self) -> str:
        steps = [*map(str, self.path)]
        place = ".".join(steps if len(steps) < 9 else [*steps[:4], "…", *steps[-4:]]) or "the value"
        if self.missing:
            return f"{place} has no {self.missing}, which is required"
        return f"whatever is tried for {place} breaks the keyword {self.keyword}"

    def below(self, key: str | int) -> Unfillable:
        """The same, seen from what holds the value at `key`."""
        keyword = self.keyword
        if keyword == "false" and not self.path:  # what holds the value says that there can be none
            keyword = "items" if isinstance(key, int) else "properties"
        return Unfillable(keyword, (key, *self.path), self.missing)


@dataclass(slots=True)
class Turn:
    """One value on its way.

    Args:
        dice: what it is drawn with.
        slots: the value of each slot.
        left: how many more parts may be drawn.
        hopeless: of which parts nothing was found that fits, by their place in memory.
    """

    dice: random.Random
    slots: Mapping[str, Any] = field(default_factory=dict)
    left: int = MAX_STEPS
    hopeless: dict[int, Unfillable] = field(default_factory=dict)


Draw = Callable[[Turn], Any]


def inventor(schema: Any) -> Callable[[random.Random], Any]:
    """Prepare a schema, to draw values that fit it.

    Args:
        schema: JSON Schema (draft 2020-12) without references, see `schemas.inlined`.

    Returns:
        A function that draws a value with dice, and raises Unfillable where it finds none that fits.

    Raises:
        Unfillable: it can be told beforehand that no value fits.
    """
    draw = verified(drawer((schema,)), schema)
    return lambda dice: draw(Turn(dice))


def invented(schema: Any, dice: random.Random) -> Any:
    """One value that fits a schema; Unfillable if none is found."""
    return inventor(schema)(dice)


@lru_cache(maxsize=256)
def text_of(expression: str) -> Callable[[random.Random], str]:
    """Prepare a regular expression, to draw texts with dice that it matches as a whole.

    Raises:
        ValueError: it cannot be read; (Unfillable, from the function) no text is found that it matches.
    """
    whole = f"^(?:{expression})$"
    wanted, validator = pattern(whole), _validator(({"type": "string", "pattern": whole},))

    def draw(dice: random.Random) -> str:
        for _ in range(TRIES):
            text = matching(wanted, dice, beyond=0)
            if validator.is_valid(text):
                return text
        raise Unfillable("pattern")

    return draw


def verified(draw: Draw, schema: Any) -> Draw:
    """The same draw, until the whole value is valid.

    Raises:
        Unfillable: (the draw) it is not after `TRIES`.
    """
    validator = _validator((schema,))

    def checked(turn: Turn) -> Any:
        failure: Unfillable | None = None
        for _ in range(TRIES):
            try:
                value = draw(turn)
            except Unfillable as error:
                failure = failure or error
                if turn.left <= 0:
                    break
                continue
            if validator.is_valid(value):
                return value
            failure = failure or broken(validator, value)
        raise failure or Unfillable("allOf")

    return checked


def broken(validator: Any, value: Any) -> Unfillable:
    """What a wrong value breaks first."""
    error = next(iter(validator.iter_errors(value)))
    keyword = str(error.kind.name)
    missing = str(error.kind.property) if keyword == "required" else ""
    return Unfillable(keyword, tuple(error.instance_path), missing)


def drawer(schemas: Schemas, name: str = "", depth: int = 0) -> Draw:
    """How a value that fits all the schemas is drawn.

    Args:
        name: of the property that it is for.
        depth: of what it stands in.

    Raises:
        Unfillable: it can be told beforehand that no value fits.
    """
    if depth > MAX_DEPTH:
        raise Unfillable("properties")
    found = alternatives(schemas)
    if not found:
        raise Unfillable(_why_none(schemas))
    makers: list[tuple[bool, Draw]] = []  # whether it only makes null, and how
    failure: Unfillable | None = None
    for parts in found:
        try:
            makers += _makers(parts, name, depth)
        except Unfillable as error:
            failure = failure or error
    if not makers:
        raise failure or Unfillable("type")
    # A null where something else may stand says little.
    rare = [make for is_null, make in makers if is_null]
    usual = [make for is_null, make in makers if not is_null]
    doubtful = any(not _DOUBTFUL.isdisjoint(part) for one in schemas for part in in_place(one))
    scalar = all(_is_scalar(parts) for parts in found)
    if len(makers) == 1 and not doubtful and not scalar:
        return makers[0][1]
    validator = _validator(schemas)

    def draw(turn: Turn) -> Any:
        dice = turn.dice
        pool = (rare if dice.random() < 0.1 else usual) if rare and usual else rare or usual
        if id(validator) in turn.hopeless:
            turn.left -= 1
            raise turn.hopeless[id(validator)]
        failure: Unfillable | None = None
        for attempt in range(TRIES):
            turn.left -= 1
            if turn.left < 0:
                break
            if attempt == TRIES // 2:
                pool = usual + rare
            try:
                value = (pool[0] if len(pool) == 1 else pool[int(dice.random() * len(pool))])(turn)
            except Unfillable as error:
                failure = failure or error
                continue
            if validator.is_valid(value):
                return value
            failure = broken(validator, value)
        failure = failure or Unfillable("anyOf" if len(makers) > 1 else "not")
        if scalar:  # not tried again for each try of what holds it
            turn.hopeless[id(validator)] = failure
        raise failure

    return draw


def new_key(parts: Parts) -> Draw | None:
    """How the name of a property that is not listed is drawn; None if there can be none."""
    shut = any(
        part.get("additionalProperties", True) is False or part.get("unevaluatedProperties", True) is False
        for part in parts
    )
    names = tuple({"type": "string"} if one is True else one for one in every(parts, "propertyNames"))
    expressions = [key for part in parts for key in part.get("patternProperties", {})]
    if names:
        try:
            named = drawer(({"type": "string"}, *names))
        except Unfillable:
            return None
        return named
    if shut or expressions:
        if not expressions:
            return None
        try:
            patterns = [pattern(one) for one in dict.fromkeys(expressions)]
        except ValueError:
            raise Unfillable("patternProperties") from None
        return lambda turn: matching(turn.dice.choice(patterns), turn.dice, 1, 40)
    return lambda turn: plausible.word(turn.dice)


def _why_none(schemas: Schemas) -> str:
    """The keyword that leaves a schema no alternative."""
    for schema in schemas:
        for part in in_place(schema):
            for key in ("not", "anyOf", "oneOf", "if", "allOf"):
                if key in part:
                    return key
    return "false"


def _is_scalar(parts: Parts) -> bool:
    return not {"object", "array"} & {*kinds_of(parts)} or any(
        "enum" in part or "const" in part for part in parts
    )


def _validator(schemas: Schemas) -> Any:
    import jsonschema_rs

    schema = schemas[0] if len(schemas) == 1 else {"allOf": [{}, *schemas]}
    try:
        return validator_of(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        keyword = [key for key in getattr(error, "instance_path", ()) if isinstance(key, str)]
        raise Unfillable(keyword[-1] if keyword else "allOf") from None


def _makers(parts: Parts, name: str, depth: int) -> list[tuple[bool, Draw]]:
    """Whether it only makes null, and how: one for each type that the parts allow."""
    if any("enum" in part or "const" in part for part in parts):
        return [_chosen(parts)]
    kinds = kinds_of(parts)
    if not kinds:
        raise Unfillable("type")
    found: list[tuple[bool, Draw]] = []
    failure: Unfillable | None = None
    for kind in kinds:
        try:
            match kind:
                case "string":
                    found.append((False, _text(parts, name)))
                case "integer" | "number":
                    found.append((False, _number(parts, name, whole=kind == "integer")))
                case "boolean":
                    found.append((False, lambda turn: turn.dice.random() < 0.5))
                case "null":
                    found.append((True, lambda turn: None))
                case "object":
                    found.append((False, _object(parts, depth)))
                case "array":
                    found.append((False, _array(parts, name, depth)))
        except Unfillable as error:
            failure = failure or error
    if not found and failure:
        raise failure
    return found


def _chosen(parts: Parts) -> tuple[bool, Draw]:
    """One of the values that `enum` and `const` leave."""
    lists = [
        [part["const"]] if "const" in part else part["enum"] for part in parts if {"const", "enum"} & {*part}
    ]
    validator = _validator(parts)
    shortest = min(lists, key=len)
    # Of very many some will do.
    values = [value for value in shortest[:: 1 + len(shortest) // 1000] if validator.is_valid(value)]
    if not values:
        raise Unfillable("const" if any("const" in part for part in parts) else "enum")
    if any(isinstance(value, dict | list) for value in values):
        return False, lambda turn: copy.deepcopy(turn.dice.choice(values))
    usual = [value for value in values if value is not None]
    if not usual:
        return True, lambda turn: None
    if len(usual) < len(values):
        usual = usual * 9 + [None] * len(usual)  # a null says little
    if len(usual) == 1:
        return False, lambda turn: usual[0]
    return False, lambda turn: usual[int(turn.dice.random() * len(usual))]


def _limits(parts: Parts, least: str, most: str) -> tuple[int, int]:
    low = math.ceil(max([0, *every(parts, least)]))
    high = math.floor(min([*every(parts, most), max(low, MAX_INVENTED)]))
    if low > MAX_INVENTED:
        raise Unfillable(least)
    if low > high:
        raise Unfillable(most)
    return low, high


def _text(parts: Parts, name: str) -> Draw:
    low, high = _limits(parts, "minLength", "maxLength")
    try:
        patterns = [pattern(one) for one in dict.fromkeys(every(parts, "pattern"))]
    except ValueError:
        raise Unfillable("pattern") from None
    formats = [make for one in every(parts, "format") if (make := plausible.FORMATS.get(one))]
    if any(one.least > high for one in patterns):
        raise Unfillable("maxLength")
    if patterns or formats:
        # Of several, each in turn; the validator decides whether the others are met too.
        ways: list[Draw] = [lambda turn, one=one: matching(one, turn.dice, low, high) for one in patterns]  # type: ignore[misc]
        ways += [lambda turn, make=make: make(turn.dice) for make in formats]  # type: ignore[misc]
        return ways[0] if len(ways) == 1 else lambda turn: turn.dice.choice(ways)(turn)
    json_text = "application/json" in every(parts, "contentMediaType")
    base_64 = "base64" in every(parts, "contentEncoding")
    if json_text or base_64:
        return lambda turn: plausible.content(turn.dice, json_text=json_text, base_64=base_64)
    fitting = plausible.texts_for(name, low, high)
    if fitting:
        return lambda turn: fitting[int(turn.dice.random() * len(fitting))]
    phrases = plausible.fitting("phrase", low, high)
    if len(phrases) > 20:
        return lambda turn: phrases[int(turn.dice.random() * len(phrases))]

    def draw(turn: Turn) -> str:
        length = turn.dice.randint(low, min(high, low + 8))
        text = plausible.word(turn.dice)
        while len(text) < length:
            text += f" {plausible.word(turn.dice)}"
        text = text[:length]
        return text if not text.endswith(" ") else text[:-1] + "s"

    return draw


def _number(parts: Parts, name: str, *, whole: bool) -> Draw:
    """A multiple of a step inside a range; in whole numbers until the last division, so that it is exact."""
    try:
        lows = [(Fraction(one), False) for one in every(parts, "minimum")]
        lows += [(Fraction(one), True) for one in every(parts, "exclusiveMinimum")]
        highs = [(Fraction(one), False) for one in every(parts, "maximum")]
        highs += [(Fraction(one), True) for one in every(parts, "exclusiveMaximum")]
        steps = [Fraction(str(one)) for one in every(parts, "multipleOf")]
    except (OverflowError, ValueError):  # an infinity, or no number
        raise Unfillable("minimum") from None
    low, low_open = max(lows) if lows else (None, False)
    # Of two equal limits the open one is the stricter.
    high, high_open = min(highs, key=lambda one: (one[0], not one[1])) if highs else (None, False)
    if whole:
        steps.append(Fraction(1))
    step = _common(steps) if steps else None
    usual = plausible.range_for(name) or ((0, 100) if whole or step else (0, 1000))
    first, last = _window(low, high, Fraction(usual[0]), Fraction(usual[1]), step)
    if step is None:
        # Hundredths where there is room for them, finer steps where there is not.
        step = Fraction(1, 100)
        if last - first < 20 * step:
            step = Fraction(last - first) / 128
        if step == 0:
            step = abs(first) or Fraction(1)
    least, most = math.ceil(first / step), math.floor(last / step)
    if low_open and least * step == low:
        least += 1
    if high_open and most * step == high:
        most -= 1
    if least > most:
        raise Unfillable("multipleOf" if every(parts, "multipleOf") else "maximum" if highs else "minimum")
    over, under, span = step.numerator, step.denominator, most - least + 1
    if under == 1 and (whole or every(parts, "multipleOf")):
        if span > 1 << 50:
            return lambda turn: (least + turn.dice.randrange(span)) * over
        return lambda turn: (least + int(turn.dice.random() * span)) * over

    def draw(turn: Turn) -> float:
        try:
            return (least + turn.dice.randrange(span)) * over / under
        except OverflowError:
            raise Unfillable("maximum") from None

    return draw


def _common(steps: list[Fraction]) -> Fraction:
    """The least number that all the steps divide."""
    found = steps[0]
    for step in steps[1:]:
        found = Fraction(
            math.lcm(found.numerator * step.denominator, step.numerator * found.denominator),
            found.denominator * step.denominator,
        )
    return found


def _window(
    low: Fraction | None,
    high: Fraction | None,
    usual_low: Fraction,
    usual_high: Fraction,
    step: Fraction | None,
) -> tuple[Fraction, Fraction]:
    """The part of an allowed range that a usual number lies in, or the part that is nearest to it."""
    first = usual_low if low is None else max(low, usual_low)
    last = usual_high if high is None else min(high, usual_high)
    room = 20 * (step or Fraction(0))
    if last - first >= room and last > first:
        return first, last
    span = [room * 5, Fraction(100), *(abs(one) / 10 for one in (low, high) if one is not None)]
    room = max(span)
    if low is not None:
        return low, low + room if high is None else min(high, low + room)
    if high is not None:
        return high - room, high
    return usual_low, usual_low + room


def _object(parts: Parts, depth: int) -> Draw:
    low, high = _limits(parts, "minProperties", "maxProperties")
    names = list(dict.fromkeys(key for part in parts for key in part.get("properties", {})))
    required = list(dict.fromkeys(key for one in every(parts, "required") for key in one))
    linked: dict[str, list[str]] = {}
    for one in every(parts, "dependentRequired"):
        for key, others in one.items():
            linked.setdefault(key, []).extend(others)
    known: dict[str, Draw | Unfillable] = {}

    def of(key: str) -> Draw | Unfillable:
        """How the value of a property is drawn, or why it cannot be."""
        if key not in known:
            try:
                known[key] = drawer(part_of(parts, key), key, depth + 1)
            except Unfillable as error:
                known[key] = error.below(key)
        return known[key]

    unlisted: dict[tuple[int, ...], Draw | Unfillable] = {}

    def of_extra(key: str) -> Draw | Unfillable:
        """The same for a property that is not listed: all to which the same schemas apply are alike."""
        schemas = part_of(parts, key)
        place = tuple(map(id, schemas))
        if place not in unlisted:
            try:
                unlisted[place] = drawer(schemas, "", depth + 1)
            except Unfillable as error:
                unlisted[place] = error
        return unlisted[place]

    needed = dict.fromkeys(required)
    waiting = list(needed)
    while waiting:
        for other in linked.get(waiting.pop(), ()):
            if other not in needed:
                needed[other] = None
                waiting.append(other)
    for key in needed:
        if isinstance(failure := of(key), Unfillable):
            raise failure
    if len(needed) > high:
        raise Unfillable("maxProperties")
    optional = [key for key in names if key not in needed]
    extra = new_key(parts)
    is_map = not names and not needed
    order = {
        key: index for index, key in enumerate([*names, *(key for key in needed if key not in set(names))])
    }
    in_order = sorted(needed, key=order.__getitem__)
    fixed = [(key, draw) for key in in_order if not isinstance(draw := of(key), Unfillable)]
    more_than_needed = bool(optional) or low > len(needed) or (is_map and extra is not None)

    def draw_fixed(turn: Turn) -> dict[str, Any]:
        turn.left -= 1
        value: dict[str, Any] = {}
        try:
            for key, draw in fixed:
                value[key] = draw(turn)
        except Unfillable as error:
            raise error.below(key) from None
        return value

    if not more_than_needed:
        return draw_fixed

    def draw_more(turn: Turn) -> dict[str, Any]:
        turn.left -= 1
        if turn.left < 0:
            raise Unfillable("properties")
        dice = turn.dice
        keys = dict(needed)

        def add(key: str) -> None:
            """A property with all that must stand beside it, if there is room for them."""
            fresh = {key: None}
            line = [key]
            while line:
                for other in linked.get(line.pop(), ()):
                    if other not in keys and other not in fresh:
                        fresh[other] = None
                        line.append(other)
            if len(keys) + len(fresh) <= high and not any(isinstance(of(one), Unfillable) for one in fresh):
                keys.update(fresh)

        # Deep inside a value only what is needed, so that it ends.
        share = 0.4 if depth < 3 else 0.0
        left_out = []
        for key in optional:
            if dice.random() < share:
                add(key)
            else:
                left_out.append(key)
        # An empty object says nothing, where it could hold something.
        few = max(low, 1 if share else 0)
        if len(keys) < few:
            dice.shuffle(left_out)
            for key in left_out:
                if len(keys) < few:
                    add(key)
        if extra is not None:
            wanted = max(low, min(high, dice.randint(1, 3))) if is_map and depth < 5 else low
            for _ in range(20 * max(0, wanted - len(keys))):
                if len(keys) >= wanted:
                    break
                add(extra(turn))
        if len(keys) < low:
            raise Unfillable("minProperties")
        last = len(order)
        value: dict[str, Any] = {}
        for key in sorted(keys, key=lambda key: order.get(key, last)):
            how = of(key) if key in order else of_extra(key)
            if isinstance(how, Unfillable):
                raise how
            try:
                value[key] = how(turn)
            except Unfillable as error:
                raise error.below(key) from None
        return value

    return draw_more


def _array(parts: Parts, name: str, depth: int) -> Draw:
    low, high = _limits(parts, "minItems", "maxItems")
    first = max([0, *(len(one) for one in every(parts, "prefixItems"))])
    for part in parts:
        if part.get("items") is False or part.get("unevaluatedItems") is False:
            ends = len(part.get("prefixItems", ()))
            high = min(high, max(ends, first) if "unevaluatedItems" in part else ends)
    if low > high:
        raise Unfillable("items")
    contained = [
        (part["contains"], part.get("minContains", 1), part.get("maxContains", MAX_INVENTED))
        for part in parts
        if "contains" in part
    ]
    if contained:
        low = max(low, *(math.ceil(least) for _, least, _ in contained))
        if low > min(high, MAX_INVENTED):
            raise Unfillable("contains")
    unique = any(every(parts, "uniqueItems"))
    single = _singular(name)
    known: dict[tuple[int, tuple[int, ...]], Draw | Unfillable] = {}

    def of(index: int, holds: tuple[int, ...] = ()) -> Draw | Unfillable:
        """How an item is drawn: one that is held to contain, by the numbers of the `contains`."""
        place = min(index, first), holds
        if place not in known:
            schemas = item_of(parts, index) + tuple(contained[number][0] for number in holds)
            try:
                known[place] = drawer(schemas, single, depth + 1)
            except Unfillable as error:
                known[place] = error.below(index)
        return known[place]

    for index in range(min(low, first + 1)):
        if isinstance(failure := of(index), Unfillable):
            raise failure
    # Up to where items can be drawn.
    for index in range(low, min(high, first + 1)):
        if isinstance(of(index), Unfillable):
            high = index
            break
    few = max(low, min(high, max(first, 1)))
    many = max(few, min(high, MAX_ITEMS, few + 2)) if depth < 4 else few

    def draw(turn: Turn) -> list[Any]:
        turn.left -= 1
        if turn.left < 0:
            raise Unfillable("items")
        dice = turn.dice
        count = dice.randint(few, many) if few < many else few
        held: dict[int, tuple[int, ...]] = {}
        for number, (_, least, most) in enumerate(contained):
            for index in dice.sample(range(count), min(count, math.ceil(least), math.floor(most))):
                held[index] = (*held.get(index, ()), number)
        value: list[Any] = []
        seen: set[str] = set()
        for index in range(count):
            how = of(index, held.get(index, ()))
            if isinstance(how, Unfillable):
                raise how
            try:
                item = how(turn)
                tries = TRIES
                while unique and (mark := _mark(item)) in seen and tries:
                    tries -= 1
                    item = how(turn)
            except Unfillable as error:
                if turn.left < 0:  # there are too many items in items
                    raise Unfillable("minItems") from None
                raise error.below(index) from None
            if unique and mark in seen:
                if index >= low and not contained:
                    break
                raise Unfillable("uniqueItems", (index,))
            if unique:
                seen.add(mark)
            value.append(item)
        return value

    return draw


def _singular(name: str) -> str:
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name


def _mark(value: Any) -> str:
    """A text that is the same for what JSON Schema calls equal."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    elif isinstance(value, list):
        return f"[{','.join(map(_mark, value))}]"
    elif isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(key)}:{_mark(inner)}' for key, inner in sorted(value.items()))}}}"
    return json.dumps(value)
