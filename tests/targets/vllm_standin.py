"""A small HTTP server that speaks vLLM's protocol, as a server of version 0.32.0 spoke it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

VOCABULARY = 1000
MODEL = {
    "id": "served",
    "object": "model",
    "created": 1796119287,
    "owned_by": "vllm",
    "root": "some/model",
    "parent": None,
    "permission": [],
}


class VllmStandIn(ThreadingHTTPServer):
    """Answers the tokens of a prompt plus one, and a text under a tag with what the tag allows."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.connections: set[tuple[str, int]] = set()
        self.version = "0.32.0"
        self.room = 500
        self.offset = 0  # of the tokens that it reads
        self.tagged = '{"ok": "yes"}'  # what it writes under a structural tag

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: VllmStandIn

    def log_message(self, *args: object) -> None:
        pass

    def send(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, kind: str, message: str) -> None:
        self.send({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)

    def do_GET(self) -> None:
        if self.path == "/version":
            self.send({"version": self.server.version})
        elif self.path == "/v1/models":
            self.send({"object": "list", "data": [{**MODEL, "max_model_len": self.server.room}]})
        else:
            self.send({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.connections.add(self.client_address)
        if body["model"] != MODEL["id"]:
            known = f"The model `{body['model']}` does not exist. Valid aliases: {MODEL['id']}."
            self.refuse(404, "NotFoundError", known)
        elif self.path == "/tokenize":
            ids = [ord(char) + self.server.offset for char in body["messages"][0]["content"]]
            room = self.server.room
            self.send({"count": len(ids), "max_model_len": room, "tokens": ids, "token_strs": None})
        elif self.path == "/v1/completions":
            self.complete(body)
        else:
            self.send({"detail": "Not Found"}, 404)

    def complete(self, body: dict[str, Any]) -> None:
        self.server.asked.append(body)
        prompt = list(map(ord, body["prompt"])) if isinstance(body["prompt"], str) else body["prompt"]
        if wrong := [token for token in prompt if token >= VOCABULARY]:
            self.refuse(400, "BadRequestError", f"Token id {wrong[0]} is out of vocabulary")
            return
        ids = [token + 1 for token in prompt][: body["max_tokens"]]
        text = "".join(map(chr, ids))
        if "structural_tag" in body.get("structured_outputs", {}):
            text = self.server.tagged
        choice = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": "length" if len(ids) == body["max_tokens"] else "stop",
            "stop_reason": None,
            "token_ids": ids if body.get("return_token_ids") else None,
            "prompt_logprobs": None,
            "prompt_token_ids": prompt if body.get("return_token_ids") else None,
            "routed_experts": None,
        }
        if body.get("logprobs") is not None:  # 0 asks for those of the chosen tokens alone
            words = [chr(token) for token in ids]
            choice["logprobs"] = {
                "text_offset": [*range(len(ids))],
                "token_logprobs": [-0.25] * len(ids),
                "tokens": words,
                "top_logprobs": [{word: -0.25} for word in words],
            }
        usage = {
            "prompt_tokens": len(prompt),
            "total_tokens": len(prompt) + len(ids),
            "completion_tokens": len(ids),
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }
        self.send(
            {
                "id": "cmpl-88eb5e86cd6c7860",
                "object": "text_completion",
                "created": 1796119288,
                "model": MODEL["id"],
                "choices": [choice],
                "service_tier": None,
                "system_fingerprint": "vllm-0.32.0-32b1ffa7",
                "usage": usage,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )


@contextmanager
def serving() -> Iterator[VllmStandIn]:
    with VllmStandIn() as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()
