"""The bytes that each token of a tokenizer stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llguidance import LLTokenizer


@dataclass(frozen=True, eq=False)
class TokenTable:
    """A vocabulary as bytes.

    Args:
        bytes_of: the bytes of each token id; a special token's are its name.
        special: ids of the tokens that are no text, such as the end token.
    """

    bytes_of: tuple[bytes, ...]
    special: frozenset[int]


@lru_cache(maxsize=8)
def ll_tokenizer(tokenizer: Any, end_ids: tuple[int, ...] = ()) -> LLTokenizer:
    """llguidance's view of a Hugging Face fast tokenizer; building one takes about half a second.

    Args:
        tokenizer: a `PreTrainedTokenizerFast`.
        end_ids: tokens that may end an answer, where that is not the tokenizer's own end token alone.

    Raises:
        ValueError: the tokenizer is not a fast one.
    """
    from llguidance.hf import from_tokenizer  # brings all of transformers

    return from_tokenizer(tokenizer, None, list(end_ids) or None)


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """The ids of a tokenizer's special tokens by their text."""
    return {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}


@lru_cache(maxsize=8)
def token_table(tokenizer: Any) -> TokenTable:
    """The bytes of every token of a Hugging Face fast tokenizer."""
    ll = ll_tokenizer(tokenizer)
    special = frozenset(special_tokens(tokenizer).values())
    return TokenTable(tuple(ll.decode_bytes([i]) for i in range(ll.vocab_size)), special)


def split_end(
    ids: Sequence[int], table: TokenTable, own: frozenset[int] = frozenset()
) -> tuple[Sequence[int], Sequence[int]]:
    """A completion's text tokens, and the special tokens that end it.

    Args:
        own: special tokens that belong to the text, because its wire format writes them.
    """
    length = len(ids)
    while length and ids[length - 1] in table.special and ids[length - 1] not in own:
        length -= 1
    return ids[:length], ids[length:]
