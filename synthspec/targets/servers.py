"""From the spec's worker to the servers that answer."""

from __future__ import annotations

from synthspec.spec import Engine, Servers
from synthspec.targets.fleet import Worker
from synthspec.targets.load import LoadedTarget
from synthspec.targets.sglang import PROBE, Expected, SglangServer
from synthspec.targets.vllm import VllmServer


def workers_of(
    target: LoadedTarget, servers: Servers | Engine, longest: int, key: str | None = None, *, free: bool = False
) -> list[Worker]:
    """The servers of a spec, or SGLang in this process.

    Args:
        longest: the most tokens of a request and its answer.
        key: sent as a bearer token.
    """
    if isinstance(servers, Engine):
        from synthspec.targets.engine import SglangEngine

        return [SglangEngine(target, servers, longest)]
    expected = expected_of(target, longest, constrained=not free)
    kind = SglangServer if servers.kind == "sglang" else VllmServer
    return [kind(url, expected, key) for url in servers.urls]


def expected_of(target: LoadedTarget, longest: int, *, constrained: bool = True) -> Expected:
    """What a server must be, to be a target with room for so many tokens."""
    messages = [{"role": "user", "content": PROBE}]
    return Expected(
        model=target.description["model"],
        revision=target.settings.revision,
        probe_ids=target.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False),
        vocab_size=target.description["vocab_size"],
        tokens=longest,
        constrained=constrained,
    )
