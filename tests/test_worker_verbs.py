"""Servers looked at by themselves, over real HTTP; the servers are small stand-ins."""

from __future__ import annotations

import pytest

from synthspec.errors import UserError
from synthspec.worker_verbs import check
from tests.targets import standin, vllm_standin


def test_a_vllm_server_says_who_it_is():
    with vllm_standin.serving() as server:
        (told,) = check([server.url], None)
        assert told == {
            "url": server.url,
            "model": "some/model",
            "engine": "vllm",
            "version": "0.32.0",
            "max_model_len": 500,
            "writes": True,
            "constrained": True,
            "matches": None,
        }


def test_a_vllm_server_that_does_not_keep_to_a_tag_is_told_so():
    with vllm_standin.serving() as server:
        server.tagged = "{}"
        (told,) = check([server.url], None)
    assert told["constrained"] is False


def test_a_server_of_neither_engine_is_refused():
    with standin.serving() as server:
        server.behind = [server.url]  # a router
        with pytest.raises(UserError, match=r"is it SGLang .* or newer, or vLLM .* or newer"):
            check([server.url], None)
