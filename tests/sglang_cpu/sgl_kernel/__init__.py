"""SGLang's kernel package for the CPU, in plain torch: the few copies that its CPU path always asks for.

`torch.ops.sgl_kernel.convert_weight_packed` is left out on purpose: without it SGLang takes every layer in
plain torch, which runs on any CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__version__ = "0.0.0+torch"


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, _: int
) -> None:
    at = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[row, first:last] = out_cache_loc[at : at + last - first].to(req_to_token.dtype)
        at += last - first


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, _: int
) -> None:
    at = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        out_cache_loc[at : at + last - first] = req_to_token[row, first:last].to(out_cache_loc.dtype)
        at += last - first


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    _: int,
    topk: int,
    num_steps: int,
) -> None:
    count = topk * num_steps
    for i, (row, first) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        places = req_to_token[row, first : first + count]
        out_cache_loc[i * count : (i + 1) * count] = places.to(out_cache_loc.dtype)


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    last = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.view(-1)[last].to(bonus_tokens.dtype))


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    kept = accept_index.view(-1)
    kept = kept[kept > -1].long()
    accept_out_cache_loc[: kept.numel()] = out_cache_loc[kept]


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + place * stride, stride) for place in src_loc.tolist()]
        for place, row in zip(tgt_loc.tolist(), rows, strict=True):
            ctypes.memmove(base + place * stride, row, stride)


def __getattr__(name: str) -> Callable[..., Any]:
    """What is imported but never called on this path."""
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no version in plain torch here")

    return absent


_library = torch.library.Library("sgl_kernel", "DEF")
_library.define("initialize(int size, int rank) -> ()")
_library.impl("initialize", lambda size, rank: None, "CompositeExplicitAutograd")
_library.define("init_cpu_threads_env(str cpu_ids) -> str")
_library.impl("init_cpu_threads_env", lambda cpu_ids: cpu_ids, "CompositeExplicitAutograd")
