"""A server that is started, watched and ended; a small program stands in for SGLang's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from synthspec.dflash.speculators import to_speculators
from synthspec.errors import UserError
from synthspec.targets.launch import Died, Launch, check_launch, serving
from tests.dflash.conftest import drafter_config

# What `python -m sglang.launch_server` is here: it answers /health, or fails as the variable says.
SERVER = """
import http.server, os, sys, time

port = int(sys.argv[sys.argv.index("--port") + 1])
if os.environ.get("FAILS"):
    print("loading", flush=True)
    sys.exit("ValueError: no such model")
print(*sys.argv[1:], flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def launch(tmp_path, monkeypatch) -> Launch:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("")
    (tmp_path / "sglang" / "launch_server.py").write_text(SERVER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return Launch("some/model", "abc", port=port, tp=2, more=("--dtype", "bfloat16"))


def test_a_server_is_started_with_its_flags_and_ended(launch):
    lines: list[str] = []
    with serving(launch, lines.append) as server:
        assert server.ended is None
        with pytest.raises(UserError, match=r"--port: a server answers at http://127\.0\.0\.1:\d+ already"):
            check_launch(launch)
    assert server.ended is not None
    assert lines[0] == (
        f"--model-path some/model --revision abc --host 127.0.0.1 --port {launch.port} --tp 2 "
        "--grammar-backend xgrammar --constrained-json-disable-any-whitespace --dtype bfloat16"
    )


def test_a_server_that_fails_says_why(launch, monkeypatch):
    monkeypatch.setenv("FAILS", "1")
    with (
        pytest.raises(Died, match="ended with status 1 before it was ready: ValueError: no such model"),
        serving(launch),
    ):
        pass


def test_what_would_fail_minutes_later_is_told_at_once(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "empty"))
    monkeypatch.chdir(tmp_path / "sglang")  # where there is none either
    bare = Launch("m", port=launch.port, python=sys.executable)
    probe = "import importlib.util as u, sys; sys.exit(u.find_spec('sglang') is None)"
    if subprocess.run([sys.executable, "-c", probe], check=False).returncode:
        with pytest.raises(UserError, match="there is no SGLang in the environment of"):
            check_launch(bare)
    with pytest.raises(UserError, match="--python: there is no interpreter /no/such"):
        check_launch(Launch("m", python="/no/such"))


@pytest.mark.slow
def test_a_server_that_dies_is_started_again_until_a_signal_comes(launch, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    command = [sys.executable, "-m", "synthspec", "worker", "start", "--model", str(model)]
    command += ["--port", str(launch.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ours:
        assert ours.stdout.readline().startswith("starting: ")
        assert "ready after" in ours.stdout.readline()
        first = _server(launch.port)
        os.kill(first, signal.SIGKILL)
        assert "ended with status -9" in ours.stdout.readline()
        assert "ready after" in ours.stdout.readline()
        second = _server(launch.port)
        assert second != first
        ours.send_signal(signal.SIGTERM)
        assert ours.wait(timeout=60) == 4
        assert "stopped by SIGTERM" in ours.stderr.read()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{second}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", launch.port))


def _server(port: int) -> int:
    """The process that serves."""
    import psutil

    (found,) = [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if "sglang.launch_server" in (one.info["cmdline"] or []) and str(port) in one.info["cmdline"]
    ]
    return int(found)


def test_a_drafter_written_for_vllm_is_refused_before_the_server_starts(launch, tmp_path):
    config = to_speculators(drafter_config(), "target", ["LlamaForCausalLM"])
    (tmp_path / "drafter").mkdir()
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="in the layout of speculators, which SGLang does not read"):
        check_launch(replace(launch, drafter=tmp_path / "drafter"))
