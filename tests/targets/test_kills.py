"""A client killed at any moment, a server gone under it: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from synthspec.samples.schema import REQUESTS, read_rows, write_rows
from synthspec.spec import Servers
from synthspec.targets.answer import answer, in_order
from tests.targets.standin import StandIn, serving
from tests.targets.test_sglang import request, target

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from pathlib import Path
from synthspec.spec import Servers
from synthspec.targets.answer import answer
from tests.targets.test_sglang import target

requests, out, *urls = sys.argv[1:]
print("begun", flush=True)
answer(Path(requests), target(), Servers(kind="sglang", urls=urls, batch_rows=16), Path(out))
"""


def test_killed_twenty_times_it_ends_as_if_it_had_never_been(tmp_path):
    rows = [request(number, *range(number % 7), grammar=f"g{number % 3}") for number in range(900)]
    rows.sort(key=lambda row: in_order({**row, "set": None}))
    path, out = tmp_path / "requests.parquet", tmp_path / "killed"
    write_rows(path, REQUESTS, rows)
    dice = random.Random(0)
    early = 0
    with serving() as steady, ExitStack() as stack:
        port = stack.enter_context(serving()).server_port
        for kill in range(21):
            steady.delay = 0.0 if kill == 20 else 0.1
            urls = [steady.url, f"http://127.0.0.1:{port}"]
            command = [sys.executable, "-c", SCRIPT, str(path), str(out), *urls]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
                assert client.stdout.readline() == "begun\n"
                if kill == 20:
                    assert client.wait(timeout=120) == 0
                    break
                time.sleep(dice.uniform(0, 0.8))
                if kill % 4 == 3:  # the other server ends with it, and comes back before the next
                    stack.close()
                    port = stack.enter_context(again(port)).server_port
                early += client.poll() is None
                client.send_signal(signal.SIGKILL)
            stored = {file.name: file.read_bytes() for file in out.glob("*.parquet")}
            assert all(file.name.startswith(".") or file.name in stored for file in out.glob("*"))
        undisturbed = tmp_path / "undisturbed"
        answer(path, target(), Servers(kind="sglang", urls=[steady.url], batch_rows=16), undisturbed)
    assert early > 10  # kills that came while it worked
    assert {file.name: file.read_bytes() for file in out.glob("*.parquet")} == {
        file.name: file.read_bytes() for file in undisturbed.iterdir()
    }
    found = [row["request_id"] for row in read_rows(out)]
    assert sorted(found) == sorted(row["id"] for row in rows)


def again(port: int):
    deadline = time.monotonic() + 10
    while True:
        try:
            StandIn(port).server_close()
            return serving(port)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
