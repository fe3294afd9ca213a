"""Rotary angles of the drafter: how fast each pair of a head turns, as the engines that serve it turn it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from synthspec.dflash.config import DrafterConfig


class Rotary:
    """Angles of token positions; its frequencies stay float32 whatever the drafter is cast to.

    At position 300 a frequency in bfloat16 is off by half a radian.

    Args:
        config: its `rope_parameters` say which scaling; R is its `rotary_width`.
    """

    def __init__(self, config: DrafterConfig) -> None:
        self.kind: str = config.rope_parameters["rope_type"]
        self.short, self.scale = frequencies(config)
        self.long, self.original = self.short, math.inf
        if self.kind == "longrope":
            self.original = config.rope_parameters["original_max_position_embeddings"]
            self.long, _ = frequencies(config, int(self.original) + 1)

    def to(self, device: torch.device) -> None:
        self.short, self.long = self.short.to(device), self.long.to(device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [B, T] → cos and sin [B, T, R], float32, times what the scaling asks for.

        `longrope` takes its long factors when one of the positions lies beyond the original length, as
        transformers and SGLang do.
        """
        chosen = self.short
        if self.kind == "longrope" and int(positions.max()) >= self.original:
            chosen = self.long
        turns = positions[..., None].float() * chosen.to(positions.device)
        angles = torch.cat([turns, turns], -1)
        return angles.cos() * self.scale, angles.sin() * self.scale


def frequencies(config: DrafterConfig, length: int | None = None) -> tuple[Tensor, float]:
    """Radians a token of every pair, float32 [R / 2], and what cosine and sine are multiplied by.

    The formulas are transformers' (`modeling_rope_utils`).  `dynamic` is taken at its longest text,
    `factor · max_position_embeddings`: SGLang and vLLM fix it there, transformers lets it change as a text
    grows.

    Args:
        length: tokens of the text, where `longrope` asks for it.
    """
    rope = dict(config.rope_parameters)
    kind = rope["rope_type"]
    if kind == "default":
        width = config.rotary_width
        return 1.0 / (rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float) / width)), 1.0
    # Seconds, and memory that training would keep, for these alone.
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind == "dynamic":
        length = int(rope["factor"] * config.max_position_embeddings)
    share = {name: rope[name] for name in ("partial_rotary_factor",) if name in rope}
    settings: Any = Qwen3Config(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=rope,
        **share,
    )
    turns, scale = ROPE_INIT_FUNCTIONS[kind](settings, torch.device("cpu"), seq_len=length)
    return turns.float(), float(scale)
