"""How production's outputs are built, beyond what their schema says, drawn anew for every request."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from synthspec.spec import Part

Schema = dict[str, Any]
Place = tuple[str, ...]  # names of properties; `[]` steps into an array's items

MAX_CALLS = 16
MAX_EXTREMES = 100  # fields that are tried one by one

_Weights = dict[Annotated[int, Field(ge=0, le=MAX_CALLS)], Annotated[float, Field(ge=0, le=1e9)]]


def _in_order(bounds: tuple[int, int]) -> tuple[int, int]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"{bounds[0]} to {bounds[1]} runs backwards; swap them")
    return bounds


def _weigh(weights: _Weights) -> _Weights:
    if not sum(weights.values()) > 0:
        raise ValueError("all weights are 0; give at least one number of calls a weight above 0")
    return weights


_Probability = Annotated[float, Field(ge=0, le=1)]
_Bounds = Annotated[
    tuple[Annotated[int, Field(ge=0, le=10_000)], Annotated[int, Field(ge=0, le=10_000)]],
    AfterValidator(_in_order),
]


class Shape(Part):
    """Statistics of production's outputs. A place is `tool.field`, `field` or `list[].field`."""

    calls: Annotated[_Weights, AfterValidator(_weigh)] = Field(
        default={1: 1.0},
        description='weight of each number of calls, as in {"1": 3, "2": 1}; "0" is an answer in words',
    )
    prose: _Probability = Field(0.0, description="share of the answers that say something before they call")
    present: dict[str, _Probability] = Field(
        default={},
        description="share of the outputs in which an optional field stands; the target decides elsewhere",
    )
    items: dict[str, _Bounds] = Field(default={}, description="least and most items of an array")
    length: dict[str, _Bounds] = Field(default={}, description="least and most characters of a text")

    @property
    def always_alike(self) -> bool:
        """Whether nothing is drawn."""
        return self == Shape()

    def extremes(self) -> Iterator[Shape]:
        """Shapes in which each optional field stands, then does not, whatever its share; and all at once."""
        for share in (1.0, 0.0):
            yield self.model_copy(update={"present": dict.fromkeys(self.present, share)})
            for path in [*self.present][:MAX_EXTREMES]:
                yield self.model_copy(update={"present": {path: share}})


def draw_calls(shape: Shape, dice: random.Random) -> int:
    """The number of calls of one output."""
    return dice.choices([*shape.calls], [*shape.calls.values()])[0]


def shaped(schemas: Mapping[str, Schema], shape: Shape, dice: random.Random) -> dict[str, Schema]:
    """Schemas of one output, narrowed to what was drawn for it.

    Args:
        schemas: by the name of the tool, or under `` for an extraction; without references.
    """
    result = dict(schemas)

    def change(path: str, how: Callable[[Schema], Schema], up: int = 0) -> None:
        try:
            name, place = _found(result, path)
        except LookupError:  # a tool that this request does not show
            return
        result[name] = _changed(result[name], place[: len(place) - up], how)

    for path, share in shape.present.items():
        key = path.rpartition(".")[2]
        change(path, partial(_present, key=key, stands=dice.random() < share), up=1)
    for path, bounds in shape.items.items():
        change(path, partial(_within, low="minItems", high="maxItems", bounds=bounds))
    for path, bounds in shape.length.items():
        change(path, partial(_within, low="minLength", high="maxLength", bounds=bounds))
    return result


def shape_mistakes(shape: Shape, schemas: Mapping[str, Schema]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What the statistics say about places that are not there, as (path inside the shape, sentence)."""
    for key, wanted in (("present", None), ("items", "array"), ("length", "string")):
        for path in getattr(shape, key):
            try:
                name, place = _found(schemas, path)
                owner = _at(schemas[name], place[:-1]) if place else {}
                part = _at(schemas[name], place)
            except LookupError:
                yield (key, path), f"there is no field {path}; write tool.field, field, or list[].field"
                continue
            set_already = [word for word in ("const", "enum", "format", "pattern") if word in part]
            if wanted and part.get("type") != wanted:
                yield (key, path), f"{path} is no {wanted}; remove it here"
            elif key == "length" and set_already:
                yield (key, path), f"the schema of {path} has a {set_already[0]}, which sets it; remove it here"
            elif wanted is None and (not place or place[-1] in owner.get("required", ())):
                yield (key, path), f"{path} stands in every output, since it is required; remove it here"


def _found(schemas: Mapping[str, Schema], path: str) -> tuple[str, Place]:
    """The schema and the place in it that a path names; LookupError if there is no such schema."""
    # The longest name wins: names of tools may hold dots.
    for name in sorted(schemas, key=len, reverse=True):
        if not name or path.startswith(f"{name}."):
            rest = path[len(name) + 1 :] if name else path
            return name, tuple(rest.replace("[]", ".[]").split("."))
    raise LookupError(path)


def _at(schema: Schema, place: Place) -> Schema:
    for step in place:
        inner = schema["items"] if step == "[]" else schema["properties"][step]
        if not isinstance(inner, dict):
            raise LookupError(step)
        schema = inner
    return schema


def _changed(schema: Schema, place: Place, how: Callable[[Schema], Schema]) -> Schema:
    """A copy of a schema in which the part at a place is changed; all else is shared."""
    if not place:
        return how(schema)
    step, rest = place[0], place[1:]
    if step == "[]":
        return {**schema, "items": _changed(schema["items"], rest, how)}
    inner = schema["properties"]
    if step not in inner:  # what it lies in was left out
        return schema
    return {**schema, "properties": {**inner, step: _changed(inner[step], rest, how)}}


def _present(owner: Schema, key: str, stands: bool) -> Schema:
    if stands:
        return {**owner, "required": [*owner.get("required", ()), key]}
    return {**owner, "properties": {name: part for name, part in owner["properties"].items() if name != key}}


def _within(part: Schema, low: str, high: str, bounds: tuple[int, int]) -> Schema:
    """Bounds narrowed, never widened: what the schema forbids stays forbidden."""
    most = min(bounds[1], part.get(high, bounds[1]))
    return {**part, low: min(max(bounds[0], part.get(low, 0)), most), high: most}
