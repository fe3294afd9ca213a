"""A constraint in the words of each engine, and what an engine cannot honour."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from synthspec.grammar.constraint import (
    Choice,
    Constraint,
    Ebnf,
    Free,
    Json,
    Part,
    Regex,
    Repeat,
    Row,
    Text,
    choice,
    parts_of,
    row,
)
from synthspec.grammar.schemas import subschemas

BACKENDS = ("llguidance", "xgrammar", "sglang", "vllm")

# `{"a": 1, "b": 2}`: the spaces that models trained on Python's json.dumps write.
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# Keywords that xgrammar 0.2.7 reads over; SGLang refuses a bare schema that has one.
_XGRAMMAR_IGNORES = frozenset(
    {
        "contains", "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains",
        "multipleOf", "not", "then", "uniqueItems",
    }
)  # fmt: skip
_XGRAMMAR_FORMATS = frozenset(
    {
        "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer",
        "relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "uuid",
    }
)  # fmt: skip


def lark(part: Part, special: Mapping[str, int]) -> str:
    """A part as a grammar for llguidance.

    Args:
        special: ids of the special tokens that texts may name, by their text.
    """
    rules: list[str] = []
    start = _Lark(rules, special).of(part)
    return "\n".join(["%llguidance {}", f"start: {start}", *rules, ""])


class _Lark:
    """Writes rules, and gives the expressions that name them."""

    def __init__(self, rules: list[str], special: Mapping[str, int]) -> None:
        self.rules = rules
        self.special = special
        names = sorted(map(re.escape, special), key=len, reverse=True)
        self.split = re.compile(f"({'|'.join(names)})") if names else None

    def rule(self, body: str, kind: str = "r") -> str:
        name = f"{kind}{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def of(self, part: Part) -> str:
        match part:
            case Text(text):
                return " ".join(self.words(text)) or '""'
            case Json(schema):
                return self.rule(f"%json {json.dumps({**schema, 'x-guidance': _SPACES})}")
            case Regex() | Free():
                return self.rule(_terminal(part), "T")
            case Row(parts):
                return self.in_order(parts)
            case Choice(parts):
                return self.rule(" | ".join(self.of(inner) for inner in parts))
            case Repeat(inner, least, most, between):
                one = self.rule(self.of(inner))
                if not between or most == 1:
                    return f"{one}{_times(least, most)}"
                more = self.rule(f"{self.of(Text(between))} {one}")
                rest = f"{one} {more}{_times(max(least - 1, 0), most and most - 1)}"
                return rest if least else f"({rest})?"
            case Ebnf(grammar):
                from llguidance.gbnf_to_lark import gbnf_to_lark

                inner = gbnf_to_lark(grammar).replace("%llguidance {}", "")
                return self.rule(f"%lark {{\n{inner}\n}}")

    def in_order(self, parts: tuple[Part, ...]) -> str:
        """Free text swallows what follows it, unless both are one terminal: llguidance's words are greedy."""
        said: list[str] = []
        left = list(parts)
        while left:
            part = left.pop(0)
            if isinstance(part, Regex | Free) and left and isinstance(left[0], Text):
                first, *rest = self.words(left[0].text)
                if not first.startswith("<"):
                    said += [self.rule(f"{self.rule(_terminal(part), 'T')} {first}", "T"), *rest]
                    left.pop(0)
                    continue
            if isinstance(part, Choice) and _open_ended(part) and left and isinstance(left[0], Text):
                part = choice([row(inner, left[0]) for inner in part.parts])
                left.pop(0)
            said.append(self.of(part))
        return " ".join(said)

    def words(self, text: str) -> list[str]:
        pieces = self.split.split(text) if self.split else [text]
        return [
            f"<[{self.special[piece]}]>" if piece in self.special else json.dumps(piece, ensure_ascii=False)
            for piece in pieces
            if piece
        ]


def _open_ended(part: Part) -> bool:
    """Whether free text stands at the end."""
    match part:
        case Row(parts):
            return _open_ended(parts[-1])
        case Choice(parts):
            return any(map(_open_ended, parts))
    return isinstance(part, Regex | Free)


def _terminal(part: Regex | Free) -> str:
    if isinstance(part, Regex):
        return f"/{_slashed(part.pattern)}/"
    length = "*" if part.most is None and not part.least else _times(part.least, part.most)
    said = [f"/(?s:.{length})/"]
    if part.without:
        said.append(f"~/(?s:.*)({'|'.join(_slashed(_escaped(text)) for text in part.without)})(?s:.*)/")
    if part.pattern:
        said.append(f"/{_slashed(part.pattern)}/")
    return " & ".join(said)


def _times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"


def _escaped(text: str) -> str:
    """A text as a regular expression in Rust's dialect."""
    return "".join(f"\\{one}" if one in r"\.+*?()|[]{}^$" else one for one in text).replace("\n", "\\n")


def _slashed(pattern: str) -> str:
    """A regular expression between slashes."""
    return re.sub(r"\\.|/|\n", lambda found: {"/": r"\/", "\n": r"\n"}.get(found[0], found[0]), pattern)


def structural_tag(part: Part) -> dict[str, Any]:
    """A part as a structural tag of xgrammar 0.2.7."""
    return {"type": "structural_tag", "format": _format(part)}


def _format(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "const_string", "value": text}
        case Json(schema):
            if (exact := _spaced_as_written(json.dumps(schema))) is not None:
                return {"type": "grammar", "grammar": exact}
            # One space at a time, so that a model cannot fill its answer with them.
            return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1}
        case Regex(pattern):
            return {"type": "regex", "pattern": pattern}
        case Free(_, _, _, pattern) if pattern:
            return {"type": "regex", "pattern": pattern}
        case Free(without, _, most):
            return {
                "type": "any_text",
                "excludes": list(without),
                **({} if most is None else {"max_chars": most}),
            }
        case Row((Text(begin), inner, Text(end))):
            return {"type": "tag", "begin": begin, "content": _format(inner), "end": end}
        case Row(parts):
            return {"type": "sequence", "elements": [_format(inner) for inner in parts]}
        case Choice(parts):
            return {"type": "or", "elements": [_format(inner) for inner in parts]}
        case Repeat(inner, least, most, between):
            one = _format(inner)
            if not between or most == 1:
                return _repeat(one, least, most)
            more = _repeat(_sequence(_format(Text(between)), one), max(least - 1, 0), most and most - 1)
            whole = _sequence(one, more)
            return whole if least else {"type": "optional", "content": whole}
        case Ebnf(grammar):
            return {"type": "grammar", "grammar": grammar}


@lru_cache(maxsize=1024)
def _spaced_as_written(schema: str) -> str | None:
    """JSON of a schema with the spaces that `lark` has, as a grammar; None where xgrammar is not installed.

    A structural tag knows no such spaces, and a small target writes others where it may.
    """
    try:
        from xgrammar import Grammar
    except ImportError:
        return None
    return str(Grammar.from_json_schema(schema, any_whitespace=False, separators=(", ", ": ")))


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _repeat(content: dict[str, Any], least: int, most: int | None) -> dict[str, Any]:
    return {"type": "repeat", "min": least, "max": -1 if most is None else most, "content": content}


def sglang(part: Part) -> dict[str, str]:
    """A part as sampling parameters of SGLang 0.5.23 (its default backend, xgrammar).

    Inside a bare `json_schema` the server decides about spaces: start it with
    `--constrained-json-disable-any-whitespace` to get those of `lark`.
    """
    match part:
        case Json(schema):
            return {"json_schema": json.dumps(_one_limit(schema))}
        case Regex(pattern):
            return {"regex": pattern}
        case Ebnf(grammar):
            return {"ebnf": grammar}
    return {"structural_tag": json.dumps(structural_tag(part))}


def vllm(part: Part) -> dict[str, Any]:
    """A part as `structured_outputs` of a request to vLLM 0.21 (with its default backend, which is xgrammar).

    JSON goes out as a tag too where xgrammar is installed: under vLLM's own `json` a model writes spaces and
    line ends as it likes, or none with `disable_any_whitespace`, and either way not those of `lark`.
    """
    match part:
        case Json(schema) if _spaced_as_written(json.dumps(schema)) is None:
            return {"json": schema}
        case Regex(pattern):
            return {"regex": pattern}
        case Ebnf(grammar):
            return {"grammar": grammar}
    return {"structural_tag": json.dumps(structural_tag(part))}


def unsupported(constraint: Constraint, backend: str) -> list[str]:
    """What a backend cannot honour, one sentence each.

    Args:
        backend: one of `BACKENDS`; sglang and vllm are taken with their default, xgrammar.
    """
    if backend == "llguidance":
        return _llguidance(constraint)
    found: dict[str, None] = {}
    for part in parts_of(constraint.part):
        if isinstance(part, Free) and part.pattern:
            found["xgrammar cannot hold text without quotes to a pattern and to an end at once"] = None
        if isinstance(part, Free) and part.least > 1:
            found["xgrammar cannot hold text without quotes to a least length"] = None
        if not isinstance(part, Json):
            continue
        for _, schema in subschemas(part.schema):
            for keyword in sorted(_XGRAMMAR_IGNORES & schema.keys()):
                found[f"xgrammar reads over the keyword {keyword}"] = None
            limits = [limit for limit in ("minLength", "maxLength") if isinstance(schema.get(limit), int)]
            if limits and not {"enum", "format", "pattern"} & schema.keys():
                found[
                    "xgrammar lets a text of a limited length hold no quotation mark, backslash or line end"
                ] = None
            if "format" in schema and schema["format"] not in _XGRAMMAR_FORMATS:
                found[f"xgrammar does not know the format {schema['format']}"] = None
    return list(found)


def _llguidance(constraint: Constraint) -> list[str]:
    from llguidance import LLMatcher

    wrong, messages = LLMatcher.validate_grammar_with_warnings(constraint.lark())
    if not wrong:
        return []
    first = str(messages[0]).splitlines()[0]
    return [first.partition("failed to compile JSON schema: ")[2] or first]


def _one_limit(schema: Any) -> Any:
    """A schema whose strings have no length beside a pattern or format: SGLang refuses both at once."""
    if isinstance(schema, list):
        return [_one_limit(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    # In `properties` the same words may be names; then they stand for schemas.
    both = any(isinstance(schema.get(keyword), str) for keyword in ("pattern", "format"))
    return {
        key: _one_limit(value)
        for key, value in schema.items()
        if not (both and key in ("minLength", "maxLength") and isinstance(value, int))
    }
