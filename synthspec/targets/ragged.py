"""A key/value cache whose rows have lengths of their own, and the attention that reads it.

Slot i of a row holds the token at position i, so the causal mask is the whole truth: a query at
position p sees slots 0..p and nothing else.  What lies behind p, be it padding or a rejected draft,
is never read and is overwritten when the row gets there.  One cache therefore serves batched
generation and batched speculative decoding alike, and a row is shortened by moving its position back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

ATTENTION = "synthspec_ragged"


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one layer, [rows, kv_heads, capacity, head_dim]."""

    def __init__(self, cache: RaggedCache) -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, heads, _, width = key_states.shape
        capacity = self._cache.capacity
        self.keys = key_states.new_zeros(rows, heads, capacity, width)
        self.values = value_states.new_zeros(rows, heads, capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        slots, span = self._cache.slots, self._cache.span
        rows = torch.arange(len(slots), device=slots.device)[:, None]
        self.keys[rows, :, slots] = key_states.transpose(1, 2)
        self.values[rows, :, slots] = value_states.transpose(1, 2)
        return self.keys[:, :, :span], self.values[:, :, :span]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.span, 0

    def get_seq_length(self) -> int:
        return self._cache.span

    def get_max_length(self) -> int:
        return self._cache.capacity

    get_max_cache_shape = get_max_length


class RaggedCache(Cache):
    """Keys and values of all layers for a batch of rows of different lengths.

    Args:
        layers: number of decoder layers.
        capacity: slots per row; the largest position that will be written, plus one.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__(layers=[RaggedLayer(self) for _ in range(layers)])
        self.capacity = capacity
        self.slots = torch.zeros(0, 0, dtype=torch.long)
        self.span = 0

    def aim(self, positions: torch.Tensor) -> torch.Tensor:
        """Say where the next forward pass writes; return its causal mask.

        Args:
            positions: int64 [rows, queries], the position of every query token.

        Returns:
            bool [rows, 1, queries, span]: True where a query may look.
        """
        self.slots = positions
        self.span = int(positions.max()) + 1
        slots = torch.arange(self.span, device=positions.device)
        return (slots <= positions[:, :, None])[:, None]

    def expand(self, rows: int) -> None:
        """Turn a cache of one row into `rows` copies of it."""
        for layer in self.layers:
            layer.keys = layer.keys.repeat(rows, 1, 1, 1)
            layer.values = layer.values.repeat(rows, 1, 1, 1)

    def select(self, rows: torch.Tensor) -> None:
        """Keep only the given rows (int64 [kept]), in that order."""
        for layer in self.layers:
            layer.keys = layer.keys.index_select(0, rows)
            layer.values = layer.values.index_select(0, rows)


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Grouped-query attention that never copies keys or values.

    The query heads that share a key/value head become extra query positions of it.  Shapes: query
    [rows, heads, queries, dim], key and value [rows, kv_heads, span, dim], mask bool
    [rows, 1, queries, span]; returns [rows, queries, heads, dim].
    """
    rows, heads, queries, width = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    folded = query.reshape(rows, kv_heads, group * queries, width)
    mask = attention_mask.repeat(1, 1, group, 1)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(rows, heads, queries, -1).transpose(1, 2), None


AttentionInterface.register(ATTENTION, grouped_attention)
