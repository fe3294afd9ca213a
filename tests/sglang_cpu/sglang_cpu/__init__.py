"""A plugin of SGLang 0.5.23 with which DFLASH runs on a CPU, on the `torch_native` backend.

SGLang itself offers DFLASH on accelerators only. What it lacks on a CPU is attention over a block that is
verified, sampling along a chain of drafts, and one fused norm with rotary embedding: they stand here in torch.
Besides, a drafter gets the embeddings of its block in its own dtype, where SGLang makes them bfloat16, which a
drafter in float32 cannot take.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class _Platform:
    """The platform as it is, but for what it says of speculative decoding."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def is_out_of_tree(self) -> bool:
        return True

    def supports_speculative_algorithm(self, _: Any) -> bool:
        return True

    def supports_speculative_draft_attention_backend(self, _: Any, backend: str) -> bool:
        return backend == "torch_native"

    def get_default_speculative_draft_attention_backend(self, _: Any) -> str:
        return "torch_native"


def _attention_backend(runner: Any) -> Any:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.layers.radix_attention import AttentionType
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    class Backend(TorchNativeAttnBackend):
        def forward_extend(
            self, q: Tensor, k: Tensor, v: Tensor, layer: Any, batch: Any, save_kv_cache: bool = True, **_: Any
        ) -> Tensor:
            if not batch.forward_mode.is_target_verify():
                return super().forward_extend(q, k, v, layer, batch, save_kv_cache)
            if save_kv_cache and k is not None:
                place = KVWriteLoc(batch.out_cache_loc, self.swa_out_cache_loc)
                self.token_to_kv_pool.set_kv_buffer(layer, place, k, v)
            size = batch.spec_info.draft_token_num
            heads, width = layer.tp_q_head_num, layer.qk_head_dim
            queries = q.view(-1, size, heads, width)
            out = q.new_empty(len(queries), size, heads, layer.v_head_dim)
            keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
            values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
            window = layer.sliding_window_size
            places = zip(batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), strict=True)
            for i, (row, first) in enumerate(places):
                end = first + size
                slots = self.req_to_token_pool.req_to_token[row, :end].long()
                at, of = torch.arange(first, end)[:, None], torch.arange(end)[None]
                seen = of <= at
                if layer.attn_type == AttentionType.ENCODER_ONLY:
                    seen = torch.ones(size, end, dtype=torch.bool)
                if window is not None and window > -1:
                    seen = seen & (of >= at - window)
                out[i] = scaled_dot_product_attention(
                    queries[i].transpose(0, 1)[None],
                    keys[slots].transpose(0, 1)[None].to(q.dtype),
                    values[slots].transpose(0, 1)[None].to(q.dtype),
                    attn_mask=seen,
                    scale=layer.scaling,
                    enable_gqa=heads != layer.tp_k_head_num,
                )[0].transpose(0, 1)
            return out.reshape(q.shape[0], heads * layer.v_head_dim)

    return Backend(runner)


def _sample_along_chains(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    **_: Any,
) -> None:
    """SGLang's sampling along a tree of drafts, for a tree that is a chain."""
    accept_index.fill_(-1)
    for row in range(len(candidates)):
        accept_index[row, 0] = retrive_index[row, 0]
        last, rest = 0, None
        for t in range(1, candidates.shape[1]):
            token = int(candidates[row, t])
            chance = float(target_probs[row, t - 1, token])
            if float(uniform_samples[row, t]) > chance / threshold_acc and chance < threshold_single:
                rest = target_probs[row, t - 1].clone()
                rest[token] = 0
                break
            predicts[int(retrive_index[row, t - 1])] = token
            accept_index[row, t] = retrive_index[row, t]
            last = t
        rest = target_probs[row, last] if rest is None else rest
        sums = rest.float().cumsum(0)
        drawn = float(uniform_samples_for_final_sampling[row]) * float(sums[-1])
        token = int((sums > drawn).nonzero()[0]) if float(sums[-1]) > 0 else int(rest.argmax())
        predicts[int(retrive_index[row, last])] = token
        accept_token_num[row] = last


def _norm_and_rotate(
    qkv: Tensor,
    positions: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin_cache: Tensor,
    heads: int,
    kv_heads: int,
    width: int,
    eps: float,
) -> None:
    """Root-mean-square norm and rotary embedding of queries and keys, in place."""
    if not len(qkv):
        return
    both = qkv[:, : (heads + kv_heads) * width].view(len(qkv), heads + kv_heads, width)
    wide = both.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    weight = torch.cat([q_weight.float().expand(heads, width), k_weight.float().expand(kv_heads, width)])
    wide = (wide * weight).to(qkv.dtype).float()
    cos, sin = cos_sin_cache[positions].float()[:, None].chunk(2, dim=-1)
    left, right = wide.chunk(2, dim=-1)
    both.copy_(torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(qkv.dtype))


def _embeddings_as_the_drafter_computes() -> None:
    from sglang.srt.model_executor.model_runner import ModelRunner

    prepare = ModelRunner._extend_forward_kwargs

    def prepared(self: Any, batch: Any, *others: Any) -> dict[str, Any]:
        found: dict[str, Any] = prepare(self, batch, *others)
        if batch.input_embeds is not None:
            found["input_embeds"] = batch.input_embeds.to(self.dtype)
        return found

    ModelRunner._extend_forward_kwargs = prepared


def register() -> None:
    """What SGLang calls in each of its processes."""
    import sglang.kernels.ops.attention.table_qk_norm_rope as fused
    import sglang.kernels.ops.speculative.verify_sampling as sampling
    from sglang.srt.arg_groups import choices, speculative_hook
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    if not isinstance(speculative_hook.current_platform, _Platform):
        speculative_hook.current_platform = _Platform(speculative_hook.current_platform)
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign]
    if "torch_native" not in choices.DRAFT_ATTENTION_BACKEND_CHOICES:
        choices.add_draft_attention_backend_choices(["torch_native"])
    ATTENTION_BACKENDS["torch_native"] = _attention_backend
    fused.table_qk_norm_rope_ = _norm_and_rotate
    _embeddings_as_the_drafter_computes()
    if sampling.tree_speculative_sampling_target_only is None:
        sampling.tree_speculative_sampling_target_only = _sample_along_chains
    dflash = sys.modules.get("sglang.srt.speculative.dflash_utils")
    if dflash is not None:
        dflash.tree_speculative_sampling_target_only = _sample_along_chains
        dflash._DFLASH_SAMPLING_VERIFY_AVAILABLE = True
