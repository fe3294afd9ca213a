"""The DFlash drafter (arXiv 2602.06036): a small block-parallel decoder fed by the target's features.

Letters in the shapes: B documents or rows, N blocks of each, S tokens a block, T context tokens,
H hidden size, K tapped layers, A query heads, G key/value heads, D head size.

The context is what the target has already read: its tapped layers, concatenated, become one vector a
token, and every drafter layer makes its keys and values from it.  A block is the last known token,
the *anchor* at position p, followed by masks; its queries see the context strictly before p and the
whole block.  The output at offset j predicts the token at position p + j.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from synthspec.dflash import kernels
from synthspec.dflash.attention import attend
from synthspec.dflash.config import SLIDING, DrafterConfig
from synthspec.dflash.rotary import Rotary

KeysValues = tuple[Tensor, Tensor]  # [B, G, T, D] each


class Norm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight * wide).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., D] by angles [..., R], R ≤ D; what lies behind R passes through."""
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    left, right = turned.chunk(2, -1)
    turned = turned * cos + torch.cat([-right, left], -1) * sin
    return torch.cat([turned, rest], -1).to(x.dtype)


class Attention(nn.Module):
    """Block queries over context keys made from the target's features, and over the block itself."""

    def __init__(self, config: DrafterConfig, kind: str) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.head_dim
        self.heads, self.kv_heads, self.width = (
            config.num_attention_heads,
            config.num_key_value_heads,
            width,
        )
        self.window = config.sliding_window if kind == SLIDING else None
        bias = config.attention_bias
        self.q_proj = nn.Linear(hidden, self.heads * width, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * width, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * width, bias=bias)
        self.o_proj = nn.Linear(self.heads * width, hidden, bias=bias)
        self.q_norm = Norm(width, config.rms_norm_eps)
        self.k_norm = Norm(width, config.rms_norm_eps)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> KeysValues:
        """x [B, T, H], angles [B, T, R] → keys and values [B, G, T, D]."""
        keys = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, self.width)))
        keys = rotate(keys, cos[:, :, None], sin[:, :, None])
        values = self.v_proj(x).unflatten(-1, (self.kv_heads, self.width))
        return keys.transpose(1, 2), values.transpose(1, 2)

    def forward(
        self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor, context: KeysValues, seen: Tensor
    ) -> Tensor:
        """One attention over all blocks of a batch.

        Args:
            x: block states [B, N, S, H].
            at: int64 [B, N, S], the positions of the block's tokens.
            cos, sin: their angles [B, N, S, R].
            context: keys and values [B, G, T, D]; token t of the context stands at position t.
            seen: bool [B, N, T], the context that a block may look at.

        Returns:
            [B, N, S, H].
        """
        rows, blocks, size, _ = x.shape
        flat = x.flatten(1, 2), cos.flatten(1, 2), sin.flatten(1, 2)
        queries = self.q_norm(self.q_proj(flat[0]).unflatten(-1, (self.heads, self.width)))
        queries = rotate(queries, flat[1][:, :, None], flat[2][:, :, None])  # [B, N·S, A, D]
        queries = queries.view(rows, blocks, size, self.kv_heads, -1, self.width)
        queries = queries.permute(0, 3, 1, 4, 2, 5)  # [B, G, N, A / G, S, D]
        own = [part.unflatten(2, (blocks, size)) for part in self.keys_values(*flat)]  # [B, G, N, S, D]
        visible = seen[:, :, None]
        within = torch.ones(size, size, dtype=torch.bool, device=at.device)
        if self.window is not None:
            slots = torch.arange(seen.shape[-1], device=at.device)
            visible = visible & (slots > at[..., None] - self.window)
            within = within.tril()
        out = attend(queries.flatten(3, 4), context, (own[0], own[1]), visible, within)
        out = out.unflatten(3, (-1, size)).permute(0, 2, 4, 1, 3, 5)  # [B, N, S, G, A / G, D]
        mixed: Tensor = self.o_proj(out.flatten(3))
        return mixed


class Mlp(nn.Module):
    """The gated feed-forward part, x [..., H] → [..., H]."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Layer(nn.Module):
    def __init__(self, config: DrafterConfig, kind: str) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, kind)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(
        self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor, context: KeysValues, seen: Tensor
    ) -> Tensor:
        mixed: Tensor = x + self.self_attn(self.input_layernorm(x), at, cos, sin, context, seen)
        out: Tensor = mixed + self.mlp(self.post_attention_layernorm(mixed))
        return out


class Drafter(nn.Module):
    """The drafter without embedding and head, which are the target's own and stay frozen."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = Norm(hidden, config.rms_norm_eps)
        self.layers: Sequence[Layer] = nn.ModuleList(  # type: ignore[assignment]
            Layer(config, kind) for kind in config.layer_types
        )
        self.norm = Norm(hidden, config.rms_norm_eps)
        self.rotary = Rotary(config)

    def _apply(self, fn: Any, recurse: bool = True) -> Drafter:
        """Move or cast the weights; the rotary frequencies move too, but are never rounded."""
        super()._apply(fn, recurse)
        self.rotary.to(self.fc.weight.device)
        return self

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [B, T] → cos and sin [B, T, R] in float32."""
        return self.rotary(positions)

    def inject(self, features: Tensor, positions: Tensor) -> list[KeysValues]:
        """Turn the target's features [B, T, K·H] at positions [B, T] into every layer's keys and values."""
        context = self.hidden_norm(self.fc(features))
        cos, sin = self.angles(positions)
        attentions = [layer.self_attn for layer in self.layers]
        if kernels.usable(context):
            from synthspec.dflash.kernels.inject import inject

            return inject(context, attentions, cos, sin)
        return [attention.keys_values(context, cos, sin) for attention in attentions]

    def forward(self, block: Tensor, at: Tensor, context: list[KeysValues], seen: Tensor) -> Tensor:
        """Guess all tokens of all blocks at once.

        Args:
            block: embeddings of anchor and masks [B, N, S, H].
            at: int64 [B, N, S], their positions.
            context: from `inject`, one pair a layer.
            seen: bool [B, N, T]: the context of each block, all of it before its anchor.

        Returns:
            [B, N, S, H] for the target's head; offset j predicts the token at position p + j.
        """
        rows, blocks, size, _ = block.shape
        cos, sin = self.angles(at.reshape(rows, -1))
        cos, sin = cos.unflatten(1, (blocks, size)), sin.unflatten(1, (blocks, size))
        x = block
        for layer, keys_values in zip(self.layers, context, strict=True):
            x = layer(x, at, cos, sin, keys_values, seen)
        normed: Tensor = self.norm(x)
        return normed
