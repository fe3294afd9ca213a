"""A SGLang server of one's own: started with the flags that synthspec needs, watched, and ended with us."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from synthspec.errors import Stopped, UserError

READY = 1800.0  # seconds: a large model is loaded slowly
GRACE = 20.0  # seconds to end by itself
DEATHS = 3  # in a row without having been ready, before it is given up
TAIL = 12  # lines of its log that are shown when it dies


class Died(Stopped):
    """A server ended, or took too long, before it was ready."""


@dataclass(frozen=True)
class Launch:
    """What a server is started with.

    Args:
        model: a folder or a hub id.
        revision: commit of a hub id.
        drafter: folder of a DFlash drafter, or None to decode without one.
        tp: GPUs that share the model.
        python: interpreter of the environment that holds SGLang.
        more: flags of SGLang, as they stand on its command line.
        environment: variables set for it.
    """

    model: str
    revision: str | None = None
    drafter: Path | None = None
    tp: int = 1
    host: str = "127.0.0.1"
    port: int = 30000
    python: str = sys.executable
    more: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{'127.0.0.1' if self.host == '0.0.0.0' else self.host}:{self.port}"

    def command(self) -> list[str]:
        """The command line. JSON is written as grammars describe it, with a space behind colon and comma."""
        words = [self.python, "-m", "sglang.launch_server", "--model-path", self.model]
        if self.revision:
            words += ["--revision", self.revision]
        words += ["--host", self.host, "--port", str(self.port), "--tp", str(self.tp)]
        words += ["--grammar-backend", "xgrammar", "--constrained-json-disable-any-whitespace"]
        if self.drafter is not None:
            words += ["--speculative-algorithm", "DFLASH"]
            words += ["--speculative-draft-model-path", str(self.drafter)]
        return [*words, *self.more]


def check_launch(launch: Launch) -> None:
    """Refuse what would only fail minutes later.

    Raises:
        UserError: no SGLang in that environment, no such drafter, or the port is taken.
    """
    if shutil.which(launch.python) is None:
        raise UserError(
            f"--python: there is no interpreter {launch.python}; name the one of SGLang's environment"
        )
    look = [launch.python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('sglang') is None)"]
    if subprocess.run(look, capture_output=True, check=False).returncode:
        raise UserError(
            f"there is no SGLang in the environment of {launch.python}: run pip install "
            "'synthspec[sglang]', or name the interpreter of an environment that has it with --python"
        )
    if launch.drafter is not None:
        from synthspec.dflash.config import read_config, read_raw

        read_config(launch.drafter)
        if "speculators_model_type" in read_raw(launch.drafter):
            raise UserError(
                f"--drafter: {launch.drafter} is in the layout of speculators, which SGLang does not read: "
                "name the run's export/, or write it with `synthspec export --format sglang`"
            )
    if _answers(launch.url, "/health"):
        raise UserError(f"--port: a server answers at {launch.url} already; end it, or name another port")


class Supervised:
    """A server process, and the last lines that it logged.

    Args:
        log: takes every line.
    """

    def __init__(self, launch: Launch, log: Callable[[str], None] = lambda line: None) -> None:
        self.launch = launch
        self.tail: deque[str] = deque(maxlen=TAIL)
        self._process = subprocess.Popen(
            launch.command(),
            env={**os.environ, **launch.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,  # its own workers end with it
        )
        self._reader = Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()

    def _read(self, log: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.tail.append(line.rstrip())
            log(line.rstrip())

    @property
    def ended(self) -> int | None:
        """Its exit status, or None while it lives."""
        return self._process.poll()

    def wait_until_ready(self, within: float = READY) -> None:
        """Return when it answers.

        Raises:
            Died: with the last words of its log.
        """
        deadline = time.monotonic() + within
        while not _answers(self.launch.url, "/health"):
            if self.ended is not None:
                self._reader.join(2)
                raise Died(
                    f"the server ended with status {self.ended} before it was ready: {self.last_words()}"
                )
            if time.monotonic() > deadline:
                raise Died(f"the server was not ready after {within:.0f} s: {self.last_words()}")
            time.sleep(0.5)

    def last_words(self) -> str:
        """The end of its log, in one line: of a Python failure what it says."""
        told = [line for line in self.tail if line.strip()]
        errors = [line for line in told if "Error" in line]
        return (errors or told or ["it logged nothing"])[-1].strip()[-300:]

    def wait(self) -> int:
        return self._process.wait()

    def end(self) -> None:
        """End it and what it started; gently first."""
        for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(patience)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


@contextmanager
def serving(launch: Launch, log: Callable[[str], None] = lambda line: None) -> Iterator[Supervised]:
    """A server that is ready, until the context closes.

    Raises:
        UserError: as `check_launch`.
        Died: as `Supervised.wait_until_ready`.
    """
    check_launch(launch)
    server = Supervised(launch, log)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.end()


def supervise(launch: Launch, say: Callable[[str], None], log: Callable[[str], None]) -> None:
    """Keep a server running until a signal comes; one that dies is started again.

    Raises:
        UserError: as `check_launch`.
        Died: several times in a row.
    """
    check_launch(launch)
    say(f"starting: {shlex.join(launch.command())}")
    deaths = 0
    while True:
        server = Supervised(launch, log)
        try:
            begun = time.monotonic()
            server.wait_until_ready()
            deaths = 0
            say(f"ready after {time.monotonic() - begun:.0f} s at {launch.url}")
            status = server.wait()
            say(f"the server ended with status {status} ({server.last_words()}); it is started again")
        except Died as error:
            deaths += 1
            if deaths == DEATHS:
                raise
            say(f"{error}; it is started again")
        finally:
            server.end()
        time.sleep(1)


def _answers(url: str, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False
