"""From an exception to words on stderr and an exit code; a traceback is never shown."""

from __future__ import annotations

import errno
import json
import shutil
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

from synthspec.errors import Stopped, SynthspecError

FULL_BYTES = 5_000_000  # with less than this free, a failure that nothing else explains is a full disk


class Unexpected(Exception):
    """Stands for an exception whose text may quote rows: it names the kind, and carries the rest unseen."""

    def __init__(self, hidden: BaseException) -> None:
        super().__init__(type(hidden).__name__)
        self.hidden = hidden


def exit_code_of(error: BaseException, as_json: bool) -> int:
    """Tell a failure on stderr; return the exit code that goes with it."""
    message, code = _words(error)
    if as_json:
        told = json.dumps({"error": message, "exit_code": code}, ensure_ascii=False)
    elif "\n" in message:
        lines = message.splitlines()
        told = "\n  ".join([f"synthspec: error: {len(lines)} mistakes", *lines])
    else:
        told = f"synthspec: error: {message}"
    print(told, file=sys.stderr, flush=True)
    return code


def _words(error: BaseException) -> tuple[str, int]:
    for cause in _chain(error):
        if isinstance(cause, SynthspecError):
            return str(cause), cause.exit_code
        if isinstance(cause, KeyboardInterrupt) or _is(cause, "Exit", 130):
            return "interrupted; the same command goes on where it stopped", 130
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f" while writing {cause.filename}" if cause.filename else ""
            return f"the disk is full{where}: free some space and run the same command again", Stopped.exit_code
    if any(_is_of_prefect(cause) for cause in _chain(error)):
        return (
            f"Prefect's server does not answer any more ({type(_chain(error)[0]).__name__}); what is done "
            "stays done: run the same command again",
            Stopped.exit_code,
        )
    if type(error).__name__ == "NoArgsIsHelpError":
        return "say what to do, for example `synthspec init my-desk`; see `synthspec --help`", 2
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # what typer found in the arguments
        text = " ".join(str(error.format_message()).split()).rstrip(".")
        return f"{text}; see `{_command(error)} --help`", int(error.exit_code)
    if type(error).__name__ == "Abort":
        return "interrupted; the same command goes on where it stopped", 130
    if full := _full_disk():
        return f"the disk of {full} is full: free some space and run the same command again", Stopped.exit_code
    return _unexpected(error), 1


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and what it came from, the outermost first; what stands for another is left out."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        if isinstance(cause, Unexpected):
            cause = cause.hidden
        else:
            found.append(cause)
            cause = cause.__cause__ or cause.__context__
    return found


def _is(error: BaseException, name: str, code: int) -> bool:
    return type(error).__name__ == name and getattr(error, "exit_code", None) == code


def _is_of_prefect(error: BaseException) -> bool:
    """Whether it came from the connection to Prefect's server; every other connection has words of its own."""
    return any(kind.__module__.split(".")[0] in ("httpx", "httpcore") for kind in type(error).__mro__)


def _command(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return str(getattr(context, "command_path", "synthspec"))


def _full_disk() -> Path | None:
    for find in (Path.cwd, Path.home, lambda: Path(tempfile.gettempdir())):
        with suppress(OSError, RuntimeError):
            if shutil.disk_usage(place := find()).free < FULL_BYTES:
                return place
    return None


def _unexpected(error: BaseException) -> str:
    """Keep the lines of code that led here in a file, without the exceptions' texts: those may quote rows."""
    chain = _chain(error)
    name = type(chain[0]).__name__
    text = "\nwhich came from:\n".join(
        f"{type(cause).__name__}\n{''.join(traceback.format_tb(cause.__traceback__))}" for cause in chain
    )
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="synthspec-crash-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError:
        return f"something unexpected went wrong ({name}), and no crash file could be written"
    return f"something unexpected went wrong ({name}); {file.name} says where; please report it with that file"
