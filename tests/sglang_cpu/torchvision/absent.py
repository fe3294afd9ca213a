"""Names of torchvision for modules that import it and, serving text, never call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _raise(*_: Any, **__: Any) -> Any:
    raise RuntimeError("there is no torchvision here: only text is served")


def names(module: str) -> Callable[[str], Any]:
    """A module's `__getattr__`: a class for a capitalised name, else a function; both raise when called."""

    def absent(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__module__": module, "__init__": _raise}) if name[0].isupper() else _raise

    return absent
