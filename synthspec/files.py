"""Files that appear whole, and the fingerprints of what they hold."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from synthspec.errors import Stopped


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_id(*parts: Any) -> str:
    """16 hexadecimal digits that depend on the parts alone (BLAKE2b of their canonical JSON)."""
    text = canonical(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to; on success it takes `path`'s place, on failure it goes.

    Raises:
        Stopped: the disk is full or may not be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        part.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Stopped(
                f"the disk is full while writing {path}: free some space and run the same command again"
            ) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise Stopped(f"{path} cannot be written ({error.strerror}): check its permissions") from None
        raise
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def is_file(path: Path) -> bool:
    """Whether there is such a regular file; what can be no path at all is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; what can be no path at all is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
