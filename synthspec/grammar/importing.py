"""Grammars from what people have already: an OpenAPI document, a list of tools, or a JSON Schema.

OpenAPI 3.0 and 3.1 (one tool for each operation), the answer to MCP's `tools/list`, the `tools` of an
OpenAI request, one tool of either kind, and a JSON Schema alone (or as OpenAI's `json_schema` format).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from synthspec.errors import UserError
from synthspec.grammar.dialects import modern
from synthspec.grammar.schemas import TELLING, inlined, unenforced
from synthspec.yamlfile import MAX_BYTES as LARGEST
from synthspec.yamlfile import MAX_NODES, as_told, brief, plain_loader, read_text

MAX_BYTES = 10_000_000  # of a document
MAX_VALUES = 1_000_000  # of a JSON document
MAX_YAML_BYTES = 2_000_000  # reading YAML takes twenty times as long as JSON
MAX_LEVELS = 150  # of nesting
MAX_TOLD = 20
MAX_IN_GRAMMAR = 100  # tools in the grammar itself; more go into a catalogue
MAX_EXAMPLES = 200

_TOO_LARGE = f"makes a file of over {LARGEST // 1_000_000} MB; give fewer tools, or shorter descriptions"
_METHODS = ("get", "put", "post", "delete", "patch", "options", "head", "trace", "query")
_PARAMETERS = ("parameters", "inputSchema", "input_schema", "params")
_MARK = "<redacted>"
_HALF = re.compile("[\ud800-\udfff]")

Json = dict[str, Any]


@dataclass(frozen=True)
class Imported:
    """A grammar made from a document.

    Args:
        grammar: what a grammar file holds; it has been checked.
        origin: what it was made from, in words.
        notes: what was changed or left out, one sentence each.
        tools: what the file of its catalogue holds, if it names one.
    """

    grammar: Json
    origin: str
    notes: tuple[str, ...]
    tools: list[Json] | None = None


@dataclass(frozen=True)
class _Tool:
    name: str
    description: str
    schema: Any
    document: Any  # what references lead into
    place: str


def import_file(
    path: Path, wire_format: str = "hermes", tick: Callable[[int], None] = lambda n: None
) -> Imported:
    """Read a document and make a grammar of it.

    Args:
        path: a JSON or YAML file.
        wire_format: how the target writes tool calls.
        tick: called with the number of tools looked at.

    Raises:
        UserError: it cannot be read, is no document of a known kind, or nothing in it can be used; each
            in one line that names the place and the keyword.
    """
    text = read_text(path, MAX_BYTES)
    try:
        return import_document(parsed(text), path.stem, wire_format, tick)
    except ValueError as error:
        raise UserError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None


def import_document(
    document: Any, name: str, wire_format: str = "hermes", tick: Callable[[int], None] = lambda n: None
) -> Imported:
    """Make a grammar of a document.

    Args:
        document: JSON.
        name: what the grammar is called, once it is written in small letters.
        wire_format: how the target writes tool calls.
        tick: called with the number of tools looked at.

    Raises:
        ValueError: it is no document of a known kind, or nothing in it can be used; one line each.
    """
    _limited(document)
    name = _slug(name) or "imported"
    notes: list[str] = []
    if isinstance(document, dict) and ("openapi" in document or "swagger" in document):
        tools = _operations(document, notes)
        return _of_tools(tools, name, wire_format, _title(document, "an OpenAPI document"), notes, tick)
    found = _listed(document)
    if found is not None:
        origin, items = found
        tools = list(_tools(items, notes))
        return _of_tools(tools, name, wire_format, origin, notes, tick)
    named = _schema_alone(document)
    if named is None:
        raise ValueError(
            "is none of an OpenAPI 3 document, an MCP tools/list answer, a list of OpenAI tools and a JSON "
            "Schema; give one of these"
        )
    return _of_schema(named[1], _slug(named[0]) or name, notes)


def parsed(text: str) -> Any:
    """The value of a JSON or YAML text; ValueError, in one line, if it is neither."""
    first = text.lstrip()[:1]
    try:
        if first in ("{", "["):
            try:
                return json.loads(text)
            except json.JSONDecodeError as error:
                if len(text) > MAX_YAML_BYTES:
                    raise ValueError(f"is not JSON (line {error.lineno}: {error.msg})") from None
            except ValueError:
                raise ValueError("holds a number of too many digits; write a shorter one") from None
        if len(text) > MAX_YAML_BYTES:
            raise ValueError(f"is YAML of more than {MAX_YAML_BYTES // 1_000_000} MB; write it as JSON")
        loader = plain_loader(text)
        node = loader.get_single_node()
        return None if node is None else _constructed(loader, node, [MAX_NODES], ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1})" if mark else ""
        raise ValueError(f"is neither JSON nor YAML{where}: {' '.join(str(error.problem).split())}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"is neither JSON nor YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ValueError("is nested too deeply to be read") from None
    except LookupError:
        raise ValueError("holds a value that is not what its tag says; write it without the tag") from None


def _constructed(loader: Any, node: yaml.Node, left: list[int], above: tuple[int, ...]) -> Any:
    """The value of a YAML node: keys are texts, aliases are counted as often as they are used."""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"holds more than {MAX_NODES:,} values; split it into several files")
    if id(node) in above:
        raise ValueError(f"line {node.start_mark.line + 1}: contains itself; write the value out")
    above = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        return {
            str(getattr(key, "value", "")): _constructed(loader, value, left, above)
            for key, value in node.value
        }
    if isinstance(node, yaml.SequenceNode):
        return [_constructed(loader, value, left, above) for value in node.value]
    if node.tag in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
        return loader.construct_object(node)
    return None if node.tag == "tag:yaml.org,2002:null" else node.value


def _limited(document: Any) -> None:
    """Refuse what is too much, or what YAML and JSON Schema have no words for."""
    left = MAX_VALUES
    level: list[Any] = [document]
    for _ in range(MAX_LEVELS):
        below: list[Any] = []
        left -= len(level)
        for value in level:
            if len(below) > left:
                raise ValueError(f"holds more than {MAX_VALUES:,} values; split it into several files")
            if isinstance(value, str):
                if not value.isascii() and _HALF.search(value):
                    raise ValueError("holds half of a surrogate pair, which is no character; remove it")
            elif isinstance(value, dict):
                below += value
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, float) and not math.isfinite(value):
                raise ValueError("holds a number that is too large, or none; write one that is finite")
        if not below:
            return
        level = below
    raise ValueError(f"is nested deeper than {MAX_LEVELS} levels; write it flatter")


def _listed(document: Any) -> tuple[str, list[Any]] | None:
    """A list of tools, and whose it is; None if the document is none."""
    if isinstance(document, dict) and "jsonrpc" in document:
        if not isinstance(document.get("result"), dict):
            raise ValueError("is a JSON-RPC message without a result; give the answer to tools/list")
        document = document["result"]
    if isinstance(document, dict):
        if isinstance(document.get("tools"), list):
            document = document["tools"]
        elif _is_tool(document):
            document = [document]
        else:
            return None
    if not isinstance(document, list):
        return None
    if any(isinstance(item, dict) and "inputSchema" in item for item in document):
        return "an MCP tools/list answer", document
    return "a list of tools", document


def _is_tool(item: Json) -> bool:
    if isinstance(item.get("function"), dict):
        return True
    return isinstance(item.get("name"), str) and any(isinstance(item.get(key), dict) for key in _PARAMETERS)


def _tools(items: list[Any], notes: list[str]) -> Iterator[_Tool]:
    for index, item in enumerate(items):
        place = f"tools[{index}]"
        if isinstance(item, dict) and isinstance(item.get("function"), dict):
            item, place = item["function"], f"{place}.function"
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            notes.append(f"{place} is left out: it is no function with a name")
            continue
        key = next((one for one in _PARAMETERS if item.get(one) is not None), "parameters")
        schema = item.get(key)
        description = item.get("description")
        yield _Tool(
            item["name"],
            description if isinstance(description, str) else "",
            {"type": "object", "properties": {}} if schema is None else schema,
            schema,
            f"{place} ({brief(item['name'])})",
        )


def _operations(document: Json, notes: list[str]) -> list[_Tool]:
    """One tool for each operation of an OpenAPI document."""
    version = str(document.get("openapi", ""))
    if not version.startswith("3."):
        raise ValueError("openapi: only versions 3.0 and 3.1 are read; convert the document to one of them")
    paths = document.get("paths", {})
    if not isinstance(paths, dict):
        raise ValueError("paths: must be a mapping of paths to operations")
    tools: list[_Tool] = []
    names: set[str] = set()
    for path, item in paths.items():
        try:
            item = _followed(document, item)
        except ValueError as error:
            notes.append(f"paths {brief(path)} is left out: {error}")
            continue
        for method in _METHODS:
            operation = item.get(method) if isinstance(item, dict) else None
            if not isinstance(operation, dict):
                continue
            given = operation.get("operationId")
            name = _tool_name(given if isinstance(given, str) and given else f"{method}_{path}", names)
            place = f"paths {brief(path)} {method}"
            if isinstance(given, str) and given != name:
                notes.append(f"{place}: the operation {brief(given)} is called {name}")
            said = [operation.get(key) for key in ("summary", "description")]
            description = "\n\n".join(dict.fromkeys(text.strip() for text in said if isinstance(text, str)))
            try:
                schema, changed = _arguments(document, item, operation)
            except ValueError as error:
                notes.append(f"{place} is left out: {error}")
                continue
            except TypeError:
                notes.append(f"{place} is left out: a parameter or its body is not as OpenAPI has them")
                continue
            notes += [f"{place}: {one}" for one in changed]
            tools.append(_Tool(name, description, schema, document, place))
    return tools


def _arguments(document: Json, item: Json, operation: Json) -> tuple[Json, list[str]]:
    """Parameters and request body of an operation as the schema of one object, and what was changed in them."""
    notes: list[str] = []
    properties: Json = {}
    required: list[str] = []
    parameters: dict[tuple[Any, Any], Json] = {}
    for listed in (item.get("parameters"), operation.get("parameters")):
        for one in listed if isinstance(listed, list) else ():
            one = _followed(document, one)
            if isinstance(one, dict) and isinstance(one.get("name"), str):
                parameters[one["name"], one.get("in")] = one
    for (name, where), one in parameters.items():
        if where == "header" and name.lower() in ("accept", "content-type", "authorization"):
            continue  # OpenAPI itself ignores these
        key = _free(name, str(where), properties)
        if key != name:
            notes.append(f"the parameter {brief(name)} in {where} is called {brief(key)}")
        content = one.get("content")
        schema = one.get("schema", _content(content)) if content else one.get("schema", {})
        if isinstance(schema, dict) and isinstance(one.get("description"), str):
            schema = {**schema, "description": schema.get("description", one["description"])}
        properties[key] = schema
        if one.get("required") is True:
            required.append(key)
    more: Json = {}
    body = _followed(document, operation.get("requestBody"))
    if isinstance(body, dict) and (schema := _content(body.get("content"))) is not None:
        inner = _followed(document, schema)
        if _is_plain_object(inner) and not set(inner["properties"]) & set(properties):
            sent = {key: one for key, one in inner["properties"].items() if not _is_read_only(one)}
            if unsent := [brief(key) for key in inner["properties"] if key not in sent]:
                notes.append(f"read-only fields are left out: {', '.join(unsent)}")
            properties |= sent
            if body.get("required") is True:
                listed = inner.get("required")
                required += [key for key in (listed if isinstance(listed, list) else ()) if key in sent]
            if "additionalProperties" in inner:
                more["additionalProperties"] = inner["additionalProperties"]
        else:
            key = _free("body", "request", properties)
            properties[key] = schema
            if body.get("required") is True:
                required.append(key)
    whole = {"type": "object", "properties": properties, "required": [*dict.fromkeys(required)], **more}
    return whole, notes


def _free(name: str, where: str, taken: Mapping[str, Any]) -> str:
    """The name, or one like it that is not taken."""
    others = (f"{name}_{where}{number or ''}" for number in count())
    return name if name not in taken else next(one for one in others if one not in taken)


def _content(content: Any) -> Any:
    """The schema of a body: that of JSON before any other; None if there is none."""
    if not isinstance(content, dict):
        return None
    kinds = sorted(content, key=lambda kind: (not kind.startswith("application/json"), "json" not in kind))
    for kind in kinds:
        if isinstance(content[kind], dict) and "schema" in content[kind]:
            return content[kind]["schema"]
    return None


def _is_plain_object(schema: Any) -> bool:
    return (
        isinstance(schema, dict)
        and isinstance(schema.get("properties"), dict)
        and schema.get("type", "object") == "object"
        and not {"allOf", "anyOf", "oneOf", "not", "if", "nullable", "minProperties", "$ref"} & set(schema)
    )


def _is_read_only(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("readOnly") is True


def _followed(document: Json, part: Any) -> Any:
    """A part of an OpenAPI document, or what its `$ref` names; ValueError where that leads nowhere."""
    from synthspec.grammar.dialects import pointed

    for _ in range(20):
        if not isinstance(part, dict) or not isinstance(part.get("$ref"), str):
            return part
        part = pointed(document, part["$ref"])
    raise ValueError("the keyword $ref: leads in a circle")


def _schema_alone(document: Any) -> tuple[str, Any] | None:
    """The name (may be empty) and the schema of a document that is a JSON Schema."""
    if not isinstance(document, dict):
        return None
    inner = document.get("json_schema", document)
    if isinstance(inner, dict) and isinstance(inner.get("schema"), dict) and "type" not in inner:
        name = inner.get("name")
        return name if isinstance(name, str) else "", inner["schema"]
    return ("", document) if TELLING & set(document) else None


def _of_tools(
    tools: list[_Tool],
    name: str,
    wire_format: str,
    origin: str,
    notes: list[str],
    tick: Callable[[int], None],
) -> Imported:
    kept: list[Json] = []
    examples: list[Any] = []
    names: set[str] = set()
    refused: list[str] = []
    size = 0
    for tool in tools:
        tick(1)
        if tool.name in names:
            notes.append(f"{tool.place} is left out: an earlier tool has its name")
            continue
        try:
            made, example, changed = _of_tool(tool, wire_format)
        except ValueError as error:
            refused += [f"{tool.place}: {line}" for line in str(error).splitlines()[:3]]
            continue
        except TypeError:
            refused.append(f"{tool.place}: its schema has a keyword with a value of the wrong type")
            continue
        size += len(json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode())
        if size > LARGEST:
            raise ValueError(_TOO_LARGE)
        names.add(tool.name)
        kept.append(made)
        examples.append(example)
        notes += [f"{tool.place}: {one}" for one in changed]
    if not kept:
        told = refused or notes
        raise ValueError("\n".join(told[:MAX_TOLD]) or "holds no tool; give a document with at least one")
    notes += [f"{line} (left out)" for line in refused]
    many = len(kept) > MAX_IN_GRAMMAR
    holds = {"catalogue": {"file": f"tools/{name}.yaml"}} if many else {"tools": kept}
    grammar = _grammar(
        name, "tool_call", wire_format, "Answer the request with a call of one of your tools.", **holds
    )
    grammar["examples"] = examples[:: -(-len(examples) // MAX_EXAMPLES)]
    if len(kept) > 1:
        from synthspec.grammar.model import Grammar

        try:
            Grammar.model_validate(grammar)
        except ValidationError as error:
            raise ValueError(_plainly(error.errors(include_url=False)[0], "")) from None
    return Imported(grammar, origin, tuple(notes), kept if many else None)


def _of_tool(tool: _Tool, wire_format: str) -> tuple[Json, Any, list[str]]:
    """A tool, an example of it, and what was changed; ValueError, a line each, if it cannot be used."""
    parameters, changed = modern(tool.schema, tool.document)
    if isinstance(parameters, dict) and "type" not in parameters:
        parameters = {"type": "object", **parameters}
    made = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if not tool.description:
        del made["description"]

    def trial(arguments: Any) -> Json:
        grammar = _grammar("trial", "tool_call", wire_format, "", tools=[made])
        return {**grammar, "examples": [{"name": tool.name, "arguments": arguments}]}

    arguments = _first_that_holds(parameters, trial, "tools[0].parameters")
    return made, {"name": tool.name, "arguments": arguments}, [*changed, *_loose(parameters)]


def _of_schema(schema: Any, name: str, notes: list[str]) -> Imported:
    made, changed = modern(schema, schema)

    def trial(example: Any) -> Json:
        return {**_grammar(name, "extraction", "json", system, schema=made), "examples": [example]}

    system = "Reply with one JSON value that fits the schema, and nothing else."
    example = _first_that_holds(made, trial, "schema")
    return Imported(trial(example), "a JSON Schema", (*notes, *changed, *_loose(made)))


def _loose(schema: Json) -> list[str]:
    """What of a schema no backend enforces, as one sentence or none."""
    found = sorted({keyword for _, keyword in unenforced(inlined(schema))})
    if not found:
        return []
    return [f"not enforced while decoding, only checked after it: {', '.join(found)}"]


def _first_that_holds(schema: Any, trial: Any, place: str) -> Any:
    """An example from the required fields, or a mark for the whole where that does not hold."""
    from synthspec.grammar.model import Grammar

    problem = ""
    for example in dict.fromkeys(map(json.dumps, _examples(schema))):
        try:
            Grammar.model_validate(trial(json.loads(example)))
        except ValidationError as error:
            problem = "\n".join(_plainly(one, place) for one in error.errors(include_url=False)[:MAX_TOLD])
        else:
            return json.loads(example)
    raise ValueError(problem)


def _plainly(mistake: Any, place: str) -> str:
    """A mistake that pydantic found, as a line that begins with the place inside the document."""
    where = as_told(mistake["loc"]).removeprefix(place).removeprefix("tools[0]").lstrip(".")
    if where.startswith("examples"):
        where = ""
    said = str(mistake.get("ctx", {}).get("error", mistake["msg"]))
    if mistake["type"] == "dict_type":
        said = "its schema is no mapping of keywords; write a JSON Schema"
    elif mistake["loc"][-1:] == ("name",):
        said = (
            "a tool's name is of letters, digits and _ . / : -, begins with a letter or _, and has 128 at most"
        )
    return " ".join((f"{where}: {said}" if where else said).split())


def _examples(schema: Any) -> Iterator[Any]:
    try:
        example = _redacted(inlined(schema), 0) if isinstance(schema, dict) else _MARK
    except (ValueError, LookupError, TypeError, AttributeError):  # it is told when the grammar is checked
        example = _MARK
    if example != {} or not schema.get("properties"):
        yield example
    yield _MARK


def _redacted(schema: Any, level: int) -> Any:
    """A mark for a value, or an object of marks where the schema says what must be in it."""
    if not isinstance(schema, dict):
        return _MARK
    if "const" in schema:
        return schema["const"]
    composed = {"allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$ref", "enum"} & set(schema)
    properties = schema.get("properties", {})
    if schema.get("type") != "object" or composed or level > 4:
        return _MARK
    required = schema.get("required", [])
    if level and not required:
        return _MARK
    # In the schema's order, which is the constraint's too.
    names = [
        *(key for key in properties if key in required),
        *(key for key in required if key not in properties),
    ]
    return {key: _redacted(properties.get(key), level + 1) for key in names}


def _grammar(name: str, kind: str, wire_format: str, system: str, **holds: Any) -> Json:
    return {
        "version": 1,
        "name": name,
        "kind": kind,
        "wire_format": wire_format,
        "system": system,
        **holds,
        "slots": {},
    }


def _title(document: Json, origin: str) -> str:
    info = document.get("info")
    title = info.get("title") if isinstance(info, dict) else None
    return f"{origin} ({brief(title)})" if isinstance(title, str) and title.strip() else origin


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:64].rstrip("_")


def _tool_name(wanted: str, taken: set[str]) -> str:
    """A name that a tool may have and no other has."""
    name = re.sub(r"[^A-Za-z0-9.:-]+", "_", wanted).strip("_") or "operation"
    name = (name if name[0].isalpha() else f"op_{name}")[:120]
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free)
    return free


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes what `yamlfile` reads back as the same: a text that looks like a number there is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represented(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represented)
for _tag, _pattern in (
    ("int", r"[-+]?[0-9]+"),
    ("float", r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"),
):
    _Dumper.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list("-+.0123456789")
    )


def as_files(imported: Imported) -> dict[str, str]:
    """Texts of files by their paths: the grammar's, what was changed at its head, and its catalogue's.

    Raises:
        ValueError: a file would be larger than one that is read.
    """
    head = [
        f"# Made from {_one_line(imported.origin)}.",
        "# Every value of an example is <redacted>: it is invented by the schema. Write a slot for what the",
        "# conversation tells too, such as `slots: {city: {type: city}}`, and <redacted:city> where it stands.",
    ]
    if imported.notes:
        head += ["#", *(f"# - {_one_line(note)}" for note in imported.notes)]
    files = {f"{imported.grammar['name']}.yaml": "\n".join([*head, _dumped(imported.grammar)])}
    if imported.tools is not None:
        files[imported.grammar["catalogue"]["file"]] = _dumped({"tools": imported.tools})
    for text in files.values():
        if len(text.encode()) > LARGEST:
            raise ValueError(_TOO_LARGE)
    return files


def _dumped(value: Json) -> str:
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=False
    )


def _one_line(text: str) -> str:
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())
