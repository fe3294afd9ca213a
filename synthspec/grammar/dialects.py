"""Schemas of older drafts, of OpenAPI and of Python, written in draft 2020-12, references kept inside."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urljoin

from synthspec.grammar.keywords import LISTS, MAPS, ONE, TYPES
from synthspec.grammar.schemas import MAX_PARTS, is_expression, subschemas
from synthspec.yamlfile import shown

# What languages and other schemas call the types.
_TYPES = {
    "any": None, "bool": "boolean", "char": "string", "dict": "object", "dictionary": "object",
    "double": "number", "float": "number", "hash": "object", "hashmap": "object", "int": "integer",
    "list": "array", "long": "integer", "map": "object", "none": "null", "short": "integer", "str": "string",
    "text": "string", "tuple": "array", "array": "array", "boolean": "boolean", "integer": "integer",
    "null": "null", "number": "number", "object": "object", "string": "string",
}  # fmt: skip
# What is dropped: it says nothing about a value, or nothing once references are rewritten.
_DROPPED = frozenset(
    {
        "$anchor", "$comment", "$defs", "$id", "$schema", "definitions", "discriminator", "externalDocs", "xml",
        "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "additionalItems", "dependencies",
        "example", "nullable", "$ref",
    }
)  # fmt: skip
_ANCHORS = ("$anchor", "$dynamicAnchor")
_OLD_DRAFT = re.compile(r"json-schema\.org/draft-0[3467]/")

# What begins and ends a text in Python's and Perl's expressions.
_FOREIGN = re.compile(r"\\.", re.DOTALL)
_ECMA = {r"\A": "^", r"\Z": "$", r"\z": "$"}


def modern(schema: Any, document: Any) -> tuple[Any, list[str]]:
    """A schema in draft 2020-12, with what it refers to in its own `$defs`.

    Args:
        schema: as somebody wrote it.
        document: what the references in it lead into; usually the schema itself.

    Returns:
        The new schema, and what was changed in it that a person should know, one sentence each.

    Raises:
        ValueError: a `$ref` leads out of the document or to nothing, or the schema is too large.
    """
    writer = _Writer(document)
    try:
        made = writer.written(schema, document, ())
    except RecursionError:
        raise ValueError("the keyword $ref: references lead to others over too many steps") from None
    if isinstance(made, dict) and writer.defs:
        made = {**made, "$defs": writer.defs}
    notes = []
    if writer.renamed:
        said = ", ".join(
            f"{old} as {new}" if new else f"{old} as no type at all"
            for old, new in sorted(writer.renamed.items())
        )
        notes.append(f"types of another dialect are written as JSON Schema's: {said}")
    if writer.rewritten:
        notes.append(
            f"the keyword pattern: {writer.rewritten} of another language are written as JSON Schema's"
        )
    return made, notes


def pointed(document: Any, reference: str, names: dict[str, Any] | None = None) -> Any:
    """What `#/a/b`, `#anchor` or an id names inside a document.

    Args:
        names: `names_in(document)`, where the caller asks often.

    Raises:
        ValueError: it leads out of the document, or names nothing there.
    """
    if names is None:
        names = names_in(document)
    base, _, fragment = reference.partition("#")
    if base:
        if base not in names:
            raise ValueError(
                f"the keyword $ref: {shown(reference)} leads out of the document; copy what it names into it"
            )
        found = names[base]
        return pointed(found, f"#{fragment}") if fragment else found
    fragment = unquote(fragment)
    if fragment and not fragment.startswith("/"):
        if f"#{fragment}" not in names:
            raise ValueError(f"the keyword $ref: {shown(reference)} names nothing")
        return names[f"#{fragment}"]
    found = document
    for step in fragment.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise ValueError(f"the keyword $ref: {shown(reference)} names nothing")
    return found


def names_in(document: Any) -> dict[str, Any]:
    """The schemas of a document by their ids, whole and as written, and by their anchors with a #.

    Where several have one name, a whole address comes first, and an anchor outside of inner schemas with ids.
    """
    whole: dict[str, Any] = {}
    found: dict[str, Any] = {}
    further: dict[str, Any] = {}
    for part, own, address, inside in _named(document):
        if address:
            whole[address] = part
        for name in (own, *(f"#{part[key]}" for key in _ANCHORS if isinstance(part.get(key), str))):
            if name:
                (further if inside and name.startswith("#") else found).setdefault(name, part)
    return {**further, **found, **whole}


def _named(document: Any) -> Iterator[tuple[dict[str, Any], str | None, str, bool]]:
    """Every schema, its id, the address that it makes with those around it, and if it is in an inner."""
    around: list[tuple[tuple[str | int, ...], str]] = [((), "")]
    alone = _only_references(document)
    for path, part in subschemas(document):
        while path[: len(around[-1][0])] != around[-1][0]:
            around.pop()
        own = _id(part, alone)
        address = ""
        if own and not own.startswith("#"):
            address = _joined(around[-1][1], own)
            around.append((path, address))
        yield part, own, address, bool(around[-1][0])


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:  # it is no address, but may be a name
        return reference


def _only_references(document: Any) -> bool:
    """Whether nothing counts beside a `$ref`, as it was up to draft 7."""
    named = document.get("$schema") if isinstance(document, dict) else None
    return isinstance(named, str) and bool(_OLD_DRAFT.search(named))


def _id(part: Any, only_references: bool = False) -> str | None:
    if not isinstance(part, dict) or (only_references and "$ref" in part):
        return None
    found = part.get("$id", part.get("id"))
    if not isinstance(found, str):
        return None
    return found if found.startswith("#") else found.rstrip("#")


class _Writer:
    """Writes the schemas of one document anew; `defs` takes what they refer to."""

    def __init__(self, document: Any) -> None:
        self.defs: dict[str, Any] = {}
        self._document = document
        self.renamed: dict[str, str | None] = {}
        self.rewritten = 0  # patterns
        self._names: dict[int, str] = {}
        self._known: dict[int, dict[str, Any]] = {}
        self._addresses = {id(part): address for part, _, address, _ in _named(document) if address}
        anchors = Counter(
            f"#{name}" if key == "$dynamicAnchor" else "#"
            for _, part in subschemas(document)
            for key, name in part.items()
            if key == "$dynamicAnchor" or (key == "$recursiveAnchor" and name is True)
        )
        self._ambiguous = {name for name, number in anchors.items() if number > 1}
        self._left = MAX_PARTS
        self._only_ref = _only_references(document)

    def written(self, schema: Any, resource: Any, path: tuple[str, ...]) -> Any:
        """One schema anew.

        Args:
            resource: the schema with an id of its own that it stands in: what `#` means here.
            path: where it is, for messages.
        """
        if not isinstance(schema, dict):
            return schema
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"has over {MAX_PARTS:,} parts; take out what is not needed")
        own = _id(schema, self._only_ref)
        if own and not own.startswith("#"):
            resource = schema
        made = {
            key: self._value(key, value, resource, path) for key, value in schema.items() if key not in _DROPPED
        }
        made = {key: value for key, value in made.items() if not key.startswith("x-")}
        if isinstance(own, str) and "$id" not in schema:
            made.pop("id", None)
        self._type(made)
        self._limits(made)
        self._lists(made, schema, resource, path)
        self._dependencies(made, schema, resource, path)
        self._required(made, schema)
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(schema.get(key), str):
                if key != "$ref" and f"#{schema[key].partition('#')[2]}" in self._ambiguous:
                    said = f"the keyword {key}: what {shown(schema[key])} names depends on how one comes there"
                    raise ValueError(_at(path, f"{said}; write a $ref"))
                made = self._reference(made, schema[key], resource, path)
            elif key in schema:
                raise ValueError(_at(path, f"the keyword {key}: is no text; write one such as #/$defs/NAME"))
        if "example" in schema and "examples" not in made:
            made["examples"] = [schema["example"]]
        if schema.get("nullable") is True:
            made = _nullable(made)
        return made

    def _value(self, key: str, value: Any, resource: Any, path: tuple[str, ...]) -> Any:
        here = (*path, key)
        if key in ONE and not isinstance(value, list):
            return self.written(value, resource, here)
        if key in LISTS and isinstance(value, list):
            return [self.written(inner, resource, (*here, str(index))) for index, inner in enumerate(value)]
        if key == "pattern" and isinstance(value, str):
            return self._expression(value)
        if key == "patternProperties" and isinstance(value, dict):
            value = {self._expression(name): inner for name, inner in value.items()}
        if key in MAPS and isinstance(value, dict):
            return {name: self.written(inner, resource, (*here, name)) for name, inner in value.items()}
        return value

    def _reference(
        self, made: dict[str, Any], reference: str, resource: Any, path: tuple[str, ...]
    ) -> dict[str, Any]:
        """The schema with its reference to `$defs`."""
        try:
            home, found = self._found(reference, resource)
        except ValueError as error:
            raise ValueError(_at(path, str(error))) from None
        if not isinstance(found, dict | bool):
            raise ValueError(_at(path, f"the keyword $ref: {shown(reference)} names no schema"))
        name = self._names.get(id(found))
        if name is None:
            name = self._free(reference)
            self._names[id(found)] = name
            self.defs[name] = True  # keeps the place
            self.defs[name] = self.written(found, home, ("$defs", name))
        pointer = f"#/$defs/{name}"
        if self._only_ref:
            made = {key: made[key] for key in ("title", "description", "default", "examples") if key in made}
        if "$ref" in made:
            return {**made, "allOf": [{"$ref": pointer}, *made.get("allOf", ())]}
        return {"$ref": pointer, **made}

    def _found(self, reference: str, resource: Any) -> tuple[Any, Any]:
        """The schema with an id that a reference leads into, and what it names there."""
        base, _, fragment = reference.partition("#")
        if base:
            names = self._names_in(self._document)
            address = _joined(self._addresses.get(id(resource), ""), base)
            if address in names:
                reference = f"{address}#{fragment}"
            return self._document, pointed(self._document, reference, names)
        try:
            return resource, pointed(resource, reference, self._names_in(resource))
        except ValueError:  # many write an id at every part and mean the document all the same
            return self._document, pointed(self._document, reference, self._names_in(self._document))

    def _names_in(self, document: Any) -> dict[str, Any]:
        if id(document) not in self._known:
            self._known[id(document)] = names_in(document)
        return self._known[id(document)]

    def _free(self, reference: str) -> str:
        wanted = re.sub(
            r"[^A-Za-z0-9_.-]+", "_", unquote(reference.rpartition("#")[2].rpartition("/")[2])
        ).strip("_")
        wanted = wanted[:80] or "root"
        name, number = wanted, 1
        while name in self.defs:
            number += 1
            name = f"{wanted}_{number}"
        return name

    def _expression(self, text: str) -> str:
        """A regular expression with what only other languages read in JSON Schema's words, if need be."""
        if len(text) > 10_000 or is_expression(text):
            return text
        new = _FOREIGN.sub(lambda found: _ECMA.get(found[0], found[0]), text)
        new = re.sub(r"(\\[dsw])-", r"\1\\-", new)
        if new == text or not is_expression(new):
            return text
        self.rewritten += 1
        return new

    def _type(self, made: dict[str, Any]) -> None:
        if "type" not in made:
            return
        named = made["type"] if isinstance(made["type"], list) else [made["type"]]
        if not named or not all(isinstance(one, str) for one in named):
            return
        found: list[str] = []
        for one in named:
            if one in TYPES or one.lower() not in _TYPES:
                found.append(one)
                continue
            new = _TYPES[one.lower()]
            self.renamed[one] = new
            if new is None:
                made.pop("type")
                return
            found.append(new)
        found = list(dict.fromkeys(found))
        made["type"] = found if isinstance(made["type"], list) else found[0]

    def _limits(self, made: dict[str, Any]) -> None:
        """`exclusiveMinimum: true` beside a minimum, as drafts up to 4 have it; bounds that say 64 bits go."""
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(made.get(exclusive), bool) and made.pop(exclusive) and limit in made:
                made[exclusive] = made.pop(limit)
            for key in (limit, exclusive):
                bound = made.get(key)
                if not isinstance(bound, int | float) or isinstance(bound, bool):
                    continue
                if bound <= 1 - 2**63 if limit == "minimum" else bound >= 2**63 - 1:
                    del made[key]

    def _lists(
        self, made: dict[str, Any], schema: dict[str, Any], resource: Any, path: tuple[str, ...]
    ) -> None:
        """A list of items, as drafts up to 2019-09 have it."""
        if not isinstance(made.get("items"), list):
            return
        listed = made.pop("items")
        made["prefixItems"] = [
            self.written(inner, resource, (*path, "items", str(index))) for index, inner in enumerate(listed)
        ]
        if "additionalItems" in schema:
            made["items"] = self.written(schema["additionalItems"], resource, (*path, "additionalItems"))
        if not made["prefixItems"]:
            made.pop("prefixItems")

    def _dependencies(
        self, made: dict[str, Any], schema: dict[str, Any], resource: Any, path: tuple[str, ...]
    ) -> None:
        found = schema.get("dependencies")
        if not isinstance(found, dict):
            return
        for name, needs in found.items():
            if isinstance(needs, str):
                needs = [needs]
            if isinstance(needs, list):
                made.setdefault("dependentRequired", {})[name] = needs
            else:
                written = self.written(needs, resource, (*path, "dependencies", name))
                made.setdefault("dependentSchemas", {})[name] = written

    def _required(self, made: dict[str, Any], schema: dict[str, Any]) -> None:
        """`required: true` at a property, as draft 3 and many people have it, and names given twice."""
        if isinstance(made.get("required"), bool):
            made.pop("required")
        listed = made.get("required", [])
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            return
        properties = schema.get("properties")
        if isinstance(properties, dict):
            listed = [
                *listed,
                *(
                    key
                    for key, one in properties.items()
                    if isinstance(one, dict) and one.get("required") is True
                ),
            ]
        if listed or "required" in made:
            made["required"] = list(dict.fromkeys(listed))


def _nullable(made: dict[str, Any]) -> dict[str, Any]:
    """The schema, or null."""
    if "type" in made and not {"$ref", "allOf", "anyOf", "oneOf", "const", "not"} & set(made):
        named = made["type"] if isinstance(made["type"], list) else [made["type"]]
        made = {**made, "type": list(dict.fromkeys([*named, "null"]))}
        if isinstance(made.get("enum"), list) and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
        return made
    notes: dict[str, Any] = {key: made.pop(key) for key in ("title", "description") if key in made}
    return {**notes, "anyOf": [made, {"type": "null"}]}


def _at(path: tuple[str, ...], sentence: str) -> str:
    return f"{'.'.join(path)}: {sentence}" if path else sentence
