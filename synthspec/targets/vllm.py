"""vLLM servers as workers: token ids in, token ids out, over /v1/completions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from synthspec.errors import UserError
from synthspec.grammar.constraint import Constraint
from synthspec.targets.fleet import Answered, Fault, Unfit
from synthspec.targets.http import Server
from synthspec.targets.sglang import PROBE, Expected, check_answer

Row = dict[str, Any]

# vLLM 0.21 is the first that asks for xgrammar 0.2: an older one does not read our structural tags.
TAGS_SINCE = (0, 21)

# vLLM takes what a request leaves out from the model's generation_config.json.
NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0}


class VllmServer:
    """One server; fits `fleet.Worker`."""

    def __init__(self, url: str, expected: Expected, key: str | None = None) -> None:
        self._server = Server(url, key)
        self.name = self._server.url
        self._expected = expected
        self._model = ""

    async def meet(self) -> Mapping[str, Any]:
        """Check tokenizer, chat template and context; see `fleet.Worker`."""
        ours, url = self._expected, self.name
        try:
            version, _ = await self._server.call("GET", "/version")
            models, _ = await self._server.call("GET", "/v1/models")
            served = models["data"][0]
            body = {"model": served["id"], "messages": [{"role": "user", "content": PROBE}]}
            read, _ = await self._server.call("POST", "/tokenize", {**body, "add_generation_prompt": True})
            tokens, room = read["tokens"], served.get("max_model_len")
        except (Unfit, KeyError, IndexError, TypeError, AttributeError):
            raise UserError(
                f"worker.urls: {url} does not say what it serves: is it vLLM 0.21 or newer?"
            ) from None
        if tokens != ours.probe_ids:
            raise UserError(
                f"worker.urls: {url} serves {served.get('root') or served['id']}, whose tokenizer or chat "
                f"template is not that of {ours.model}: start it with the spec's target"
            )
        if isinstance(room, int) and room < ours.tokens:
            raise UserError(
                f"worker.urls: {url} has room for {room:,} tokens, and a request with its answer may have "
                f"{ours.tokens:,}: raise its --max-model-len"
            )
        if ours.constrained and (release := _release(version.get("version"))) and release < TAGS_SINCE:
            raise UserError(
                f"worker.urls: {url} is vLLM {version['version']}, whose grammar backend does not read what "
                "synthspec sends: start vLLM 0.21 or newer, or set generate.decode to free"
            )
        self._model = served["id"]
        return {"version": version.get("version"), "model": served["id"], "max_model_len": room}

    async def ask(self, row: Row, within: float) -> Answered:
        """Answer one request; see `fleet.Worker`."""
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(row["prompt_ids"]),
            "max_tokens": row["max_new_tokens"],
            "temperature": row.get("temperature") or 0.0,
            "top_p": row.get("top_p") or 1.0,
            "top_k": row.get("top_k") or -1,
            "seed": row["seed"] & 0x7FFFFFFF,
            "skip_special_tokens": False,
            "return_token_ids": True,
            **NEUTRAL,
        }
        if row["constraint"]:
            body["structured_outputs"] = Constraint.from_json(row["constraint"]).vllm()
        if row.get("logprobs"):
            body["logprobs"] = 0
        answer, fresh = await self._server.call("POST", "/v1/completions", body, within)
        try:
            choice, usage = answer["choices"][0], answer["usage"]
            ids, reason = choice["token_ids"], choice["finish_reason"]
            counted, read = usage["completion_tokens"], usage["prompt_tokens"]
            logprobs = (
                [float(one) for one in choice["logprobs"]["token_logprobs"]] if row.get("logprobs") else None
            )
        except (KeyError, IndexError, TypeError, ValueError):
            raise Fault("its answer has no token ids: is it vLLM 0.21 or newer?") from None
        check_answer(ids, reason, row, self._expected.vocab_size)
        if counted != len(ids) or read != len(row["prompt_ids"]):
            raise Fault(f"it counts {read} and {counted} tokens where there are others")
        if logprobs is not None and len(logprobs) != len(ids):
            raise Fault(f"it gives {len(logprobs)} log-probabilities of {len(ids)} tokens")
        return Answered(ids, reason, logprobs, fresh)

    async def close(self) -> None:
        await self._server.close()


def _release(version: Any) -> tuple[int, int] | None:
    """The first two numbers of a release; None of a build of one's own, whose numbers say nothing."""
    found = re.match(r"(\d+)\.(\d+)(?!.*dev)", version) if isinstance(version, str) else None
    return (int(found[1]), int(found[2])) if found else None
