"""What goes to a vLLM server and what comes back, over real HTTP; the server here is a small stand-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from synthspec.errors import UserError
from synthspec.grammar.constraint import Constraint, Json, Text
from synthspec.grammar.constraint import row as in_order
from synthspec.grammar.engines import _spaced_as_written
from synthspec.targets import http
from synthspec.targets.fleet import Fleet
from synthspec.targets.sglang import PROBE, Expected
from synthspec.targets.vllm import VllmServer
from tests.targets.vllm_standin import VOCABULARY, VllmStandIn, serving

OURS = Expected("our/model", None, [ord(char) for char in PROBE], VOCABULARY, tokens=40)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture
def server() -> Iterator[VllmStandIn]:
    with serving() as server:
        yield server


def row(*ids: int, **fields: object) -> dict:
    asked = {"prompt_ids": list(ids), "max_new_tokens": 9, "constraint": None, "seed": 5}
    return {**asked, "grammar": "desk", "set": None, "purpose": "grammar", **fields}


def test_token_ids_travel_as_vllm_takes_them(server):
    with Fleet([VllmServer(server.url, OURS)]) as fleet:
        first, second, third = fleet.ask(
            [
                row(5, seed=(1 << 62) + 5),
                row(6, 7, temperature=0.5, top_p=0.9, top_k=20, logprobs=True),
                row(8, *range(10, 20)),
            ]
        )
    assert (first.ids, first.finish_reason, first.logprobs) == ([6], "stop", None)
    assert (second.ids, second.logprobs) == ([7, 8], [-0.25, -0.25])
    assert (third.ids, third.finish_reason) == ([9, *range(11, 19)], "length")
    by_prompt = {body["prompt"][0]: body for body in server.asked}
    for body in server.asked:
        assert body["model"] == "served"
        assert body["return_token_ids"] is True
        assert body["skip_special_tokens"] is False
        assert "structured_outputs" not in body
    sampled = {name: by_prompt[6][name] for name in ("temperature", "top_p", "top_k", "seed", "logprobs")}
    assert sampled == {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "seed": 5, "logprobs": 0}
    greedy = {name: by_prompt[5][name] for name in ("temperature", "top_p", "top_k", "seed")}
    assert greedy == {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "seed": 5}


def test_nothing_is_left_to_the_generation_config_of_the_model(server):
    with Fleet([VllmServer(server.url, OURS)]) as fleet:
        fleet.ask([row(5)])
    (body,) = server.asked
    left = ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_p")
    assert [body[name] for name in left] == [1.0, 0.0, 0.0, 0.0]
    assert {"temperature", "top_p", "top_k", "max_tokens"} <= body.keys()


@pytest.mark.parametrize(
    "part",
    [Json(SCHEMA), in_order(Text("<tool_call>\n"), Json(SCHEMA), Text("\n</tool_call>"))],
    ids=["bare", "tagged"],
)
def test_json_is_sent_with_the_spaces_that_it_is_written_with(server, part):
    xgrammar = pytest.importorskip("xgrammar")
    with Fleet([VllmServer(server.url, OURS)]) as fleet:
        fleet.ask([row(5, constraint=Constraint(part).to_json())])
    tag = server.asked[0]["structured_outputs"]["structural_tag"]
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)]))
    compiled = compiler.compile_structural_tag(tag)

    def taken(text):
        text = text if isinstance(part, Json) else f"<tool_call>\n{text}\n</tool_call>"
        matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
        return matcher.accept_string(text) and matcher.is_terminated()

    assert taken('{"a": 1}')
    assert not taken('{\n"a": 1\n}')
    assert not taken('{"a":1}')


def test_without_xgrammar_bare_json_is_a_schema(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    _spaced_as_written.cache_clear()
    assert Constraint(Json(SCHEMA)).vllm() == {"json": SCHEMA}
    _spaced_as_written.cache_clear()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offset": 1}, "serves some/model, whose tokenizer or chat template is not that of our/model"),
        (
            {"room": 20},
            "has room for 20 tokens, and a request with its answer may have 40: raise its --max-model",
        ),
        ({"version": "0.20.2"}, "is vLLM 0.20.2, whose grammar backend .* start vLLM 0.21 or newer, or set"),
    ],
)
def test_a_server_that_is_not_the_target_is_refused(server, change, words):
    for name, value in change.items():
        setattr(server, name, value)
    with pytest.raises(UserError, match=words):
        Fleet([VllmServer(server.url, OURS)]).__enter__()


@pytest.mark.parametrize(
    ("version", "ours"),
    [("0.20.2", replace(OURS, constrained=False)), ("0.1.dev1+g32b1ffa", OURS), ("1.0.0", OURS)],
    ids=["free", "built at home", "later"],
)
def test_an_old_server_may_answer_freely_and_a_build_s_number_says_nothing(server, version, ours):
    server.version = version
    with Fleet([VllmServer(server.url, ours)]) as fleet:
        (answer,) = fleet.ask([row(5)])
    assert answer.ids == [6]


def test_what_a_server_refuses_for_good_is_asked_once(server):
    with Fleet([VllmServer(server.url, OURS)]) as fleet:
        (refused,) = fleet.ask([row(5, VOCABULARY)])
        (answer,) = fleet.ask([row(5)])
    assert (refused, answer.ids, len(server.asked)) == (None, [6], 2)


def test_a_connection_that_the_server_is_about_to_close_is_not_used_again(server, monkeypatch):
    assert http.IDLE < 5  # after which uvicorn, behind vLLM and SGLang, hangs up
    monkeypatch.setattr(http, "IDLE", 0.0)
    with Fleet([VllmServer(server.url, OURS)]) as fleet:
        first, second = fleet.ask([row(5)])[0], fleet.ask([row(5)])[0]
    assert first.ids == second.ids
    assert len(server.connections) > 2
