"""The run folder: everything that one spec produced, and the manifest that says how."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from synthspec import __version__
from synthspec.errors import UserError
from synthspec.files import write_json
from synthspec.ledger import Counts, Ledger, StageCounts
from synthspec.spec import SPEC_FILE, Spec, load_spec

MANIFEST_VERSION = 1

Record = TypeVar("Record", bound=BaseModel)
Piece = Callable[[str, Callable[[], None]], None]


def _do(name: str, work: Callable[[], None]) -> None:
    work()


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SpecCopy(_Part):
    """The spec that the run was made from."""

    path: str = Field(description="the spec file, relative to the run folder")
    content: str = Field(description="the text of the spec file when the run last worked")


class StageRecord(_Part):
    """How one stage was done."""

    fingerprint: str = Field(description="SHA-256 over the stage's name, code version, settings and inputs")
    code: int = Field(description="version of the stage's code; it grows when its results change")
    settings: dict[str, Any] = Field(description="the settings that the stage depends on")
    inputs: dict[str, str] = Field(description="SHA-256 of every input file, by its path")
    outputs: dict[str, str] = Field(description="SHA-256 of every output file, by its path in the run folder")
    started: str = Field(description="ISO time, UTC")
    finished: str | None = Field(description="ISO time, UTC; null while the stage is not done")


class Manifest(_Part):
    """manifest.json: what a run folder holds and how it came to be."""

    version: Literal[1] = 1
    synthspec: str = Field(description="version of synthspec that last worked on the run")
    name: str
    spec: SpecCopy
    stages: dict[str, StageRecord] = {}


@dataclass
class Run:
    """An open run folder.

    Args:
        folder: where everything is.
        root: the folder of the spec; relative paths of the spec start here.
        spec: the settings.
        manifest: as on disk.
        piece: does a part of a stage's work, by its name; a flow makes a task of it.
    """

    folder: Path
    root: Path
    spec: Spec
    manifest: Manifest
    piece: Piece = _do

    @property
    def name(self) -> str:
        return self.manifest.name

    def path(self, name: str) -> Path:
        return self.folder / name

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a parquet file, or of a folder of them."""
        from synthspec.samples.schema import read_rows

        return read_rows(self.path(name))

    def save(self) -> None:
        """Write manifest.json."""
        self.manifest.synthspec = __version__
        write_json(self.folder / "manifest.json", self.manifest.model_dump(mode="json"))

    def ledger(self) -> Ledger:
        """ledger.json, or an empty ledger."""
        path = self.folder / "ledger.json"
        return read_record(path, Ledger) if path.exists() else Ledger()

    def enter(self, stage: str, counts: Counts | None) -> None:
        """Write a stage's counts into ledger.json in the place of what stood there; None strikes it out."""
        ledger = self.ledger()
        ledger.stages.pop(stage, None)
        if counts is not None:
            ledger.stages[stage] = StageCounts(**counts.as_json())
        write_json(self.folder / "ledger.json", ledger.model_dump(mode="json"))


def open_run(path: Path, runs: Path | None = None) -> Run:
    """Open the run of a spec, or an existing run folder.

    Args:
        path: a spec file, a folder with a synthspec.yaml, or a run folder.
        runs: where run folders are; by default `runs/` beside the spec.

    Raises:
        UserError: it is none of them, the spec has mistakes, or another version wrote the run folder.
    """
    path = named(path, runs)
    if (path / "manifest.json").is_file():
        return _existing(path)
    if path.is_dir() and not (path / SPEC_FILE).is_file():
        raise UserError(
            f"{path} is neither a run folder (it has no manifest.json) nor a project (it has no "
            f"{SPEC_FILE}): name a spec file or a folder in runs/"
        )
    file = path / SPEC_FILE if path.is_dir() else path
    spec = load_spec(file)
    folder = (runs or file.parent / "runs") / spec.name
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise UserError(
                f"the run folder would be {folder}, but {place} is a file: name another with --runs"
            )
    copy = SpecCopy(path=os.path.relpath(file.resolve(), folder.resolve()), content=file.read_text("utf-8"))
    if (folder / "manifest.json").is_file():
        manifest = read_manifest(folder)
        manifest.spec = copy
    elif folder.exists() and any(entry.name != ".lock" for entry in folder.iterdir()):
        raise UserError(
            f"the run folder {folder} holds files but no manifest.json: move them away, or give the spec "
            "another name"
        )
    else:
        manifest = Manifest(synthspec=__version__, name=spec.name, spec=copy)
    return Run(folder, file.parent.resolve(), spec, manifest)


def named(path: Path, runs: Path | None = None) -> Path:
    """The path itself, or the run of that name in `runs`, by default `runs/` here."""
    here = (runs or Path("runs")) / path
    return here if here.is_dir() and (runs or not path.exists()) else path


def run_folder(path: Path, runs: Path | None = None) -> Path:
    """The run folder of whatever names a run: itself, its name in `runs`, a spec or a project.

    Raises:
        UserError: as `open_run`.
    """
    path = named(path, runs)
    if not path.exists() and (others := sorted(Path().glob(f"*/runs/{path.name}/manifest.json"))):
        raise UserError(f"there is no run {path}; there is one in {others[0].parent}: name that folder")
    is_spec = path.is_file() or (path / SPEC_FILE).is_file()
    return open_run(path, runs).folder if is_spec and not (path / "manifest.json").exists() else path


def _existing(folder: Path) -> Run:
    """A run folder, with the spec that it came from, or its copy where that has gone or has another name."""
    manifest = read_manifest(folder)
    file = Path(os.path.normpath(folder.resolve() / manifest.spec.path))
    spec = load_spec(file) if file.is_file() else None
    if spec is not None and spec.name == manifest.name:
        manifest.spec.content = file.read_text("utf-8")
    else:
        spec = load_spec(file, content=manifest.spec.content)
    return Run(folder, file.parent, spec, manifest)


def read_manifest(folder: Path) -> Manifest:
    """manifest.json of a run folder.

    Raises:
        UserError: it cannot be read, or another version of synthspec wrote it.
    """
    return read_record(folder / "manifest.json", Manifest)


def read_record(path: Path, model: type[Record]) -> Record:
    """A JSON file of the run folder, checked.

    Raises:
        UserError: it is damaged or was written by another version of synthspec.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: name a run folder, or run the spec again") from None
    except (ValueError, OSError, RecursionError):
        raise UserError(
            f"{path} cannot be read as JSON: restore it, or remove {path.parent} and run its spec again"
        ) from None
    version = value.get("version") if isinstance(value, dict) else None
    if version != MANIFEST_VERSION:
        made = value.get("synthspec", "another version") if isinstance(value, dict) else "another program"
        raise UserError(
            f"{path} has version {version!r}, written by synthspec {made}, and this synthspec "
            f"({__version__}) reads version {MANIFEST_VERSION}: use that synthspec, or give the spec "
            "another name"
        )
    try:
        return model.model_validate(value)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "its top"
        raise UserError(
            f"{path} is damaged at {place}: restore it, or remove {path.parent} and run its spec again"
        ) from None


def is_locked(folder: Path) -> bool:
    """Whether some process works on a run folder."""
    if folder.resolve() in _held:
        return True
    try:
        with (folder / ".lock").open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


_held: dict[Path, int] = {}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes away from a run folder; within this process it may be taken again.

    Raises:
        UserError: another process works on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = folder.resolve()
    if key in _held:
        _held[key] += 1
        try:
            yield
        finally:
            _held[key] -= 1
        return
    with (folder / ".lock").open("a") as stream:
        for patience in reversed(range(10)):  # whoever merely looks (`is_locked`) is gone at once
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not patience:
                    raise UserError(
                        f"another process works on the run {folder}: wait for it, or give the spec another name"
                    ) from None
                time.sleep(0.05)
        _held[key] = 1
        try:
            yield
        finally:
            del _held[key]
