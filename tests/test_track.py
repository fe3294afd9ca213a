"""Curves in TensorBoard and trackio, where they are installed."""

from __future__ import annotations

import sqlite3
from importlib.util import find_spec

import pytest

from synthspec.errors import UserError
from synthspec.track import tracker


@pytest.mark.parametrize("kind", ["tensorboard", "trackio"])
def test_what_is_not_installed_is_told_in_a_sentence(kind, tmp_path):
    if find_spec(kind):
        pytest.skip(f"{kind} is installed")
    words = (
        rf"train.track: {kind} is not installed: pip install 'synthspec\[{kind}\]', or leave train.track out"
    )
    with pytest.raises(UserError, match=words), tracker(kind, tmp_path, "desk"):
        pass


def test_curves_of_tensorboard_hold_what_was_told(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracker("tensorboard", tmp_path, "desk") as draw:
        draw(1, {"loss": 3.0})
        draw(2, {"loss": 2.0, "accept_len/general": 1.5})
    found = EventAccumulator(str(tmp_path / "desk")).Reload()
    assert [(one.step, one.value) for one in found.Scalars("loss")] == [(1, 3.0), (2, 2.0)]
    assert [(one.step, one.value) for one in found.Scalars("accept_len/general")] == [(2, 1.5)]


@pytest.mark.skipif(not find_spec("trackio"), reason="trackio is not installed")
def test_curves_of_trackio_hold_what_was_told(tmp_path, capsys):
    with tracker("trackio", tmp_path, "desk") as draw:
        draw(1, {"loss": 3.0})
        draw(2, {"loss": 2.0})
    rows = sqlite3.connect(tmp_path / "synthspec.db").execute("select step, metrics from metrics order by step")
    assert [(step, bytes(text)) for step, text in rows] == [(1, b'{"loss":3.0}'), (2, b'{"loss":2.0}')]
    assert capsys.readouterr().out == ""  # which is for what a command answers
