"""Curves of a training in TensorBoard or trackio, where they are installed and asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Literal

from synthspec.errors import UserError

Curve = Callable[[int, dict[str, float]], None]


@contextmanager
def tracker(kind: Literal["tensorboard", "trackio"], folder: Path, run: str) -> Iterator[Curve]:
    """Write curves while the context is open; both keep them in `folder`.

    Args:
        folder: gets the curves; look at them with `tensorboard --logdir` or `TRACKIO_DIR=… trackio show`.
        run: the name that they are shown under.

    Yields:
        A function that takes a step and numbers by name.

    Raises:
        UserError: the package is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing(kind) from None
        with SummaryWriter(str(folder / run)) as writer:

            def draw(step: int, numbers: dict[str, float]) -> None:
                for name, number in numbers.items():
                    writer.add_scalar(name, number, step)

            yield draw
        return
    os.environ["TRACKIO_DIR"] = str(folder.resolve())  # read when it is imported
    try:
        import trackio
    except ImportError:
        raise _missing(kind) from None
    with redirect_stdout(sys.stderr):  # stdout is for what the command answers
        trackio.init(project="synthspec", name=run, resume="allow", embed=False, auto_log_cpu=False)
    try:
        yield lambda step, numbers: trackio.log(numbers, step=step)
    finally:
        with redirect_stdout(sys.stderr):
            trackio.finish()


def _missing(kind: str) -> UserError:
    return UserError(
        f"train.track: {kind} is not installed: pip install 'synthspec[{kind}]', or leave train.track out"
    )
