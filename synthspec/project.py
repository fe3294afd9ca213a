"""A new project, copied from the example that ships with synthspec."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

from synthspec.errors import UserError
from synthspec.spec import SPEC_FILE


def create(folder: Path) -> Path:
    """Copy the example project into a new or empty folder; return its spec file.

    Raises:
        UserError: the folder holds something already, or cannot be made.
    """
    try:
        is_file = folder.exists() and not folder.is_dir()
    except OSError as error:
        raise UserError(f"{str(folder)[:60]} cannot be a folder ({error.strerror}): name another") from None
    if is_file:
        raise UserError(f"{folder} is a file: name a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"the folder {folder} is not empty: name a new one")
    source = Path(str(files("synthspec.examples"))) / "desk"
    try:
        shutil.copytree(
            source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("runs", "__pycache__", ".*")
        )
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}): name a folder of your own") from None
    return folder / SPEC_FILE
