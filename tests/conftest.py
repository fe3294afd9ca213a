"""What several tests need."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from synthspec.spec import Target
from synthspec.targets.load import load_tokenizer

BESIDE_OTHERS = "PYTEST_XDIST_WORKER" in os.environ
if BESIDE_OTHERS:
    # Threads that share a product wait for each other, and where others compute too they do little else.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is slow: no test may fail by its time.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Where two workers share the files, begin with the longest journeys."""
    if BESIDE_OTHERS:
        items.sort(key=lambda item: ("tutorial" not in item.fixturenames, not item.get_closest_marker("slow")))


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    """The embedded default target's tokenizer; the model is converted into the cache the first time."""
    return load_tokenizer(Target())


@pytest.fixture(scope="session")
def prefect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server for journeys that start many flows: each would wait for one of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tmp_path_factory.mktemp("prefect")
    others = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    server = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        env={**others, "PREFECT_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}/api"
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.3)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
