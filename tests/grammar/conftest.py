import copy

import pytest
import yaml
from tokenizers import AddedToken

from synthspec.grammar.model import load_grammars
from synthspec.grammar.wire import FORMATS


@pytest.fixture(scope="session")
def tokenizer(smollm2_tokenizer):
    return smollm2_tokenizer


@pytest.fixture(scope="session")
def tagged_tokenizer(smollm2_tokenizer):
    """A tokenizer that has every wire format's own texts as special tokens, and one text that is nobody's."""
    tokenizer = copy.deepcopy(smollm2_tokenizer)
    tags = {tag for wire in FORMATS.values() for tag in wire.TAGS}
    tokenizer.add_tokens(
        [AddedToken(tag, special=True, normalized=False) for tag in [*sorted(tags), "<|odd|>"]]
    )
    return tokenizer


TOOL = {
    "name": "find_train",
    "description": "Find a train.",
    "parameters": {
        "type": "object",
        "properties": {
            "to": {"type": "string"},
            "seats": {"type": "integer", "minimum": 1, "maximum": 9},
            "class": {"enum": ["first", "second"]},
            "via": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["to", "seats"],
    },
}
OTHER = {
    "name": "find_bus",
    "parameters": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
}


@pytest.fixture
def load(tmp_path):
    """Write a grammar with some keys changed (None takes one away), and load it."""

    def load_with(**changes):
        base = {
            "name": "trains",
            "kind": "tool_call",
            "wire_format": "hermes",
            "tools": [TOOL],
            "slots": {"town": {"type": "city"}},
            "examples": [{"name": "find_train", "arguments": {"to": "<redacted:town>", "seats": "<redacted>"}}],
        }
        grammar = {
            key: value for key, value in {**base, **changes}.items() if value is not None or key not in base
        }
        (tmp_path / "g.yaml").write_text(yaml.safe_dump(grammar, sort_keys=False, allow_unicode=True))
        return load_grammars(tmp_path, ["g.yaml"])[0]

    return load_with


@pytest.fixture
def extraction(load):
    """The same for a grammar of kind extraction."""

    def load_with(schema, examples, **changes):
        return load(
            kind="extraction", wire_format="json", tools=None, schema=schema, examples=examples, **changes
        )

    return load_with
