"""Real SGLang servers for journeys: on a CPU, with what `tests/sglang_cpu` adds to SGLang."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.journeys.conftest import Shell

needs_sglang = pytest.mark.skipif(
    find_spec("sglang") is None, reason="there is no SGLang here: `make install` brings it, on Linux"
)
ON_CPU = (
    "--device cpu --attention-backend torch_native --disable-cuda-graph "
    "--max-total-tokens 8192 --context-length 2048"
)


def on_cpu(shell: Shell) -> Shell:
    """A shell whose SGLang runs on the CPU. One thread: several that wait for each other are slower by far."""
    added = str(Path(__file__).parents[1] / "sglang_cpu")
    return replace(shell, more={"PYTHONPATH": added, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"})


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def worker(shell: Shell, port: int, flags: str, model: str = "smollm2") -> Iterator[subprocess.Popen[str]]:
    """`synthspec worker start`, until the context closes.

    Args:
        flags: of SGLang, behind those of synthspec and a `--`.
    """
    command = f"synthspec worker start --model {model} --port {port} {flags} {ON_CPU}"
    with (shell.folder / f"{port}.log").open("a") as log:
        process = subprocess.Popen(
            command.split(),
            cwd=shell.folder,
            env=on_cpu(shell).env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_for(port, process)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def wait_for(port: int, process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + 400
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            assert process is None or process.poll() is None
            time.sleep(0.5)


def kill_server(port: int) -> None:
    """Kill the server itself with all its processes; its supervisor lives."""
    found = subprocess.run(["pgrep", "-f", f"launch_server.*--port {port}"], capture_output=True, text=True)
    for pid in map(int, found.stdout.split()):
        if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3] == [b"-m", b"sglang.launch_server"]:
            os.killpg(os.getpgid(pid), signal.SIGKILL)
