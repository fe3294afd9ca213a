"""The words of JSON Schema, draft 2020-12."""

from __future__ import annotations

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")

# Where schemas stand inside another: one, a list of them, or one behind each name.
ONE = frozenset(
    {
        "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames",
        "then", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAPS = frozenset({"dependentSchemas", "patternProperties", "properties"})
DEFINITIONS = frozenset({"$defs", "definitions"})

# What says nothing about a value.
NOTES = DEFINITIONS | {
    "$anchor", "$comment", "$dynamicAnchor", "$id", "$schema", "default", "deprecated", "description",
    "examples", "readOnly", "title", "writeOnly",
}  # fmt: skip

KEYWORDS = ONE | LISTS | MAPS | NOTES | {
    "$dynamicRef", "$recursiveRef", "$ref", "$vocabulary", "const", "contentEncoding", "contentMediaType",
    "dependentRequired", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maxContains", "maximum",
    "maxItems", "maxLength", "maxProperties", "minContains", "minimum", "minItems", "minLength",
    "minProperties", "multipleOf", "pattern", "required", "type", "uniqueItems",
}  # fmt: skip
