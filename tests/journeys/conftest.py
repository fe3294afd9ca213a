"""What journeys share: the installed command, a small desk, and the tutorial run through once."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Shell:
    """Runs the installed commands in a folder, as a person would."""

    folder: Path
    prefect_home: Path
    prefect_url: str = ""  # of a running server; without one every flow starts its own, as a person's does
    more: Mapping[str, str] = field(default_factory=dict)  # environment variables

    @property
    def env(self) -> dict[str, str]:
        found = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{found['PATH']}"
        found["PREFECT_HOME"] = str(self.prefect_home)
        found["COLUMNS"] = "120"
        if self.prefect_url:
            found["PREFECT_API_URL"] = self.prefect_url
        return found | self.more

    def run(self, command: str, *exits: int) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            shlex.split(command), cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=1200
        )
        told = f"{command}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode in (exits or (0,)), told
        assert "Traceback" not in done.stderr, told
        return done

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            shlex.split(command),
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def kill_once(self, command: str, there: Callable[[], bool]) -> bool:
        """Start a command, and once `there()` holds kill all of it; False if it ended first."""
        process = self.start(command)
        while not there():
            if process.poll() is not None:
                process.communicate()
                return False
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True


def merged(old: Any, new: Any) -> Any:
    """`new` over `old`: mappings key by key, all else as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: merged(old.get(key), value) for key, value in new.items()}}
    return new


def edit(path: Path, changes: dict[str, Any]) -> None:
    """Set keys of a YAML file."""
    content = merged(yaml.safe_load(path.read_text()), changes)
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


@dataclass(frozen=True)
class Tutorial:
    """What following docs/tutorial.md left behind."""

    shell: Shell
    outputs: dict[str, subprocess.CompletedProcess[str]]

    @property
    def run(self) -> Path:
        return self.shell.folder / "my-desk" / "runs" / "desk"


@pytest.fixture(scope="session")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Tutorial:
    """Every block of the tutorial, in order: commands, edits, and Python.

    A command's last word on its exit code is in the block (`exit=0,3`); `skip` blocks are not run.
    """
    shell = Shell(tmp_path_factory.mktemp("tutorial"), tmp_path_factory.mktemp("prefect"))
    outputs: dict[str, subprocess.CompletedProcess[str]] = {}
    copied = False
    for language, info, text in BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text()):
        words = dict(word.partition("=")[::2] for word in info.split())
        if "skip" in words:
            continue
        if language == "yaml":
            if "grammars" in words["edit"] and not copied:
                copied = True
                keep = shell.folder / "kept"
                subprocess.run(["cp", "-r", shell.folder / "my-desk", keep], check=True)
            edit(shell.folder / words["edit"], yaml.safe_load(text))
        elif language == "python":
            subprocess.run([sys.executable, "-c", text], cwd=shell.folder, check=True, timeout=120)
        else:
            for line in text.replace("\\\n", " ").splitlines():
                command = line.removeprefix("$ ")
                exits = [int(code) for code in words.get("exit", "0").split(",")]
                outputs[command] = shell.run(command, *exits)
    # The last step began again; what the earlier ones made was set aside.
    subprocess.run(["rm", "-rf", shell.folder / "my-desk"], check=True)
    subprocess.run(["mv", shell.folder / "kept", shell.folder / "my-desk"], check=True)
    return Tutorial(shell, outputs)
