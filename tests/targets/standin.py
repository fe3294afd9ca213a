"""A small HTTP server that speaks SGLang's protocol, and can misbehave in every way that servers do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCABULARY = 1000


class StandIn(ThreadingHTTPServer):
    """Answers the tokens of a prompt plus one.

    Args:
        port: 0 for any; the one of a server that has been closed for one that is started again.
    """

    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.misdeeds: list[str] = []  # of the next answers, in order
        self.always = ""  # a misdeed at every answer
        self.model = "some/model"
        self.info: dict[str, Any] = {
            "version": "0.5.23",
            "grammar_backend": "xgrammar",
            "max_req_input_len": 500,
        }
        self.behind: list[str] = []  # addresses; it is a router then
        self.key = ""
        self.offset = 0  # of the tokens that it reads
        self.delay = 0.0  # seconds an answer
        self.flying = self.most_flying = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients may hang up


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def log_message(self, *args: object) -> None:
        pass

    def send(self, body: bytes, status: int = 200, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def answer(self, value: object, status: int = 200, **headers: str) -> None:
        self.send(json.dumps(value).encode(), status, **headers)

    def refused(self) -> bool:
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            self.answer({"error": "no"}, 401)
            return True
        return False

    def do_GET(self) -> None:
        if self.refused():
            return
        if self.server.behind:  # as sglang-router 0.3.2 does
            workers = [{"url": url, "is_healthy": True} for url in self.server.behind]
            told = {"/get_server_info": {"router_manager": True}, "/workers": {"workers": workers}}
            self.answer(told.get(self.path, {}), 200 if self.path in told else 404)
        elif self.path == "/server_info":
            self.answer(self.server.info)
        elif self.path == "/model_info":
            self.answer({"model_path": self.server.model, "weight_version": "default"})
        else:
            self.answer({}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        if self.path == "/tokenize" and self.server.behind:
            self.answer({}, 404)
            return
        if self.path == "/tokenize":
            (message,) = body["messages"]
            self.answer({"tokens": [ord(char) + self.server.offset for char in message["content"]]})
            return
        server = self.server
        with server.lock:
            server.asked.append(body)
            server.flying += 1
            server.most_flying = max(server.most_flying, server.flying)
            misdeed = server.misdeeds.pop(0) if server.misdeeds else server.always
        try:
            time.sleep(server.delay)
            self.misbehave(misdeed, body)
        finally:
            with server.lock:
                server.flying -= 1

    def misbehave(self, misdeed: str, body: dict[str, Any]) -> None:
        ids = [(token + 1) % VOCABULARY for token in body["input_ids"]]
        most = body["sampling_params"]["max_new_tokens"]
        reason = "length" if len(ids) >= most else "stop"
        ids = ids[:most]
        meta = {
            "finish_reason": {"type": reason},
            "completion_tokens": len(ids),
            "prompt_tokens": len(body["input_ids"]),
        }
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[-0.5, token, None] for token in ids]
        value: dict[str, Any] = {"output_ids": ids, "meta_info": meta}
        match misdeed:
            case "":
                self.answer(value)
            case "429":
                self.answer({}, 429, Retry_After="0")
            case "500":
                self.answer({"error": {"message": "secret"}}, 500)
            case "400":
                self.answer({"error": {"message": "the input is too long"}}, 400)
            case "hang":
                time.sleep(3600)
            case "cut":
                whole = json.dumps(value).encode()
                self.send(whole[: len(whole) // 2], length=len(whole))
                self.close_connection = True
            case "hang up":
                self.close_connection = True
            case "no JSON":
                self.send(b'{"output_ids": [1')
            case "no UTF-8":
                self.send(b'{"output_ids": [1], "text": "\xff\xfe"}')
            case "no ids":
                self.answer({"text": "x"})
            case "other ids":
                self.answer({**value, "output_ids": [VOCABULARY]})
            case "other count":
                self.answer({**value, "meta_info": {**meta, "completion_tokens": 99}})
            case "other prompt":
                self.answer({**value, "meta_info": {**meta, "prompt_tokens": 99}})
            case "too many":
                self.answer({**value, "output_ids": [1] * (most + 1)})
            case "abort":
                self.answer({**value, "meta_info": {**meta, "finish_reason": {"type": "abort"}}})
            case _:
                raise AssertionError(misdeed)


@contextmanager
def serving(port: int = 0) -> Iterator[StandIn]:
    with StandIn(port) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
