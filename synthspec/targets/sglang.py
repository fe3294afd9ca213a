"""SGLang servers as workers: token ids in, token ids out, over /generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from synthspec.errors import UserError
from synthspec.grammar.constraint import Constraint
from synthspec.targets.fleet import Answered, Fault, Unfit
from synthspec.targets.http import Server

Row = dict[str, Any]

# Words, digits, spaces, accents, an emoji and JSON: tokenizers and templates that differ split it apart.
PROBE = 'Prüfung 1234567  of\ttokens 🙂: {"key": [1.5, null]}\n'

# What siblings must share, of /server_info.
SHARED = (
    "version",
    "context_length",
    "grammar_backend",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "constrained_json_disable_any_whitespace",
    "reasoning_parser",  # whether and how it takes thinking apart
)


@dataclass(frozen=True)
class Expected:
    """What a server must be, to be the spec's target.

    Args:
        model, revision: as the spec names them; a revision that is None may be any.
        probe_ids: `PROBE` as a user's turn, rendered and tokenized as the target does.
        vocab_size: tokens have smaller ids.
        tokens: the most that a request and its answer may have.
        constrained: requests are held to grammars.
    """

    model: str
    revision: str | None
    probe_ids: list[int]
    vocab_size: int
    tokens: int = 0
    constrained: bool = True


def sampling(row: Row) -> dict[str, Any]:
    """SGLang's `sampling_params` of a request: greedy unless it has a temperature, under its constraint."""
    params: dict[str, Any] = {
        "temperature": row.get("temperature") or 0.0,
        "max_new_tokens": row["max_new_tokens"],
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if params["temperature"]:
        params |= {"top_p": row.get("top_p") or 1.0, "top_k": row.get("top_k") or -1}
        params["sampling_seed"] = row["seed"] & 0x7FFFFFFF
    if row["constraint"]:
        params |= Constraint.from_json(row["constraint"]).sglang()
    return params


class SglangServer:
    """One server, or a `sglang-router` with several behind it; fits `fleet.Worker`."""

    def __init__(self, url: str, expected: Expected, key: str | None = None) -> None:
        self._server = Server(url, key)
        self.name = self._server.url
        self._expected = expected
        self._key = key

    async def meet(self) -> Mapping[str, Any]:
        """Check tokenizer, chat template, revision, context and grammar backend; see `fleet.Worker`.

        A router says none of it; the servers that it names are asked themselves.
        """
        ours, url = self._expected, self.name
        try:
            info, _ = await self._server.call("GET", "/server_info")
            about, _ = await self._server.call("GET", "/model_info")
            messages = [{"role": "user", "content": PROBE}]
            read, _ = await self._server.call("POST", "/tokenize", {"messages": messages})
            told = {key: info.get(key) for key in SHARED} | {"weight_version": about.get("weight_version")}
            model, revision = about.get("model_path"), info.get("revision")
            room = info.get("max_req_input_len")
            tokens = read.get("tokens")
        except (Unfit, AttributeError):
            if behind := await self._behind():
                return await self._meet_all(behind)
            raise UserError(
                f"worker.urls: {url} does not say what it serves: is it SGLang 0.5.23 or newer?"
            ) from None
        if tokens != ours.probe_ids:
            raise UserError(
                f"worker.urls: {url} serves {model}, whose tokenizer or chat template is not that of "
                f"{ours.model}: start it with the spec's target"
            )
        if ours.revision and revision and revision != ours.revision:
            raise UserError(
                f"worker.urls: {url} serves revision {revision} of {model}, and target.revision is "
                f"{ours.revision}: start it with that --revision"
            )
        if isinstance(room, int) and room < ours.tokens:
            raise UserError(
                f"worker.urls: {url} has room for {room:,} tokens, and a request with its answer may have "
                f"{ours.tokens:,}: raise its --context-length"
            )
        if ours.constrained and told["grammar_backend"] == "none":
            raise UserError(
                f"worker.urls: {url} has no grammar backend: start it with --grammar-backend xgrammar, or set "
                "generate.decode to free"
            )
        return told

    async def _behind(self) -> list[str]:
        """Addresses of the servers behind a router; none, if this is a server."""
        try:
            told, _ = await self._server.call("GET", "/get_server_info")
            if not isinstance(told, dict) or "router_manager" not in told:
                return []
            listed, _ = await self._server.call("GET", "/workers")
            return [str(one["url"]) for one in listed["workers"]]
        except (Unfit, KeyError, TypeError):
            return []

    async def _meet_all(self, urls: Sequence[str]) -> Mapping[str, Any]:
        """What the servers behind a router say of themselves, which must be the same of all."""
        found: list[tuple[str, Mapping[str, Any]]] = []
        for url in urls:
            server = SglangServer(url, self._expected, self._key)
            try:
                found.append((url, await server.meet()))
            except Fault as fault:
                raise UserError(
                    f"worker.urls: behind the router {self.name} is {url}, which cannot be checked from here "
                    f"({fault}): name the servers themselves in place of the router"
                ) from None
            finally:
                await server.close()
        (first, told), *others = found
        for url, other in others:
            if different := [key for key in told if told[key] != other.get(key)]:
                raise UserError(
                    f"worker.urls: behind the router {self.name}, {url} and {first} differ in {different[0]}: "
                    "start them alike"
                )
        return told

    async def ask(self, row: Row, within: float) -> Answered:
        """Answer one request; see `fleet.Worker`."""
        body: dict[str, Any] = {"input_ids": list(row["prompt_ids"]), "sampling_params": sampling(row)}
        if row.get("logprobs"):
            body["return_logprob"] = True
        answer, fresh = await self._server.call("POST", "/generate", body, within)
        return answered(answer, row, self._expected.vocab_size, fresh=fresh)

    async def close(self) -> None:
        await self._server.close()


def check_answer(ids: Any, reason: Any, row: Row, vocab_size: int) -> None:
    """Fault unless an answer is what it says it is.

    Args:
        ids: must be token ids, not more than the request wants, and as many if `reason` is `length`.
        reason: must be `stop` or `length`.
    """
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < vocab_size for one in ids):
        raise Fault("its answer holds what are no token ids")
    most = row["max_new_tokens"]
    if reason not in ("stop", "length"):
        raise Fault("it gave the request up")
    if not ids or len(ids) > most or (reason == "length" and len(ids) != most):
        raise Fault(f"it wrote {len(ids)} tokens of {most} and says {reason}")


def answered(answer: Any, row: Row, vocab_size: int, *, fresh: bool = False) -> Answered:
    """What SGLang says that it wrote; Fault if it cannot be so."""
    try:
        meta = answer["meta_info"]
        ids, reason = answer["output_ids"], meta["finish_reason"]["type"]
        counted, read = meta["completion_tokens"], meta["prompt_tokens"]
        logprobs = [float(one[0]) for one in meta["output_token_logprobs"]] if row.get("logprobs") else None
    except (KeyError, TypeError, IndexError, ValueError):
        raise Fault("its answer has no token ids: is it SGLang 0.5.23 or newer?") from None
    check_answer(ids, reason, row, vocab_size)
    if counted != len(ids) or read != len(row["prompt_ids"]):
        raise Fault(f"it counts {read} and {counted} tokens where there are others")
    if logprobs is not None and len(logprobs) != len(ids):
        raise Fault(f"it gives {len(logprobs)} log-probabilities of {len(ids)} tokens")
    return Answered(ids, reason, logprobs, fresh)
