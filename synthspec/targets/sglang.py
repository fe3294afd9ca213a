"""SGLang servers as the target: token ids in, token ids out, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from synthspec.errors import Stopped, UserError
from synthspec.grammar.constraint import Constraint
from synthspec.targets.load import LoadedTarget

AT_ONCE = 16  # requests in flight at each server
TRIES = 3
# Words, digits, spaces, accents, an emoji and JSON: tokenizers and templates that differ split it apart.
PROBE = 'Prüfung 1234567  of\ttokens 🙂: {"key": [1.5, null]}\n'


def sampling(row: dict[str, Any]) -> dict[str, Any]:
    """SGLang's `sampling_params` of a request: greedy unless it has a temperature, under its constraint."""
    params: dict[str, Any] = {
        "temperature": row.get("temperature", 0),
        "max_new_tokens": row["max_new_tokens"],
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if row["constraint"]:
        params |= Constraint.from_json(row["constraint"]).sglang()
    return params


def ask_workers(batch: Sequence[dict[str, Any]], target: LoadedTarget) -> list[tuple[list[int], str]]:
    """Let the servers of the spec answer a batch; requests go round in turn.

    Raises:
        UserError: a server holds another model than the spec says.
        Stopped: a server cannot be reached, or keeps failing.
    """
    return asyncio.run(_ask_all(batch, target))


async def _ask_all(batch: Sequence[dict[str, Any]], target: LoadedTarget) -> list[tuple[list[int], str]]:
    urls = [url.rstrip("/") for url in target.settings.urls]
    gates = [asyncio.Semaphore(AT_ONCE) for _ in urls]
    async with httpx.AsyncClient(timeout=httpx.Timeout(600, connect=10)) as client:
        for url in urls:
            await _check(client, url, target)

        async def one(number: int, row: dict[str, Any]) -> tuple[list[int], str]:
            turn = number % len(urls)
            async with gates[turn]:
                return await _ask(client, urls[turn], row)

        return await asyncio.gather(*(one(number, row) for number, row in enumerate(batch)))


async def _check(client: httpx.AsyncClient, url: str, target: LoadedTarget) -> None:
    """Refuse a server that does not read a conversation as the same token ids as the spec's target."""
    messages = [{"role": "user", "content": PROBE}]
    told = await _call(client, "POST", f"{url}/tokenize", {"messages": messages})
    ours = target.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    if told.get("tokens") != ours:
        info = await _call(client, "GET", f"{url}/model_info", None)
        raise UserError(
            f"target.urls: the server {url} serves {info.get('model_path')}, whose tokenizer or chat "
            f"template is not that of {target.description['model']}: start it with the spec's target"
        )


async def _ask(client: httpx.AsyncClient, url: str, row: dict[str, Any]) -> tuple[list[int], str]:
    body = {"input_ids": list(row["prompt_ids"]), "sampling_params": sampling(row)}
    answer = await _call(client, "POST", f"{url}/generate", body)
    try:
        ids = [int(token) for token in answer["output_ids"]]
        return ids, str(answer["meta_info"]["finish_reason"]["type"])
    except (KeyError, TypeError, ValueError):
        raise Stopped(f"the server {url} answered without token ids: is it SGLang 0.5.23 or newer?") from None


async def _call(client: httpx.AsyncClient, method: str, url: str, body: Any) -> dict[str, Any]:
    """A JSON answer; what fails on the way is tried again, a refusal (4xx) is not."""
    problem = ""
    for turn in range(TRIES):
        if turn:
            await asyncio.sleep(2**turn)
        try:
            response = await client.request(method, url, json=body)
        except httpx.HTTPError as error:
            problem = f"it cannot be reached ({type(error).__name__})"
            continue
        if response.status_code < 400:
            found: dict[str, Any] = response.json()
            return found
        problem = f"it answered {response.status_code}"
        if response.status_code < 500 and response.status_code not in (408, 429):
            raise UserError(
                f"target.urls: the server {url} refused the request with {response.status_code}: "
                "is it SGLang 0.5.23 or newer, started with the spec's target and a long enough context?"
            )
    raise Stopped(f"the server {url} failed: {problem}; bring it up, then run the same command again")
