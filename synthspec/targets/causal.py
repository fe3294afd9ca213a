"""A causal language model opened up: embedding, layers with taps, head."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from synthspec.errors import UserError
from synthspec.targets.ragged import ATTENTION, RaggedCache


class CausalModel:
    """The parts of a transformers causal model that generating and drafting need.

    Args:
        model: a decoder-only `AutoModelForCausalLM` with plain softmax attention, over all tokens or a
            sliding window; its attention is switched to one that reads a `RaggedCache`.

    Raises:
        UserError: its attention needs more than that.
    """

    def __init__(self, model: Any) -> None:
        _refuse_other_attention(model.config.get_text_config())
        model.set_attn_implementation(ATTENTION)
        self.model = model.eval().requires_grad_(False)
        self.config = model.config.get_text_config()
        self.layers: nn.ModuleList = model.get_decoder().layers
        self.embedding: nn.Embedding = model.get_input_embeddings()
        self.head: nn.Linear = model.get_output_embeddings()
        self._taps = _Taps()
        for number, layer in enumerate(self.layers):
            self._taps.watch(number, layer)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def new_cache(self, capacity: int) -> RaggedCache:
        return RaggedCache(len(self.layers), capacity)

    @torch.no_grad()
    def forward(
        self, ids: Tensor, positions: Tensor, cache: RaggedCache, taps: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run the decoder over new tokens.

        Args:
            ids: int64 [rows, queries].
            positions: int64 [rows, queries], each token's place in its row.
            cache: what the rows hold so far; the new tokens are added to it.
            taps: 0-based decoder layers whose *outputs* are wanted.

        Returns:
            Final hidden states [rows, queries, hidden], after the last norm, and the taps
            concatenated [rows, queries, len(taps) * hidden], or None without taps.
        """
        mask = cache.aim(positions)
        window = getattr(self.config, "sliding_window", None)
        kinds = getattr(self.config, "layer_types", None)
        masks: Any = mask
        if window and kinds != ["full_attention"] * len(self.layers):
            slots = torch.arange(cache.span, device=positions.device)
            near = mask & (slots > positions[:, :, None] - window)[:, None]
            masks = {"full_attention": mask, "sliding_attention": near} if kinds else near
        self._taps.found = dict.fromkeys(taps)
        hidden = self.model.get_decoder()(
            input_ids=ids,
            attention_mask=masks,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        found, self._taps.found = self._taps.found, {}
        return hidden, torch.cat([found[tap] for tap in taps], -1) if taps else None

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] → [..., vocabulary], in the model's dtype."""
        # A view with gaps would make the product copy the head once a row; rows laid out flat never do.
        logits: Tensor = self.head(hidden.reshape(-1, hidden.shape[-1]))
        return logits.view(*hidden.shape[:-1], -1)


def _refuse_other_attention(config: Any) -> None:
    """Attention with sinks, capped scores, chunks or linear layers would run here and be silently wrong."""
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
    capped = getattr(config, "attn_logit_softcapping", None)
    if kinds or capped or config.model_type == "gpt_oss":
        what = ", ".join(sorted(kinds)) or ("capped scores" if capped else "attention sinks")
        raise UserError(
            f"target.model: {config.model_type} attends with {what}, which the target in this process cannot "
            "do: serve it with SGLang and set worker.kind to sglang"
        )


class _Taps(threading.local):
    """Outputs of the layers that the forward pass of this thread wants; others may run beside it."""

    def __init__(self) -> None:
        self.found: dict[int, Any] = {}

    def watch(self, number: int, layer: nn.Module) -> None:
        """Keep what the layer puts out, whenever it is wanted."""

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if number in self.found:
                self.found[number] = output[0] if isinstance(output, tuple) else output

        layer.register_forward_hook(keep)
