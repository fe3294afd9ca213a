"""YAML that people write, checked against a model; every mistake gets its own line and says where it is."""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails

from synthspec.errors import UserError, printable

NAME = r"^[a-z0-9][a-z0-9_-]{0,63}$"  # of runs, sources, sets and grammars
MAX_BYTES = 2_000_000
MAX_NODES = 200_000  # aliases are counted as often as they are used, so that few bytes cannot become many
MAX_TOLD = 20  # mistakes told at once
MUST = " is wrong here: it must be "
WRITE = " is not possible here; write "
MAX_SHOWN = 60  # characters of a wrong value that a message repeats

Model = TypeVar("Model", bound=BaseModel)
Place = tuple[str | int, ...]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads what JSON can say: a bare `no`, `12:30`, `007` or `2024-05-01` stays the text it looks like."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+|(?:0|[1-9][0-9]*))(?:[eE][-+]?[0-9]+)?",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))

_JSON_TAGS = frozenset(
    f"tag:yaml.org,2002:{tag}" for tag in ("bool", "int", "float", "null", "str", "seq", "map")
)


def plain_loader(text: str) -> Any:
    """A loader of YAML's nodes and plain values, of what JSON can say."""
    return _Loader(text)


def load_yaml(path: Path, model: type[Model], *, root: Path | None = None) -> Model:
    """Read a YAML file and check it against a pydantic model.

    Args:
        path: the file.
        model: what it must hold.
        root: the folder that the file may not lie outside of.

    Raises:
        UserError: the file is missing, too large, not YAML, or not what `model` describes; one line per
            mistake, `FILE:LINE: field.path: what is wrong, what to write`.
    """
    if root is not None:
        check_inside(root, path)
    return parse_yaml(read_text(path, MAX_BYTES), path, model)


def parse_yaml(text: str, path: Path, model: type[Model]) -> Model:
    """Like `load_yaml`, for text that has been read already; `path` is for the messages."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise UserError(f"{path}: is empty; write at least the keys {_required(model)}")
        lines: dict[Place, int] = {}
        mistakes = list(islice(_walk(node, (), lines, [MAX_NODES], ()), MAX_TOLD))
        if mistakes:
            raise UserError("\n".join(dict.fromkeys(f"{path}:{line}: {what}" for line, what in mistakes)))
        value = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else f"{path}"
        what = " ".join(str(error.problem or error.context or "cannot be read").split())
        raise UserError(
            f"{where}: is not YAML: {what}; check the indentation, colons and quotes here"
        ) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        before = text[: getattr(error, "position", 0) or 0]
        raise UserError(
            f"{path}:{before.count(chr(10)) + 1}: holds a control character that YAML does not allow; remove it"
        ) from None
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply to be read") from None
    except (ValueError, LookupError):  # Python turns only so many digits into a number
        raise UserError(
            f"{path}: holds a number of thousands of digits, or a value that is not what its tag says; write "
            "it as a text in quotes"
        ) from None
    if not isinstance(value, dict):
        raise UserError(f"{path}:1: must be a mapping of keys to values with at least {_required(model)}")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        told = sorted(set(_sentences(model, lines, error.errors(include_url=False))))
        raise UserError("\n".join(f"{path}:{line}: {message}" for line, message in told[:MAX_TOLD])) from None


def lines_of(text: str) -> dict[Place, int]:
    """The line of every place in a YAML text that has been read before."""
    lines: dict[Place, int] = {}
    node = _Loader(text).get_single_node()
    for _ in _walk(node, (), lines, [MAX_NODES], ()):
        pass
    return lines


def placed(place: Place, lines: Mapping[Place, int]) -> str:
    """`LINE: field.path` of a place, or of what is nearest around it in the file."""
    around = next(place[:size] for size in range(len(place), -1, -1) if place[:size] in lines)
    return f"{lines[around]}: {as_told(place)}"


def refusal(title: str, mistakes: Iterable[tuple[Place, str]]) -> ValidationError | None:
    """What a model's validator raises for mistakes at places of their own; None if there are none."""
    found = [
        InitErrorDetails(type="value_error", loc=place, input=None, ctx={"error": ValueError(sentence)})
        for place, sentence in mistakes
    ]
    return ValidationError.from_exception_data(title, found) if found else None


def check_inside(root: Path, path: Path | str) -> Path:
    """The absolute path that `path` (relative to `root`) means, which must lie inside `root`.

    Raises:
        UserError: it leads outside, by itself or through a link, or can be no path at all.
    """
    home = root.resolve()
    try:
        found = (home / path).resolve()
        found.exists()
    except (ValueError, OSError):
        raise UserError(f"{shown(str(path))} can be no path of a file: shorten it, or correct it") from None
    if not found.is_relative_to(home):
        raise UserError(f"the path {path} leads out of the project {home}: move what it names into the project")
    return found


def read_text(path: Path, most: int) -> str:
    """The text of a regular file of at most so many bytes; UserError, in words, if it is none."""
    try:
        if path.is_dir():
            raise UserError(f"{path}: is a folder; name the file inside it")
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: is no regular file; name the file itself")
        if path.stat().st_size > most:
            raise UserError(f"{path}: is larger than {most // 1_000_000} MB; split it into several files")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; check the path") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None


def _walk(
    node: yaml.Node, place: Place, lines: dict[Place, int], left: list[int], above: tuple[int, ...]
) -> Iterator[tuple[int, str]]:
    """Note the line of every place; yield (line, message) for what YAML allows and we do not."""
    line = node.start_mark.line + 1
    lines.setdefault(place, line)
    left[0] -= 1
    if left[0] < 0:
        if left[0] == -1:
            yield line, f"the file: holds more than {MAX_NODES:,} values; split it into several files"
        return
    if id(node) in above:
        yield line, f"{as_told(place)}: contains itself; write the value out"
        return
    if node.tag not in _JSON_TAGS:
        yield (
            line,
            f"{as_told(place)}: has the tag {brief(node.tag)}; write a plain text, number, list or mapping",
        )
    if node.tag == "tag:yaml.org,2002:float" and _is_endless(node.value):
        yield line, f"{as_told(place)}: is larger than any number can be; write a smaller one"
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*place, index), lines, left, above)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, item in node.value:
            at = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                yield at, f"{as_told(place)}: has a key that is not a text; write it in quotes"
                continue
            if key.tag != "tag:yaml.org,2002:str":
                yield at, f"{as_told((*place, key.value))}: the key is not a text; write it in quotes"
                continue
            if key.value in seen:
                first = seen[key.value]
                yield (
                    at,
                    f"{as_told((*place, key.value))}: is given twice, first on line {first}; remove one",
                )
                continue
            seen[key.value] = at
            lines[(*place, key.value)] = at
            yield from _walk(item, (*place, key.value), lines, left, above)


def _is_endless(written: Any) -> bool:
    try:
        return math.isinf(float(written))
    except (TypeError, ValueError):
        return False


def as_told(place: Place) -> str:
    """A place as a person writes it: `prompts[0].files`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{brief(part)}" if text else brief(part)
    return text or "the file"


def _sentences(
    model: type[BaseModel], lines: dict[Place, int], mistakes: Sequence[ErrorDetails]
) -> Iterator[tuple[int, str]]:
    """The mistakes that pydantic found: their lines, and `field.path: what is wrong, what to write`."""
    told: dict[Place, list[tuple[int, str]]] = {}
    unions: set[Place] = set()  # places where a value may be of several types
    for mistake in mistakes:
        place = _real_place(mistake["loc"], lines)
        line = lines[place]
        if mistake["type"] == "missing":
            place = (*place, mistake["loc"][-1])
        elif len(mistake["loc"]) > len(place):
            unions.add(place)
        told.setdefault(place, []).append((line, _problem(model, mistake)))
    for place, found in told.items():
        if place in unions and any(len(other) > len(place) and other[: len(place)] == place for other in told):
            continue  # as one of the types it goes further
        if place in unions:
            found = [(line, one.replace(WRITE, MUST)) for line, one in found]
        wrong, must = zip(*(one.partition(MUST)[::2] for _, one in found), strict=True)
        where = f"{as_told(place)}: " if place else ""
        if len(set(wrong)) == 1 and all(must):  # it can be of several types
            yield found[0][0], f"{where}{wrong[0]}{MUST}{' or '.join(dict.fromkeys(must))}"
        else:
            yield from ((line, f"{where}{one}") for line, one in found)


def _real_place(loc: Place, lines: dict[Place, int]) -> Place:
    """Pydantic's location without the names of union members, which are not in the file."""
    place: Place = ()
    for part in loc:
        if (*place, part) in lines:
            place = (*place, part)
    return place


def _problem(model: type[BaseModel], mistake: ErrorDetails) -> str:
    kind, context = mistake["type"], mistake.get("ctx", {})
    # A key that stands where its place should be named must not be repeated.
    value = "what stands there" if {"key", "hub"} & {*mistake["loc"]} else shown(mistake.get("input"))
    if kind == "missing":
        about = _about(model, mistake["loc"])
        return f"is missing; give {about}" if about else "is missing; write it"
    if kind == "extra_forbidden":
        return _unknown_key(model, mistake["loc"])
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        close = difflib.get_close_matches(str(mistake.get("input")), allowed, 1, 0.6)
        if close:
            return f"{value} is not possible here; did you mean {close[0]}?"
        return f"{value}{WRITE}{context.get('expected')}"
    if kind == "union_tag_invalid":
        allowed = re.findall(r"'([^']*)'", str(context.get("expected_tags", "")))
        close = difflib.get_close_matches(str(context.get("tag")), allowed, 1, 0.6)
        hint = f"did you mean {close[0]}?" if close else f"write {', '.join(allowed)}"
        return f"its {str(context.get('discriminator')).strip(chr(39))} is not possible here; {hint}"
    if kind in ("value_error", "assertion_error"):
        return re.sub(r"^(Value error|Assertion failed), ", "", mistake["msg"])
    if kind == "string_pattern_mismatch" and context.get("pattern") == NAME:
        return (
            f"{value} is not a name; write small letters, digits, - and _, beginning with a letter or digit, "
            "64 at most"
        )
    if kind == "string_pattern_mismatch":
        return f"{value} does not match {context.get('pattern')}; write what does"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"{value}{MUST}a mapping of keys to values"
    if kind in ("too_short", "string_too_short") and context.get("min_length") == 1:
        return "is empty; write at least one" + (" character" if kind.startswith("string") else "")
    message = mistake["msg"]
    message = message[:1].lower() + message[1:]
    message = re.sub(r"^input should be ", "must be ", message)
    message = message.replace("valid string", "text").replace("valid list", "list").partition(", unable")[0]
    if kind.startswith(("date_", "datetime_")):
        return f"{value} is no date; write one such as 2024-01-31"
    return (
        f"{value}{MUST}{message.removeprefix('must be ')}"
        if message.startswith("must be ")
        else f"{value}: {message}"
    )


def shown(value: Any) -> str:
    """A wrong value for a message; only scalars are repeated, and not at length."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if value is None:
        return "an empty value"
    return brief(str(value).lower() if isinstance(value, bool) else repr(value))


def brief(text: str) -> str:
    """A text of a file inside a message: on one line, and not at length."""
    line = " ".join(printable(text[: 2 * MAX_SHOWN]).split()) or "''"
    return line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}…"


def _unknown_key(model: type[BaseModel], loc: Place) -> str:
    known = sorted({name for part in _models_at(model, loc[:-1]) for name in _field_names(part)})
    outer, dot, inner = str(loc[-1]).partition(".")
    if dot and outer in known:
        return f"a dot does not nest in YAML; write {inner} below {outer}, two spaces further in"
    close = difflib.get_close_matches(str(loc[-1]), known, 1, 0.6)
    if close:
        return f"unknown key, did you mean {close[0]}?"
    return f"unknown key; the keys here are {', '.join(known)}" if known else "unknown key, remove it"


def _required(model: type[BaseModel]) -> str:
    return ", ".join(info.alias or name for name, info in model.model_fields.items() if info.is_required())


def _field_names(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _about(model: type[BaseModel], loc: Place) -> str:
    """The description of the field at a place, for a message about its absence."""
    for part in _models_at(model, loc[:-1]):
        for name, info in part.model_fields.items():
            if loc[-1] in (name, info.alias):
                return str(info.description or "")
    return ""


def _models_at(model: type[BaseModel], loc: Place) -> list[type[BaseModel]]:
    """The models that may stand at a place."""
    found: list[Any] = [model]
    for part in loc:
        step = [inner for kind in found for inner in _inside(kind, part)]
        # What names a member of a union leads nowhere; it narrows the choice instead.
        found = step or [kind for kind in found if getattr(kind, "__name__", "") == part] or found
    return [kind for kind in _members(found) if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _members(kinds: list[Any]) -> Iterator[Any]:
    """Types with unions taken apart."""
    for kind in kinds:
        if get_origin(kind) in (Union, types.UnionType):
            yield from _members(list(get_args(kind)))
        elif hasattr(kind, "__metadata__"):
            yield from _members([get_args(kind)[0]])
        else:
            yield kind


def _inside(kind: Any, part: str | int) -> list[Any]:
    """The types of what `part` names inside a value of a type."""
    found: list[Any] = []
    for member in _members([kind]):
        origin, arguments = get_origin(member), get_args(member)
        if isinstance(member, type) and issubclass(member, BaseModel):
            found += [
                info.annotation for name, info in member.model_fields.items() if part in (name, info.alias)
            ]
        elif origin in (list, tuple) and isinstance(part, int) and arguments:
            found.append(arguments[0])
        elif origin is dict and isinstance(part, str):
            found.append(arguments[1])
    return list(_members(found))
