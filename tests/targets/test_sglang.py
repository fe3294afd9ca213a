"""What goes to a SGLang server and what comes back, over real HTTP; the server here is a small stand-in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

from synthspec.errors import Stopped, UserError
from synthspec.grammar.constraint import Constraint, Json, Text
from synthspec.grammar.constraint import row as row_of
from synthspec.targets import sglang
from synthspec.targets.sglang import ask_workers


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # all requests come at once

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict] = []
        self.failures = 0
        self.offset = 0
        self.garbled = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def answer(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer({"model_path": "some/model"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            (message,) = body["messages"]
            self.answer({"tokens": [ord(char) + self.server.offset for char in message["content"]]})
            return
        if self.server.failures:
            self.server.failures -= 1
            self.answer({}, 503)
            return
        self.server.asked.append(body)
        ids = [token + 1 for token in body["input_ids"]]
        reason = {"type": "length" if len(ids) > 3 else "stop"}
        self.answer(
            {"text": "x"}
            if self.server.garbled
            else {"output_ids": ids, "meta_info": {"finish_reason": reason}}
        )


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    async def at_once(seconds: float) -> None:
        pass

    monkeypatch.setattr(sglang.asyncio, "sleep", at_once)


def target(*urls: str) -> SimpleNamespace:
    """A target whose tokens are characters."""
    tokenizer = SimpleNamespace(
        apply_chat_template=lambda messages, **_: [ord(char) for char in messages[0]["content"]]
    )
    return SimpleNamespace(
        settings=SimpleNamespace(urls=list(urls)), description={"model": "our/model"}, tokenizer=tokenizer
    )


def row(*ids: int, constraint: str | None = None) -> dict:
    return {"prompt_ids": list(ids), "max_new_tokens": 9, "constraint": constraint}


def test_answers_come_back_in_order_as_token_ids(server):
    batch = [row(*range(n)) for n in range(1, 40)]
    answers = ask_workers(batch, target(server.url, server.url + "/"))
    assert [ids for ids, _ in answers] == [[token + 1 for token in one["prompt_ids"]] for one in batch]
    assert [reason for _, reason in answers] == ["stop"] * 3 + ["length"] * 36


def test_the_grammar_travels_as_sglang_takes_it(server):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    bare = Constraint(Json(schema)).to_json()
    tagged = Constraint(row_of(Text("<tool_call>\n"), Json(schema), Text("\n</tool_call>"))).to_json()
    ask_workers([row(5, constraint=bare), row(6, constraint=tagged), row(7)], target(server.url))
    by_prompt = {body["input_ids"][0]: body["sampling_params"] for body in server.asked}
    assert json.loads(by_prompt[5]["json_schema"])["required"] == ["a"]
    tag = json.loads(by_prompt[6]["structural_tag"])
    assert "<tool_call>\n" in json.dumps(tag, ensure_ascii=False).replace("\\n", "\n")
    assert not {"json_schema", "structural_tag", "regex", "ebnf"} & by_prompt[7].keys()
    for params in by_prompt.values():
        assert (params["temperature"], params["max_new_tokens"], params["no_stop_trim"]) == (0, 9, True)


def test_what_fails_for_a_moment_is_asked_again(server):
    server.failures = 2
    assert ask_workers([row(1)], target(server.url)) == [([2], "stop")]


def test_a_server_that_keeps_failing_stops_the_run_in_words(server):
    server.failures = 99
    with pytest.raises(Stopped, match="answered 503; bring it up"):
        ask_workers([row(1)], target(server.url))


def test_a_server_that_is_not_there_stops_the_run_in_words():
    with pytest.raises(Stopped, match="cannot be reached"):
        ask_workers([row(1)], target("http://127.0.0.1:9"))


def test_another_model_is_refused(server):
    server.offset = 1
    with pytest.raises(
        UserError, match="serves some/model, whose tokenizer or chat template is not that of our"
    ):
        ask_workers([row(1)], target(server.url))


def test_an_answer_without_ids_is_refused(server):
    server.garbled = True
    with pytest.raises(Stopped, match="without token ids"):
        ask_workers([row(1)], target(server.url))
