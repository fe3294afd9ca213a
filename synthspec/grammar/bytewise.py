"""Constraints followed over single bytes: what they allow there does not depend on any tokenizer."""

from __future__ import annotations

from functools import lru_cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper


def byte_matcher(lark: str, most_items: int | None = None) -> LLMatcher:
    """A matcher whose tokens are the 256 bytes.

    Args:
        lark: a grammar for llguidance.
        most_items: how many ways to read a text there may be at one byte, before the matcher gives up; by
            default as many as llguidance follows.

    Raises:
        ValueError: llguidance does not take it; with its own words, on several lines.
    """
    limits = LLParserLimits(max_items_in_row=most_items)
    matcher = LLMatcher(byte_tokenizer(), lark, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


class _Bytes:
    """A vocabulary of the 256 bytes and an end token, in the form that llguidance wants."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@lru_cache(maxsize=1)
def byte_tokenizer() -> LLTokenizer:
    """The bytes as a tokenizer of llguidance."""
    return LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])
