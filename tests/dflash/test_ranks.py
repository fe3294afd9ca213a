"""Two processes that train one drafter, as torchrun starts them, and one that does it alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.dflash.loop import settings, train

ROOT = Path(__file__).parents[2]

HOW = {
    "ddp": {},
    "accumulated": {"accumulate": 2, "batch_documents": 2},
    "uneven": {"batch_documents": 3},
    "sharded": {"shard": True},
    "online": {"features_cache": "none"},
    "windows of like length": {"by_length": True, "max_context": 12, "batch_documents": 3, "accumulate": 2},
    "of blocks": {"objective": "dpace", "batch_documents": 3},
    "of the whole step": {"objective": "lk_lambda", "negatives": None, "batch_documents": 3, "accumulate": 2},
    "of the whole step, sharded": {
        "objective": "lk_lambda",
        "negatives": None,
        "features_cache": "none",
        "shard": True,
    },
    "muon": {"optimizer": "muon", "ema": 0.9},
    "sharded muon": {"optimizer": "muon", "ema": 0.9, "shard": True},
}


def torchrun(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Start a module in so many processes, each with one thread."""
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> Path:
    """What two processes make of all of `HOW`."""
    out = tmp_path_factory.mktemp("together")
    done = torchrun(2, "-m", "tests.dflash.loop", str(out), *map(json.dumps, HOW.values()))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return out


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_two_processes_learn_what_one_does(how, together, tmp_path):
    alone = tmp_path / "alone"
    train(alone, settings(**HOW[how]))
    both = together / str(list(HOW).index(how))
    logs = [json.loads((folder / "log.json").read_text()) for folder in (alone, both)]
    # Muon computes in bfloat16, which enlarges a difference of the last bit.
    near = 1e-3 if "muon" in how else 1e-5
    for one, other in zip(*logs, strict=True):
        assert one.keys() == other.keys()
        assert list(other.values()) == pytest.approx(list(one.values()), rel=near)
    assert logs[0][-1]["loss"] < logs[0][1]["loss"]
    states = [load_file(folder / "state.safetensors") for folder in (alone, both)]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert tensor.shape == states[1][name].shape, name
    moved = [
        torch.cat([one.flatten() for name, one in sorted(state.items()) if name.startswith("weight.")])
        for state in states
    ]
    assert torch.linalg.vector_norm(moved[0] - moved[1]) < near * torch.linalg.vector_norm(moved[0])


@pytest.mark.slow
def test_a_state_goes_on_with_another_number_of_processes(together, tmp_path):
    """Six steps of two processes that spread all, then three of one."""
    number = list(HOW).index("sharded")
    folder = tmp_path / "goes on"
    folder.mkdir()
    (folder / "state.safetensors").write_bytes((together / str(number) / "state.safetensors").read_bytes())
    train(folder, settings(steps=9, **HOW["sharded"]))
    log = json.loads((folder / "log.json").read_text())
    assert log[:3] == json.loads((together / str(number) / "log.json").read_text())
    assert [entry["step"] for entry in log] == [0, 3, 6, 9]


@pytest.mark.slow
def test_what_cannot_be_shared_is_refused_once(tmp_path):
    done = torchrun(2, "-m", "tests.dflash.loop", str(tmp_path), '{"batch_documents": 1}')
    assert done.returncode
    words = "train.batch_documents: 1 samples cannot be shared among 2 processes: raise it, or start fewer"
    assert done.stderr.count(words) == 1
