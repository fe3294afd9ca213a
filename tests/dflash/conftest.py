"""Tiny random models: real transformers code, milliseconds to run."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from synthspec.dflash.config import FULL, DrafterConfig
from synthspec.dflash.model import Drafter
from synthspec.targets.causal import CausalModel

VOCABULARY, MASK = 97, 96


def tiny_llama(seed: int = 0, vocab_size: int = VOCABULARY, hidden_size: int = 32) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def model() -> CausalModel:
    return CausalModel(tiny_llama())


def drafter_config(**changes: object) -> DrafterConfig:
    settings: dict = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCABULARY,
        "block_size": 4,
        "num_target_layers": 6,
        "target_layer_ids": (1, 3),
        "mask_token_id": MASK,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "layer_types": (FULL, FULL),
    }
    return DrafterConfig(**(settings | changes))


@pytest.fixture
def drafter() -> Drafter:
    torch.manual_seed(1)
    return Drafter(drafter_config())
