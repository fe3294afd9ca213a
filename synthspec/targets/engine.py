"""SGLang in this process as a worker: the same requests and answers as over /generate, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from threading import Thread
from typing import Any

from synthspec.errors import UserError, first_line
from synthspec.spec import Engine
from synthspec.targets.fleet import Answered, Fault
from synthspec.targets.load import LoadedTarget
from synthspec.targets.sglang import answered, sampling

Row = dict[str, Any]


class SglangEngine:
    """An engine that loads the target's files; fits `fleet.Worker`.

    To be made in the main thread, since SGLang sets signal handlers; its own processes end with `close`.

    Raises:
        UserError: SGLang is not installed, or does not start.
    """

    name = "sglang_engine"

    def __init__(self, target: LoadedTarget, settings: Engine, longest: int) -> None:
        try:
            import sglang
        except ImportError:
            raise UserError(
                "worker.kind: sglang_engine needs SGLang in this environment: run pip install "
                "'synthspec[sglang]', or start servers and set worker.kind to sglang"
            ) from None
        self._vocabulary = target.description["vocab_size"]
        chosen = {
            "grammar_backend": "xgrammar",
            "constrained_json_disable_any_whitespace": True,
            "log_level": "error",
            **settings.options,
        }
        try:
            self._engine = sglang.Engine(
                model_path=target.place.path, revision=target.place.commit, tp_size=settings.tp, **chosen
            )
        except Exception as error:  # SGLang fails in a hundred ways
            raise UserError(f"worker: SGLang does not start with these options ({first_line(error)})") from None
        room = self._engine.get_server_info().get("max_req_input_len")
        # What reads its answers lives on its own loop, which does not run by itself.
        self._loop: asyncio.AbstractEventLoop = self._engine.loop
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        if isinstance(room, int) and room < longest:
            self._end()
            raise UserError(
                f"worker.options: there is room for {room:,} tokens, and a request with its answer may have "
                f"{longest:,}: raise context_length"
            )

    async def meet(self) -> Mapping[str, Any]:
        """It was started with the spec's own files."""
        return {}

    async def ask(self, row: Row, within: float) -> Answered:
        """Answer one request; see `fleet.Worker`."""
        asked = self._engine.async_generate(
            input_ids=list(row["prompt_ids"]),
            sampling_params=sampling(row),
            return_logprob=bool(row.get("logprobs")),
        )
        try:
            answer = await asyncio.wait_for(
                asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._loop)), within
            )
        except TimeoutError:
            raise Fault(f"it gives no answer in {within:.0f} s") from None
        except ValueError as error:
            raise Fault(f"it refuses the request ({first_line(error)})") from None
        return answered(answer, row, self._vocabulary)

    async def close(self) -> None:
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._engine.shutdown()
