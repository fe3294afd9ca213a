"""A key/value cache whose rows share a beginning and then have lengths of their own; attention over it.

Position is place: a token at position i is stored i tokens behind the row's start, so the causal mask is
the whole truth: a query at position p sees 0..p and nothing else.  What lies behind p, be it padding or a
rejected draft, is never read and is overwritten when the row gets there.  One cache therefore serves
batched generation and batched speculative decoding alike, and a row is shortened by moving its position
back.

What all rows begin with, such as a long system prompt, is stored once, and attention reads it once for
all of them: on a CPU the time of a step is the time of reading keys and values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

ATTENTION = "synthspec_ragged"
# Up to so many queries a row, a step's time is that of reading keys and values; beyond, of computing.
FEW = 16


class Parts(NamedTuple):
    """Keys, or values, of one layer: what the rows share [1, kv_heads, shared, dim], and their own
    [rows, kv_heads, span − shared, dim]."""

    shared: Tensor | None
    own: Tensor

    def joined(self) -> Tensor:
        """[rows, kv_heads, span, dim]; copies when there is a shared part."""
        if self.shared is None:
            return self.own
        return torch.cat([self.shared.expand(len(self.own), -1, -1, -1), self.own], 2)

    def to(self, device: torch.device) -> Parts:
        """Gemma 4 hands keys from layer to layer, each on the device of the next."""
        return Parts(None if self.shared is None else self.shared.to(device), self.own.to(device))


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one layer, [rows, kv_heads, capacity, head_dim] behind the shared beginning."""

    def __init__(self, cache: RaggedCache) -> None:
        super().__init__()
        self._cache = cache
        self.shared_keys: Tensor | None = None
        self.shared_values: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, heads, _, width = key_states.shape
        room = self._cache.capacity - self._cache.shared
        self.keys = key_states.new_zeros(rows, heads, room, width)
        self.values = value_states.new_zeros(rows, heads, room, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Parts, Parts]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        slots, used = self._cache.slots, self._cache.span - self._cache.shared
        rows = torch.arange(len(slots), device=slots.device)[:, None]
        self.keys[rows, :, slots] = key_states.transpose(1, 2)
        self.values[rows, :, slots] = value_states.transpose(1, 2)
        own_keys, own_values = self.keys[:, :, :used], self.values[:, :, :used]
        return Parts(self.shared_keys, own_keys), Parts(self.shared_values, own_values)

    def share(self, tokens: int) -> None:
        """Make the first tokens of this layer's only row the beginning of all rows to come."""
        assert self.keys is not None
        assert self.values is not None
        self.shared_keys, self.shared_values = self.keys[:, :, :tokens], self.values[:, :, :tokens]
        self.is_initialized = False

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
        capacity: the largest position that will be written, plus one.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__(layers=[RaggedLayer(self) for _ in range(layers)])
        self.capacity = capacity
        self.shared = 0
        self.slots = torch.zeros(0, 0, dtype=torch.long)
        self.span = 0

    def aim(self, positions: Tensor) -> Tensor:
        """Say where the next forward pass writes; return its causal mask.

        Args:
            positions: int64 [rows, queries], the position of every query token.

        Returns:
            bool [rows, 1, queries, span]: True where a query may look.
        """
        self.slots = positions - self.shared
        self.span = int(positions.max()) + 1
        places = torch.arange(self.span, device=positions.device)
        return (places <= positions[:, :, None])[:, None]

    def share(self) -> None:
        """Make what the cache's only row holds the beginning of all rows to come."""
        for layer in self._used():
            layer.share(self.span)
        self.shared = self.span

    def select(self, rows: Tensor) -> None:
        """Keep only the given rows (int64 [kept]), in that order."""
        for layer in self._used():
            layer.keys = layer.keys.index_select(0, rows)
            layer.values = layer.values.index_select(0, rows)

    def _used(self) -> list[Any]:
        """Layers with keys of their own; in some models the last ones read those of earlier layers."""
        return [layer for layer in self.layers if layer.is_initialized]


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Parts,
    value: Parts,
    attention_mask: Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Grouped-query attention that copies no key or value for a query head.

    The query heads that share a key/value head become further queries of it.  When rows have few queries,
    those of all rows become one product over the shared beginning, and the softmax runs over both parts.

    Args:
        query: [rows, heads, queries, dim].
        key, value: `Parts` as the cache gives them.
        attention_mask: bool [rows, 1, queries, span].
        softcap: scores become softcap · tanh(score / softcap), as in Gemma 2.
        s_aux: [heads], the score of a sink that takes part in the softmax and gives no value, as in gpt-oss.

    Returns:
        [rows, queries, heads, dim], and None for the weights that nobody asks for.
    """
    rows, heads, queries, width = query.shape
    kv_heads = key.own.shape[1]
    group = heads // kv_heads
    folded = query.reshape(rows, kv_heads, group * queries, width)
    mask = attention_mask.repeat(1, 1, group, 1)
    plain = not softcap and s_aux is None
    apart = key.shared is not None and value.shared is not None and queries <= FEW
    if plain and not apart:
        keys, values = key.joined(), value.joined()
        out = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
        return out.reshape(rows, heads, queries, -1).transpose(1, 2), None
    folded = folded * (width**-0.5 if scaling is None else scaling)
    if apart:
        assert key.shared is not None
        together = folded.transpose(0, 1).flatten(1, 2)  # [kv_heads, rows · group · queries, dim]
        of_shared = (together @ key.shared[0].transpose(-1, -2)).unflatten(1, (rows, -1)).transpose(0, 1)
        scores = torch.cat([of_shared, folded @ key.own.transpose(-1, -2)], -1).float()
    else:
        scores = (folded @ key.joined().transpose(-1, -2)).float()
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill_(~mask, float("-inf"))
    if s_aux is not None:
        sinks = s_aux.float().view(1, kv_heads, group, 1).expand(rows, -1, -1, queries).flatten(2)[..., None]
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1).to(query.dtype)
    if s_aux is not None:
        weights = weights[..., :-1]
    if apart:
        assert key.shared is not None
        assert value.shared is not None
        to_shared, to_own = weights.split([key.shared.shape[2], key.own.shape[2]], -1)
        out = (
            (to_shared.transpose(0, 1).flatten(1, 2) @ value.shared[0]).unflatten(1, (rows, -1)).transpose(0, 1)
        )
        out = out + to_own @ value.own
    else:
        out = weights @ value.joined()
    return out.reshape(rows, heads, queries, -1).transpose(1, 2), None


AttentionInterface.register(ATTENTION, grouped_attention)
