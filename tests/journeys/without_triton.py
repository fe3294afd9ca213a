"""Imports SGLang's parsers where Triton, a compiler for GPUs that they never call, is not installed."""

from __future__ import annotations

import contextlib
import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Absent(ModuleType):
    """A module, a decorator or a type, whatever is asked of it on import."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **_: Any) -> Any:
        return args[0] if args and callable(args[0]) else self


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "triton" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def parsers() -> ModuleType | None:
    """The module with SGLang's `FunctionCallParser`, or None where it cannot be imported."""
    finder = _Finder()
    missing = find_spec("triton") is None
    if missing:
        sys.meta_path.append(finder)
    try:
        with contextlib.suppress(ImportError):
            return importlib.import_module("sglang.srt.function_call.function_call_parser")
        return None
    finally:
        if missing:  # torch must not take it for the real one
            sys.meta_path.remove(finder)
            for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
                del sys.modules[name]
