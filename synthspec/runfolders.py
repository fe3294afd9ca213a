"""Run folders from outside: which there are, what is in them, and what goes when one goes."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from synthspec.acceptance.result import Acceptance
from synthspec.errors import UserError
from synthspec.ledger import Ledger
from synthspec.progress import duration
from synthspec.run import Manifest, StageRecord, is_locked, locked, read_manifest, read_record
from synthspec.stages.table import NAMES

PATTERNS = ("", "*/", "runs/*/", "*/runs/*/")


@dataclass(frozen=True)
class Removal:
    """What goes with a run folder.

    Args:
        folder: the run folder.
        bytes: size of all its files.
        parts: its files and folders, by name, with their sizes in bytes.
        users: other runs whose training starts from a drafter inside it.
    """

    folder: Path
    bytes: int
    parts: dict[str, int]
    users: list[Path]


def find(place: Path) -> list[Path]:
    """All run folders in a folder of projects, in a project, in its runs/, or at the place itself, by name.

    Raises:
        UserError: there is no such folder.
    """
    if not place.is_dir():
        raise UserError(f"there is no folder {place}: name a project or its runs folder")
    found = {file.parent for pattern in PATTERNS for file in place.glob(f"{pattern}manifest.json")}
    return sorted(folder for folder in found if _is_run(folder))


def _is_run(folder: Path) -> bool:
    """Whether a folder's manifest.json is a run's; an export has one too."""
    try:
        return '"stages"' in (folder / "manifest.json").read_text("utf-8")
    except (OSError, ValueError):
        return False


def summary(folder: Path) -> dict[str, Any]:
    """What stands in a run folder, as JSON.

    Raises:
        UserError: it is none, or another version of synthspec wrote it.
    """
    manifest = read_manifest(folder)
    ledger = read_record(folder / "ledger.json", Ledger) if (folder / "ledger.json").exists() else Ledger()
    stages: dict[str, Any] = {}
    for name in NAMES:
        record = manifest.stages.get(name)
        if record is not None:
            line = ledger.stages.get(name)
            stages[name] = {
                "fingerprint": record.fingerprint,
                "finished": record.finished,
                "seconds": _seconds(record) if record.finished else None,
                **(line.model_dump(mode="json") if line and record.finished else {}),
            }
    measured: dict[str, Any] = {}
    if (folder / "acceptance.json").exists():
        measured = read_record(folder / "acceptance.json", Acceptance).model_dump(
            mode="json", exclude_unset=True
        )
    return {
        "run": manifest.name,
        "folder": str(folder),
        "spec": os.path.normpath(folder / manifest.spec.path),
        "bytes": _size(folder),
        "working": is_locked(folder),
        "stages": stages,
        "acceptance": [
            {
                "set": part["name"],
                "requests": part["requests"],
                "start": part["start"]["accept_len"],
                "trained": part["trained"]["accept_len"],
                "difference": part["difference"],
            }
            for part in measured.get("sets", [])
        ],
        # Until the gate has decided again, acceptance.json still holds what it said before.
        "gate": measured.get("gate") if stages.get("check", {}).get("finished") else None,
        "report": str(folder / "report.html") if (folder / "report.html").exists() else None,
        "export": str(folder / "export") if (folder / "export" / "manifest.json").is_file() else None,
    }


def summaries(place: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """`summary` of every run folder in a place, and a sentence about each that cannot be read.

    Raises:
        UserError: there is no such folder.
    """
    found: list[dict[str, Any]] = []
    told: list[str] = []
    for folder in find(place):
        try:
            found.append(summary(folder))
        except UserError as error:
            told.append(str(error))
    return found, told


def removal(folder: Path) -> Removal:
    """What would go if a run were removed.

    Raises:
        UserError: the folder is no run folder.
    """
    folder = folder.resolve()
    if not (folder / "manifest.json").is_file() or not _is_run(folder):
        raise UserError(f"{folder} is not a run folder: name one that `synthspec runs ls` shows")
    parts = {entry.name: _size(entry) for entry in sorted(folder.iterdir()) if entry.name != ".lock"}
    users = [other for other in find(folder.parent) if other != folder and _starts_inside(other, folder)]
    return Removal(folder, sum(parts.values()), parts, users)


def remove(folder: Path) -> None:
    """Remove a run folder.

    Raises:
        UserError: another process works on it.
    """
    link, folder = folder, folder.resolve()
    with locked(folder):
        # The manifest goes last, so that a half-removed run can be removed again.
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == "manifest.json"):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != ".lock":
                entry.unlink()
        shutil.rmtree(folder)
    if link.is_symlink():
        link.unlink()


def _starts_inside(other: Path, folder: Path) -> bool:
    """Whether the spec of `other` starts training from a drafter that lies inside `folder`."""
    try:
        manifest: Manifest = read_manifest(other)
        value = yaml.safe_load(manifest.spec.content)
        start = str(value["train"]["start"])
    except (UserError, yaml.YAMLError, KeyError, TypeError):
        return False
    root = Path(os.path.normpath(other.resolve() / manifest.spec.path)).parent
    return (root / start).resolve().is_relative_to(folder.resolve())


def _size(path: Path) -> int:
    size = 0
    for file in path.rglob("*") if path.is_dir() else [path]:
        # Files of a run at work come and go.
        with suppress(FileNotFoundError):
            status = file.lstat()
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size


def _seconds(record: StageRecord) -> float:
    """From the last start of a stage to its end."""
    try:
        ends = [datetime.fromisoformat(time) for time in (record.started, record.finished or "")]
        return (ends[1] - ends[0]).total_seconds()
    except (ValueError, TypeError):  # somebody edited them
        return 0.0


def told_size(count: float) -> str:
    """`312 B`, `4.1 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def removal_text(what: Removal) -> str:
    """What goes, how big it is, and who else uses it."""
    lines = [f"{what.folder} holds {told_size(what.bytes)}:"]
    lines += [f"  {told_size(size):>10}  {name}" for name, size in what.parts.items()]
    lines += [f"The run {user} starts training from a drafter in it." for user in what.users]
    if not what.users:
        lines.append("No other run beside it starts from a drafter in it.")
    return "\n".join(lines)


def list_table(runs: list[dict[str, Any]], place: Path) -> Any:
    """A table of runs for the terminal."""
    from rich.table import Table

    if not runs:
        return f"no runs in {place.resolve()}: name a project, whose runs are in its folder runs/"
    table = Table(
        "run", "now", "done", "verdict", "size", "folder", box=None, header_style="bold", pad_edge=False
    )
    for run in runs:
        done = [name for name, stage in run["stages"].items() if stage["finished"]]
        progress = f"until {done[-1]}" if done else "nothing"
        now = "at work" if run["working"] else "idle"
        table.add_row(run["run"], now, progress, _verdict(run["gate"]), told_size(run["bytes"]), run["folder"])
    return table


def show_table(run: dict[str, Any]) -> Any:
    """A run's stages, acceptance lengths and verdict for the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    stages = Table("stage", "unit", box=None, header_style="bold", pad_edge=False)
    for column in ("requested", "kept", "took"):
        stages.add_column(column, justify="right")
    stages.add_column("dropped")
    for name, stage in run["stages"].items():
        if not stage["finished"] or "unit" not in stage:
            stages.add_row(name, "at work" if run["working"] else "not finished")
            continue
        others = ", ".join(f"{n:,} {state}" for state, n in stage["dropped"].items())
        took = duration(stage["seconds"])
        stages.add_row(name, stage["unit"], f"{stage['requested']:,}", f"{stage['kept']:,}", took, others)
    parts: list[Any] = [Text(f"run {run['run']}, {told_size(run['bytes'])}", style="bold"), stages]
    if run["acceptance"]:
        sets = Table("set", box=None, header_style="bold", pad_edge=False)
        for column in ("requests", "start", "trained", "difference"):
            sets.add_column(column, justify="right")
        for one in run["acceptance"]:
            low, high = one["difference"]["ci95"]
            change = f"{one['difference']['mean']:+.2f} ({low:+.2f} to {high:+.2f})"
            sets.add_row(
                one["set"], f"{one['requests']:,}", f"{one['start']:.2f}", f"{one['trained']:.2f}", change
            )
        parts += [Text(), Text("acceptance length", style="bold"), sets]
    parts.append(Text())
    if run["gate"]:
        parts.append(Text(f"gate: {_verdict(run['gate'])}"))
        parts += [Text(f"  {reason}") for reason in run["gate"].get("failed", [])]
    for name in ("report", "export"):
        if run[name]:
            parts.append(Text(f"{name}: {run[name]}"))
    return Group(*parts)


def _verdict(gate: dict[str, Any] | None) -> str:
    if not gate:
        return "not checked"
    if gate["passed"]:
        return "ships"
    return "refused, exported anyway" if gate.get("overridden") else "refused"
