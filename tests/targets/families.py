"""Tiny random models of every family of targets: transformers' own code, a few layers, milliseconds to run."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

VOCABULARY, LAYERS, WINDOW = 97, 6, 8
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LINEAR: dict[str, Any] = {
    "layer_types": [LINEAR, LINEAR, FULL] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}
_SLIDING: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": [SLIDING, FULL] * 3}

ATTENDING = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**_COMMON)),
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**_COMMON, sliding_window=WINDOW)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**_COMMON)),
    "qwen3 with a window": lambda: tf.Qwen3ForCausalLM(
        tf.Qwen3Config(**_COMMON, **_SLIDING, use_sliding_window=True)
    ),
    "qwen3_moe": lambda: tf.Qwen3MoeForCausalLM(
        tf.Qwen3MoeConfig(**_COMMON, **_EXPERTS, use_sliding_window=True, sliding_window=WINDOW)
    ),
    "gemma2": lambda: tf.Gemma2ForCausalLM(
        tf.Gemma2Config(
            **_COMMON,
            **_SLIDING,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
            query_pre_attn_scalar=16,
        )
    ),
    "gemma3": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(**_COMMON, **_SLIDING, query_pre_attn_scalar=16)
    ),
    "gemma3 with eyes": lambda: tf.Gemma3ForConditionalGeneration(
        tf.Gemma3Config(
            text_config={**_COMMON, **_SLIDING, "query_pre_attn_scalar": 16, "tie_word_embeddings": True},
            vision_config={
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
        )
    ),
    "gemma4": lambda: tf.Gemma4ForCausalLM(
        tf.Gemma4TextConfig(**_COMMON, **_SLIDING, final_logit_softcapping=3.0, **_GEMMA4)
    ),
    "gemma4 with shared keys": lambda: tf.Gemma4ForCausalLM(
        tf.Gemma4TextConfig(**_COMMON, **_SLIDING, **(_GEMMA4 | {"num_kv_shared_layers": 2}))
    ),
    "gpt_oss": lambda: tf.GptOssForCausalLM(
        tf.GptOssConfig(**_COMMON, **_SLIDING, num_local_experts=4, num_experts_per_tok=2)
    ),
}
_GEMMA4: dict[str, Any] = {
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": VOCABULARY,
    "num_kv_shared_layers": 0,
    "global_head_dim": 16,
}
RECURRENT = {
    "qwen3_next": lambda: tf.Qwen3NextForCausalLM(
        tf.Qwen3NextConfig(**_COMMON, **_EXPERTS, **_LINEAR, shared_expert_intermediate_size=16)
    ),
    "qwen3_5": lambda: tf.Qwen3_5ForCausalLM(tf.Qwen3_5TextConfig(**_COMMON, **_LINEAR)),
}
FAMILIES = ATTENDING | RECURRENT


def build(family: str) -> Any:
    """A model of a family in float32, the same one each time, none of whose weights is still as it was made."""
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return model
