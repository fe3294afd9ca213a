"""Killed and resumed; and a disk that is full."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from synthspec.dflash.model import Drafter
from synthspec.dflash.optimize import optimizers
from synthspec.dflash.state import STATE, resume, save_state
from synthspec.errors import Stopped, UserError
from synthspec.spec import Train
from tests.dflash.conftest import drafter_config

ROOT = Path(__file__).parents[2]


def start(out: Path, settings: dict) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.dflash.loop", str(out), json.dumps(settings)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def steps_of(process: subprocess.Popen[str], most: int = 1000) -> int:
    """Read the steps that a training tells, until it ends or has told so many."""
    assert process.stdout
    done = 0
    while done < most and (line := process.stdout.readline()):
        done += int(line)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_training_goes_on_as_if_nothing_had_been(optimizer, tmp_path):
    settings = {
        "steps": 40,
        "checkpoint_every": 4,
        "optimizer": optimizer,
        "schedule": "wsd",
        "ema": 0.9,
        "accumulate": 2,
    }
    whole = start(tmp_path / "whole", settings)
    broken = start(tmp_path / "broken", settings)
    at = random.Random(optimizer).randrange(5, 39)
    assert steps_of(broken, at) == at
    os.kill(broken.pid, signal.SIGKILL)
    assert broken.wait() == -signal.SIGKILL
    assert steps_of(whole) == 40
    assert whole.wait() == 0
    assert (tmp_path / "broken/0" / STATE).exists()
    assert not (tmp_path / "broken/0/log.json").exists()
    again = start(tmp_path / "broken", settings)
    assert steps_of(again) == 40
    assert again.wait() == 0
    one, other = tmp_path / "whole/0", tmp_path / "broken/0"
    assert (one / "log.json").read_text() == (other / "log.json").read_text()
    for file in (STATE, "step-40/model.safetensors"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file
    kept = load_file(one / STATE)
    assert any(name.startswith("mean.") for name in kept)
    assert any(name.startswith("momentum_buffer.") for name in kept) == (optimizer == "muon")
    judged = load_file(one / "step-40/model.safetensors")
    for name, weight in judged.items():  # the mean is what is kept, and no copy of the weights
        assert torch.equal(weight, kept[f"mean.{name}"].to(torch.bfloat16))
    assert any(not torch.equal(kept[f"mean.{name}"], kept[f"weight.{name}"]) for name in judged)


@pytest.fixture
def trained(drafter):
    moved_by = optimizers(drafter, Train())
    for weight in drafter.parameters():
        weight.grad = torch.ones_like(weight)
    moved_by[0].step()
    return drafter, moved_by


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_full_disk_stops_in_words_and_leaves_the_state_as_it_was(trained, tmp_path):
    save_state(*trained, None, [{"step": 1}], tmp_path)
    before = (tmp_path / STATE).read_bytes()
    (tmp_path / f".{STATE}.part").symlink_to("/dev/full")  # what is written beside it does not fit
    with pytest.raises(Stopped, match=r"the disk is full while writing .*state\.safetensors: free some space"):
        save_state(*trained, None, [{"step": 2}], tmp_path)
    assert (tmp_path / STATE).read_bytes() == before
    assert not (tmp_path / f".{STATE}.part").is_symlink()
    save_state(*trained, None, [{"step": 2}], tmp_path)
    assert resume(*trained, None, tmp_path) == [{"step": 2}]


def test_the_state_of_another_training_is_refused(trained, tmp_path):
    save_state(*trained, None, [{"step": 1}], tmp_path)
    torch.manual_seed(2)
    other = Drafter(drafter_config())
    before = [weight.clone() for weight in other.parameters()]
    mean = {name: weight.detach().clone() for name, weight in other.named_parameters()}
    for changed, with_mean in ((Train(optimizer="muon"), None), (Train(), mean)):
        with pytest.raises(
            UserError, match=r"state\.safetensors was written by a training with other settings"
        ):
            resume(other, optimizers(other, changed), with_mean, tmp_path)
    assert all(torch.equal(*pair) for pair in zip(before, other.parameters(), strict=True))
    shutil.copy(tmp_path / STATE, tmp_path / "whole")
    (tmp_path / STATE).write_bytes((tmp_path / "whole").read_bytes()[:-100])
    with pytest.raises(UserError, match=r"state\.safetensors is damaged: remove it"):
        resume(other, optimizers(other, Train()), None, tmp_path)
