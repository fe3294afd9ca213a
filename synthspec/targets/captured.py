"""Features of the target's layers captured from a SGLang server, instead of from a model in this process.

The server is started with `--disable-radix-cache --enable-return-aux-hidden-states --speculative-algorithm
DFLASH --return-aux-hidden-state-layer-ids …`: the ids are the drafter's `target_layer_ids`, of the outputs of
layers counted from 0.  SGLang cannot give that of the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch
from torch import Tensor

from synthspec.errors import Stopped, UserError
from synthspec.targets.causal import CausalModel
from synthspec.targets.fleet import Fault, Unfit
from synthspec.targets.generate import prefill
from synthspec.targets.http import Server

AT_ONCE = 8
TRIES = 4  # of one document
ALIKE = 0.999  # cosine of a tap with itself, in bfloat16


class Captured:
    """A server that gives features.

    Args:
        taps: 0-based layers, as the server was started with.
        hidden: of the target.
        key: that the server wants.
    """

    def __init__(self, url: str, taps: Sequence[int], hidden: int, key: str | None = None) -> None:
        self._server = Server(url, key)
        self._taps = tuple(taps)
        self._hidden = hidden

    def fetch(self, documents: Sequence[Sequence[int]]) -> list[Tensor]:
        """The features of documents: bfloat16 [tokens, K · hidden] of each.

        Raises:
            UserError: the server does not give these features.
            Stopped: it does not answer.
        """
        try:
            return asyncio.run(self._all(documents))
        except Unfit as error:
            raise UserError(
                f"the server {self._server.url} gives no features ({error}); {self._flags()}"
            ) from None
        except Fault as error:
            raise Stopped(
                f"the server {self._server.url} failed: {error}; run the same command again"
            ) from None

    def prove(self, model: CausalModel, ids: Sequence[int]) -> list[float]:
        """Show that the features are those of the target's layers, and of no neighbours.

        Args:
            model: the same target in this process.
            ids: a prompt.

        Returns:
            For each tap its cosine with the same layer in this process, over all tokens but the first.

        Raises:
            UserError: a tap is another layer, or of another model; names the layer that it is most like.
        """
        (given,) = self.fetch([ids])
        layers = range(len(model.layers))
        cache = None if model.recurrent else model.new_cache(len(ids))
        _, own = prefill(model, [list(ids)], cache, layers)
        assert own is not None
        ours = own[0].float().cpu().view(len(ids), len(layers), self._hidden)
        theirs = given.float().view(len(ids), len(self._taps), self._hidden)
        found: list[float] = []
        for place, tap in enumerate(self._taps):
            # The first token's states are huge in a few channels, and alike in all layers.
            like = torch.cosine_similarity(theirs[1:, place, None], ours[1:], dim=-1).mean(0)
            best = int(like.argmax())
            if best != tap or like[tap] < ALIKE:
                raise UserError(
                    f"the server {self._server.url} gives for layer {tap} what is most like the output of "
                    f"layer {best} (cosine {float(like[best]):.4f}, of layer {tap} {float(like[tap]):.4f}): it "
                    f"serves another model, or counts its layers otherwise; {self._flags()}"
                )
            found.append(float(like[tap]))
        return found

    def _flags(self) -> str:
        taps = " ".join(map(str, self._taps))
        return (
            "start it with --disable-radix-cache --enable-return-aux-hidden-states --speculative-algorithm "
            f"DFLASH --return-aux-hidden-state-layer-ids {taps}"
        )

    async def _all(self, documents: Sequence[Sequence[int]]) -> list[Tensor]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(ids: Sequence[int]) -> Tensor:
            async with gate:
                for attempt in range(1, TRIES):
                    try:
                        return await self._one(ids)
                    except Fault:
                        await asyncio.sleep(attempt)
                return await self._one(ids)

        try:
            return await asyncio.gather(*map(one, documents))
        finally:
            await self._server.close()

    async def _one(self, ids: Sequence[int]) -> Tensor:
        body = {
            "input_ids": list(ids),
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_hidden_states": True,
        }
        answer, _ = await self._server.call("POST", "/generate", body, 600.0)
        width = len(self._taps) * self._hidden
        try:
            states = torch.tensor(answer["meta_info"]["hidden_states"][0], dtype=torch.float32)
        except (KeyError, TypeError, IndexError, ValueError):
            raise Unfit("its answer holds none") from None
        if states.shape != (len(ids), width):
            raise Unfit(f"they have the shape {list(states.shape)} and not {[len(ids), width]}")
        return states.to(torch.bfloat16)
