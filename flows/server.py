"""The Prefect server that records the flows: the one at PREFECT_API_URL, or a temporary one of ours."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from synthspec.errors import Stopped

_guards: list[subprocess.Popen[bytes]] = []  # their pipes stay open as long as this process lives


def is_ours() -> bool:
    """Whether flows will start a temporary server."""
    return not PREFECT_API_URL.value()


def start() -> None:
    """Reach the server, or start a temporary one that ends with this process.

    Raises:
        Stopped: it does not answer.
    """
    failures: list[Exception] = []

    def reach() -> None:
        # The server inherits this thread's signal mask: Ctrl-C in the terminal is for us alone, and the
        # server lives on until we have told it how the flow ended.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with get_client(sync_client=True) as client:
                client.hello().raise_for_status()
        except (RuntimeError, httpx.HTTPError, OSError) as error:
            failures.append(error)

    thread = threading.Thread(target=reach, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    if failures:
        reason = " ".join(str(failures[0]).split())[:200] or type(failures[0]).__name__
        where = "started" if is_ours() else f"reached at {PREFECT_API_URL.value()}"
        raise Stopped(
            f"Prefect's server cannot be {where} ({reason}): start one with `prefect server start`, set "
            "PREFECT_API_URL to it, and run the same command again"
        )
    if is_ours():
        _end_with_us()


def _end_with_us() -> None:
    """Have the temporary server stopped even if this process is killed without a chance to do so.

    A shell waits for a pipe to close, which happens when we end, however we end.
    """
    from prefect.server.api.server import SubprocessASGIServer

    process: Any = SubprocessASGIServer().server_process
    shell = shutil.which("sh")
    if process is None or shell is None or _guards:
        return
    guard = subprocess.Popen(
        [shell, "-c", 'read _; kill "$1"', "sh", str(process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _guards.append(guard)
