"""What goes to a vLLM server and what comes back, over real HTTP; the server here is a small stand-in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from synthspec.errors import UserError
from synthspec.grammar.constraint import Constraint, Json
from synthspec.targets.fleet import Fleet
from synthspec.targets.sglang import PROBE, Expected
from synthspec.targets.vllm import VllmServer

OURS = Expected("our/model", None, [ord(char) for char in PROBE], 1000, tokens=40)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict] = []
        self.room = 500
        self.offset = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/version":
            self.answer({"version": "0.11.0"})
        else:
            self.answer({"data": [{"id": "served", "root": "some/model", "max_model_len": self.server.room}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            content = body["messages"][0]["content"]
            self.answer({"tokens": [ord(char) + self.server.offset for char in content]})
            return
        self.server.asked.append(body)
        ids = [token + 1 for token in body["prompt"]]
        choice = {"token_ids": ids, "finish_reason": "stop", "logprobs": None}
        if "logprobs" in body:
            choice["logprobs"] = {"token_logprobs": [-0.25] * len(ids)}
        usage = {"completion_tokens": len(ids), "prompt_tokens": len(body["prompt"])}
        self.answer({"choices": [choice], "usage": usage})


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


def row(*ids: int, **fields: object) -> dict:
    asked = {"prompt_ids": list(ids), "max_new_tokens": 9, "constraint": None, "seed": 5}
    return {**asked, "grammar": "desk", "set": None, "purpose": "grammar", **fields}


def test_token_ids_and_the_grammar_travel_as_vllm_takes_them(server):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    held = row(5, constraint=Constraint(Json(schema)).to_json())
    with Fleet([VllmServer(server.url, OURS)]) as fleet:
        first, second = fleet.ask([held, row(6, 7, temperature=0.5, top_p=0.9, top_k=20, logprobs=True)])
    assert (first.ids, first.finish_reason, first.logprobs) == ([6], "stop", None)
    assert (second.ids, second.logprobs) == ([7, 8], [-0.25, -0.25])
    by_prompt = {body["prompt"][0]: body for body in server.asked}
    assert by_prompt[5]["structured_outputs"]["json"]["required"] == ["a"]
    assert "structured_outputs" not in by_prompt[6]
    for body in server.asked:
        assert body["model"] == "served"
        assert body["return_token_ids"] is True
        assert body["skip_special_tokens"] is False
    sampled = {name: by_prompt[6][name] for name in ("temperature", "top_p", "top_k", "seed")}
    assert sampled == {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "seed": 5}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offset": 1}, "serves some/model, whose tokenizer or chat template is not that of our/model"),
        (
            {"room": 20},
            "has room for 20 tokens, and a request with its answer may have 40: raise its --max-model",
        ),
    ],
)
def test_a_server_that_is_not_the_target_is_refused(server, change, words):
    for name, value in change.items():
        setattr(server, name, value)
    with pytest.raises(UserError, match=words):
        Fleet([VllmServer(server.url, OURS)]).__enter__()
