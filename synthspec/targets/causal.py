"""A causal language model opened up: embedding, layers with taps, head."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from synthspec.errors import UserError
from synthspec.targets.ragged import ATTENTION, RaggedCache

RECURRENT = {"linear_attention"}  # kinds of layers that carry a state from token to token


class CausalModel:
    """The parts of a transformers causal model that generating and drafting need.

    What enters a drafter is `embedding(ids)`, the target's own embedding as a module: a Gemma multiplies by
    √hidden in there, and so does SGLang's, which hands a served drafter the same (`dflash_worker_v2.py`:
    `noise_embedding = embed_module(block_ids)`; `gemma3_causal.py`: `Gemma3TextScaledWordEmbedding`, which
    `gemma4_causal.py` takes too).  A drafter's guesses are the largest of `head(hidden)`: that a Gemma caps its
    own logits changes no largest one, and SGLang leaves it out for the drafter.

    Args:
        model: a decoder-only `AutoModelForCausalLM` whose layers attend by softmax, over all tokens or a
            sliding window, with capped scores or sinks or without; such attention is switched to one that reads
            a `RaggedCache`.  Layers with a recurrent state beside them (Qwen3-Next, Qwen3.5) make it
            `recurrent`.

    Raises:
        UserError: its attention needs more than that.
    """

    def __init__(self, model: Any) -> None:
        self.config = model.config.get_text_config()
        kinds = set(getattr(self.config, "layer_types", None) or [])
        self.recurrent = bool(kinds & RECURRENT)
        _refuse_other_attention(self.config, kinds)
        if not self.recurrent:
            model.set_attn_implementation(ATTENTION)
        self.model = model.eval().requires_grad_(False)
        self.layers: nn.ModuleList = model.get_decoder().layers
        self.embedding: nn.Embedding = model.get_input_embeddings()
        self.head: nn.Linear = model.get_output_embeddings()
        self.cap: float | None = getattr(self.config, "final_logit_softcapping", None)
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
        """Room for keys and values of so many tokens a row.

        Raises:
            UserError: the model is recurrent.
        """
        if self.recurrent:
            raise UserError(
                f"target.model: {self.config.model_type} has layers with a recurrent state, which cannot be "
                "taken back when a draft is refused or a row is padded: this process can read texts with it "
                "and train on what it saw, but neither answer nor measure; serve it with SGLang and set "
                "worker.kind to sglang"
            )
        return RaggedCache(len(self.layers), capacity)

    @torch.no_grad()
    def forward(
        self, ids: Tensor, positions: Tensor, cache: RaggedCache | None, taps: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run the decoder over new tokens.

        Args:
            ids: int64 [rows, queries].
            positions: int64 [rows, queries], each token's place in its row.
            cache: what the rows hold so far; the new tokens are added to it.  None: the rows begin here, and
                nothing is kept.
            taps: 0-based decoder layers whose *outputs* are wanted.

        Returns:
            Final hidden states [rows, queries, hidden], after the last norm, and the taps
            concatenated [rows, queries, len(taps) * hidden], or None without taps.
        """
        self._taps.found = dict.fromkeys(taps)
        hidden = self.model.get_decoder()(
            input_ids=ids,
            attention_mask=None if cache is None else self._masks(positions, cache),
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state
        found, self._taps.found = self._taps.found, {}
        return hidden, torch.cat([found[tap] for tap in taps], -1) if taps else None

    def _masks(self, positions: Tensor, cache: RaggedCache) -> Any:
        """The causal mask, and the windowed one where layers have a window, in the form the decoder takes."""
        mask = cache.aim(positions)
        window = getattr(self.config, "sliding_window", None)
        kinds = getattr(self.config, "layer_types", None)
        masks: Any = mask
        if window and kinds != ["full_attention"] * len(self.layers):
            slots = torch.arange(cache.span, device=positions.device)
            near = mask & (slots > positions[:, :, None] - window)[:, None]
            masks = {"full_attention": mask, "sliding_attention": near} if kinds else near
        return masks

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] → [..., vocabulary], in the model's dtype, capped where the model caps them."""
        # A view with gaps would make the product copy the head once a row; rows laid out flat never do.
        logits: Tensor = self.head(hidden.reshape(-1, hidden.shape[-1]))
        if self.cap:
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits.view(*hidden.shape[:-1], -1)


def _refuse_other_attention(config: Any, kinds: set[str]) -> None:
    """Attention over chunks, or kinds that are not known here, would run and be silently wrong."""
    others = kinds - {"full_attention", "sliding_attention"} - RECURRENT
    if others:
        raise UserError(
            f"target.model: {config.model_type} attends with {', '.join(sorted(others))}, which the target in "
            "this process cannot do: serve it with SGLang and set worker.kind to sglang"
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
