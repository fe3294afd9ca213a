"""Keys for servers and hubs: read when they are used, and written to no file."""

from __future__ import annotations

import os
from pathlib import Path

from synthspec.errors import UserError
from synthspec.spec import Key
from synthspec.yamlfile import check_inside, read_text

HUB = "HF_TOKEN"  # where the hub's libraries look for its key


def read_key(key: Key, root: Path, field: str) -> str:
    """The key itself.

    Args:
        root: what a file is relative to, and lies in.
        field: of the spec, or option, that says where it is, for messages.

    Raises:
        UserError: it is not where the spec says; the message does not show it.
    """
    if key.env is not None:
        found = os.environ.get(key.env, "")
        place = field if field.startswith("--") else f"{field}.env"
        where = f"{place}: the environment variable {key.env}"
    else:
        assert key.file is not None
        found = read_text(check_inside(root, key.file), 10_000)
        where = f"{field}.file: {key.file}"
    found = found.strip()
    if not found or not found.isprintable() or not found.isascii():
        raise UserError(f"{where} holds no key; put it there, on one line")
    return found


def unlock_hub(key: Key | None, root: Path) -> None:
    """Let the libraries that load from the hub find the spec's key, in this process and those it starts.

    Raises:
        UserError: as `read_key`.
    """
    if key is not None:
        os.environ[HUB] = read_key(key, root, "hub.key")
