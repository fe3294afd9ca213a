"""Writes reference.md, every key of a spec and of a grammar, from the JSON Schemas in schemas/.

python docs/reference.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FILES = (("synthspec", "synthspec.yaml"), ("grammar", "A grammar"))

Schema = dict[str, Any]


def page() -> str:
    """The text of reference.md."""
    lines = ["# Every key", "", "What is not marked as needed may be left out.", ""]
    lines += [
        "The project that `synthspec init` writes is smaller than these defaults, and its gate is laxer.",
        "",
    ]
    for name, title in FILES:
        schema = json.loads((HERE.parent / "schemas" / f"{name}.schema.json").read_text("utf-8"))
        lines += [f"## {title}", "", *table(schema)]
        for part, inner in referenced(schema, schema["$defs"]):
            lines += [f"### {part}", "", inner.get("description", ""), "", *table(inner)]
    return "\n".join(lines).rstrip() + "\n"


def table(schema: Schema) -> list[str]:
    rows = ["| key | what | default | |", "|---|---|---|---|"]
    for key, field in schema["properties"].items():
        default = "needed" if key in schema.get("required", []) else told(field)
        rows.append(f"| `{key}` | {kind(field)} | {default} | {field.get('description', '')} |")
    return [*rows, ""]


def kind(field: Schema) -> str:
    """What may stand there, in words; a part that has its own table is linked."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(kind(one) for one in field[key] if one.get("type") != "null")
    if field.get("type") == "array":
        if "prefixItems" in field:
            return f"`[least, most]`, each {kind(field['prefixItems'][0])}"
        return f"list of {kind(field['items'])}"
    if field.get("type") == "object":
        named = list(field.get("patternProperties", {}).values())
        more = named[0] if named else field.get("additionalProperties")
        return f"names to {kind(more)}" if isinstance(more, dict) and more else "mapping"
    words = {"string": "text", "integer": "whole number", "boolean": "true or false", "number": "number"}
    low, high = field.get("minimum"), field.get("maximum", field.get("exclusiveMaximum"))
    said = words.get(field.get("type", ""), "anything")
    if low is not None and high is not None:
        return f"{said}, {low} to {high}"
    above, most = field.get("exclusiveMinimum"), f", at most {high}" if high is not None else ""
    least = f", above {above}" if above is not None else f", at least {low}" if low is not None else ""
    return said + least + most


def told(field: Schema) -> str:
    default = field.get("default")
    return "" if default in (None, "", [], {}) or isinstance(default, dict) else f"`{json.dumps(default)}`"


def referenced(schema: Schema, known: Schema) -> Iterator[tuple[str, Schema]]:
    """Every part that a schema leads to, each once, in the order of its keys."""
    seen: dict[str, None] = {}
    waiting = [schema]
    while waiting:
        text = json.dumps(waiting.pop(0).get("properties", {}))
        for name in sorted(known, key=lambda name: text.find(f'"#/$defs/{name}"')):
            if f'"#/$defs/{name}"' in text and name not in seen:
                seen[name] = None
                waiting.append(known[name])
    for name in seen:
        if "properties" in known[name]:
            yield name, known[name]


if __name__ == "__main__":
    (HERE / "reference.md").write_text(page(), encoding="utf-8")
