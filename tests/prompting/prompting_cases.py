"""Small grammars, a spec and tokenizers for the tests of this folder."""

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from synthspec.grammar.model import Grammar
from synthspec.spec import Spec

# Writes a system turn, a user turn and where the answer begins, as ChatML does.
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT_WITH_TOOLS = "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}" + CHAT


def tool_grammar(name: str, tool: str, does: str, **fields: Any) -> Grammar:
    """A grammar with one tool of one field."""
    parameters = {
        "type": "object",
        "properties": {"place": {"type": "string", "maxLength": 20}},
        "required": ["place"],
        "additionalProperties": False,
    }
    return Grammar.model_validate(
        {
            "name": name,
            "kind": "tool_call",
            "wire_format": "hermes",
            "tools": [{"name": tool, "description": does, "parameters": parameters}],
            "examples": [{"name": tool, "arguments": {"place": "<redacted>"}}],
            **fields,
        }
    )


def any_grammar(name: str = "ticket", **fields: Any) -> Grammar:
    """An extraction grammar that takes what the others leave."""
    return Grammar.model_validate(
        {
            "name": name,
            "kind": "extraction",
            "wire_format": "json",
            "system": "File it.",
            "schema": {"type": "object", "properties": {"urgent": {"type": "boolean"}}, "required": ["urgent"]},
            "examples": [{"urgent": True}],
            "match": {"any": True},
            **fields,
        }
    )


def a_spec(**fields: Any) -> Spec:
    names = ("asks", "general", "chat")
    return Spec.model_validate(
        {
            "name": "trial",
            "prompts": [{"name": n, "files": [f"{n}.jsonl"], "licence": "CC0-1.0"} for n in names],
            "match": ["asks"],
            "grammars": ["*.yaml"],
            "rows_per_grammar": 10,
            **fields,
        }
    )


def tokenizer_with(template: str | None) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: a token is a byte, or one of two control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={byte: n for n, byte in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = template
    return tokenizer
