"""What a better drafter would buy: a real server that pretends to accept so many tokens a step."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from synthspec.dflash.config import read_config
from synthspec.errors import Stopped, UserError
from synthspec.targets.fleet import Fault, Unfit
from synthspec.targets.http import Server
from synthspec.targets.launch import Launch, check_launch, serving

SIMULATE = "SGLANG_SIMULATE_ACC_LEN"  # tokens a verification step, as SGLang reads it


@dataclass(frozen=True)
class Load:
    """What a server is asked for.

    Args:
        concurrency: requests at the same time.
        requests: in all, after as many as `concurrency` to warm up.
        prompt_tokens, new_tokens: of each request; the answer never ends before.
    """

    concurrency: int = 1
    requests: int = 8
    prompt_tokens: int = 128
    new_tokens: int = 128


@dataclass(frozen=True)
class Speed:
    """What a server did.

    Args:
        accept_len: tokens a verification step that it was to pretend; None: it decoded without a drafter.
        seen: what it counted itself: 1 + accepted draft tokens / verification steps.
        tokens_per_s: new tokens of all requests.
        speedup: over the server without a drafter, at the same concurrency.
    """

    concurrency: int
    accept_len: float | None
    seen: float | None
    tokens_per_s: float
    speedup: float


def simulate(
    launch: Launch,
    lengths: Sequence[float],
    loads: Sequence[Load],
    tick: Callable[[int], None] = lambda n: None,
    log: Callable[[str], None] = lambda line: None,
) -> list[Speed]:
    """Start the server without its drafter, then once for each acceptance length, and time all loads on each.

    Args:
        launch: with a drafter: its cost counts, whatever is pretended about its guesses.
        tick: called with 1 after each server.
        log: takes the lines that servers log.

    Returns:
        One entry for each load and length, those without a drafter first.

    Raises:
        UserError, Stopped: as `launch.serving`; or a server does not answer.
    """
    check_launch(launch)
    if launch.drafter is not None:
        block = read_config(launch.drafter).block_size
        if max(lengths, default=0) > block:
            raise UserError(f"--lengths: the drafter's blocks hold {block} tokens: pretend {block} at most")
    plain = {}
    found: list[Speed] = []
    with serving(replace(launch, drafter=None), log):
        for load in loads:
            plain[load], _ = _timed(launch.url, load)
            found.append(Speed(load.concurrency, None, None, plain[load], 1.0))
    tick(1)
    for length in lengths:
        pretending = replace(launch, environment={**launch.environment, SIMULATE: f"{length:g}"})
        with serving(pretending, log):
            for load in loads:
                rate, seen = _timed(launch.url, load)
                found.append(Speed(load.concurrency, length, seen, rate, rate / plain[load]))
        tick(1)
    return found


def _timed(url: str, load: Load) -> tuple[float, float | None]:
    """New tokens a second, and the acceptance length that the server counted."""
    try:
        return asyncio.run(_ask(url, load))
    except (Fault, Unfit, KeyError, TypeError) as error:
        raise Stopped(f"the server at {url} does not answer as it should ({error})") from None


async def _ask(url: str, load: Load) -> tuple[float, float | None]:
    server = Server(url)
    gate = asyncio.Semaphore(load.concurrency)
    dice = random.Random(0)

    async def one() -> dict[str, Any]:
        body = {
            "input_ids": [dice.randrange(100, 1000) for _ in range(load.prompt_tokens)],
            "sampling_params": {"temperature": 0, "max_new_tokens": load.new_tokens, "ignore_eos": True},
        }
        async with gate:
            answer, _ = await server.call("POST", "/generate", body, 3600.0)
        meta: dict[str, Any] = answer["meta_info"]
        return meta

    try:
        await asyncio.gather(*(one() for _ in range(load.concurrency)))
        begun = time.perf_counter()
        told = await asyncio.gather(*(one() for _ in range(load.requests)))
        seconds = time.perf_counter() - begun
    finally:
        await server.close()
    steps = sum(meta.get("spec_verify_ct") or 0 for meta in told)
    correct = sum(meta.get("spec_num_correct_drafts") or 0 for meta in told)
    seen = 1 + correct / steps if steps else None
    return sum(meta["completion_tokens"] for meta in told) / seconds, seen


def table(speeds: Sequence[Speed]) -> Any:
    """Speeds for the terminal."""
    from rich.table import Table

    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("at once", "acceptance length", "counted", "tokens/s", "speed-up"):
        shown.add_column(name, justify="right")
    for one in sorted(speeds, key=lambda one: (one.concurrency, one.accept_len or 0)):
        asked = "no drafter" if one.accept_len is None else f"{one.accept_len:g}"
        seen = "–" if one.seen is None else f"{one.seen:.2f}"
        shown.add_row(str(one.concurrency), asked, seen, f"{one.tokens_per_s:,.1f}", f"{one.speedup:.2f}×")
    return shown
