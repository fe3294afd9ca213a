"""Workers looked at by themselves: who a server is, what it can do, and whether it is a spec's target."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synthspec.errors import Stopped, UserError, printable

Row = dict[str, Any]
AT_ONCE = 15.0  # seconds that a server may take to say who it is

# What a person wants to know about a SGLang server, of /server_info.
_TOLD = (
    "version",
    "revision",
    "dtype",
    "quantization",
    "context_length",
    "max_req_input_len",
    "max_running_requests",
    "grammar_backend",
    "constrained_json_disable_any_whitespace",
    "reasoning_parser",
    "tool_call_parser",
    "speculative_algorithm",
    "speculative_draft_model_path",
)

_OLD = "is it SGLang 0.5.23 or newer, or vLLM 0.21 or newer?"

_OK: Row = {"type": "object", "properties": {"ok": {"const": "yes"}}, "required": ["ok"]}


def check(urls: Sequence[str], spec: Path | None, key: str | None = None) -> list[Row]:
    """Ask servers who they are, and let each write a little.

    Args:
        spec: a spec file whose target they must be; None: any.
        key: that they want; with a spec, its own.

    Returns:
        One object a server: `url`, `model`, `engine` (`sglang` or `vllm`), what it says of itself, `writes`
        (token ids come back), `constrained` (it keeps to a JSON Schema), and `matches` (it is the spec's
        target; None without one).

    Raises:
        UserError: a server is not the spec's target, or neither SGLang nor vLLM; every one in a line.
        Stopped: one cannot be reached.
    """
    expected = None
    if spec is not None:
        from synthspec.run import open_run
        from synthspec.stages import facts
        from synthspec.targets.servers import expected_of

        run = open_run(spec)
        key = facts.worker_key(run) or key
        expected = expected_of(facts.loaded_target(run), 0)
    found = asyncio.run(_all(urls, expected, key))
    wrong = [str(one) for one in found if isinstance(one, UserError)]
    if wrong:
        raise UserError("\n".join(wrong))
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if isinstance(one, dict)]


async def _all(urls: Sequence[str], expected: Any, key: str | None) -> list[Row | BaseException]:
    return await asyncio.gather(*(_one(url, expected, key) for url in urls), return_exceptions=True)


async def _one(url: str, expected: Any, key: str | None) -> Row:
    from synthspec.targets.fleet import Fault, Unfit, Worker
    from synthspec.targets.http import Server
    from synthspec.targets.sglang import SglangServer
    from synthspec.targets.vllm import VllmServer

    server = Server(url, key)
    try:
        try:
            row = await _sglang(server)
        except Unfit:  # it knows no /server_info
            row = await _vllm(server)
        if not row["writes"]:
            raise UserError(f"{server.url} does not write what it is asked for: {_OLD}")
        row["matches"] = None
        if expected is not None:
            kind = SglangServer if row["engine"] == "sglang" else VllmServer
            worker: Worker = kind(url, expected, key)
            try:
                await worker.meet()
                row["matches"] = True
            finally:
                await worker.close()
    except Fault as fault:
        raise Stopped(f"{server.url}: {fault}") from None
    except (Unfit, LookupError, TypeError, AttributeError):
        raise UserError(f"{server.url} does not say what it serves: {_OLD}") from None
    finally:
        await server.close()
    return row


async def _sglang(server: Any) -> Row:
    info, _ = await server.call("GET", "/server_info", within=AT_ONCE)
    about, _ = await server.call("GET", "/model_info", within=AT_ONCE)
    told = {name: info.get(name) for name in _TOLD}
    row = {"url": server.url, "model": about["model_path"], "engine": "sglang", **told}
    return {**row, "writes": await _writes(server), "constrained": await _keeps_to_a_schema(server)}


async def _vllm(server: Any) -> Row:
    about, _ = await server.call("GET", "/version", within=AT_ONCE)
    models, _ = await server.call("GET", "/v1/models", within=AT_ONCE)
    served = models["data"][0]
    row = {"url": server.url, "model": served.get("root") or served["id"], "engine": "vllm"}
    row |= {"version": about["version"], "max_model_len": served.get("max_model_len")}
    asked = {"model": served["id"], "temperature": 0}
    two = {**asked, "prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True, "return_token_ids": True}
    answer, _ = await server.call("POST", "/v1/completions", two, 300.0)
    row["writes"] = len(answer["choices"][0]["token_ids"]) == 2
    row["constrained"] = await _keeps_to_a_tag(server, {**asked, "prompt": "JSON:", "max_tokens": 32})
    return row


async def _writes(server: Any) -> bool:
    """Whether token ids go in and come out."""
    params = {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True}
    answer, _ = await server.call(
        "POST", "/generate", {"input_ids": [1, 2, 3], "sampling_params": params}, 300.0
    )
    return len(answer["output_ids"]) == 2


async def _keeps_to_a_schema(server: Any) -> bool:
    from synthspec.targets.fleet import Fault, Unfit

    params = {"temperature": 0, "max_new_tokens": 32, "json_schema": json.dumps(_OK)}
    try:
        answer, _ = await server.call("POST", "/generate", {"text": "JSON:", "sampling_params": params}, 300.0)
        return bool(json.loads(answer["text"]) == {"ok": "yes"})
    except (Fault, Unfit, ValueError, KeyError, TypeError):
        return False


async def _keeps_to_a_tag(server: Any, asked: Row) -> bool:
    """Whether a vLLM server reads the structural tags in which constraints are sent."""
    from synthspec.grammar.constraint import Json
    from synthspec.grammar.engines import structural_tag
    from synthspec.targets.fleet import Fault, Unfit

    held = {"structured_outputs": {"structural_tag": json.dumps(structural_tag(Json(_OK)))}}
    try:
        answer, _ = await server.call("POST", "/v1/completions", {**asked, **held}, 300.0)
        return bool(json.loads(answer["choices"][0]["text"]) == {"ok": "yes"})
    except (Fault, Unfit, ValueError, LookupError, TypeError):
        return False


def table(rows: Sequence[Row]) -> Any:
    """Servers for the terminal, one a column."""
    from rich.table import Table

    shown = Table("", *(row["url"] for row in rows), box=None, header_style="bold", pad_edge=False)
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        if name != "url" and any(value is not None for value in values):
            shown.add_row(name.replace("_", " "), *map(_said, values))
    return shown


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else printable(str(value))
