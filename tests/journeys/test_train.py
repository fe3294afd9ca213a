"""`synthspec train`, killed or on several processes: a tiny target, and a run whose training set is there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

from synthspec.dflash.checkpoint import save
from synthspec.dflash.model import Drafter
from synthspec.files import canonical
from synthspec.ledger import Counts
from synthspec.run import StageRecord, open_run
from synthspec.samples.schema import SAMPLES, write_rows
from synthspec.stages.facts import loaded_target
from synthspec.stages.table import NAMES, stage_named
from synthspec.targets import smollm2
from tests.dflash.conftest import drafter_config, tiny_llama
from tests.journeys.conftest import Shell

pytestmark = pytest.mark.slow

VOCABULARY, MASK = 49_152, 16
SPEC = {
    "name": "small",
    "target": {"model": "target", "dtype": "float32"},
    "prompts": [{"name": "p", "files": ["p.jsonl"], "licence": "MIT"}],
    "match": ["p"],
    "grammars": ["g.yaml"],
    "train": {
        "start": "start",
        "steps": 6,
        "checkpoint_every": 2,
        "batch_documents": 4,
        "anchors": 4,
        "learning_rate": 3e-3,
        "negatives": 64,
    },
}


def samples(count: int, target: str) -> list[dict]:
    dice = torch.Generator().manual_seed(count)
    return [
        {
            "id": str(number),
            "purpose": "replay",
            "set": "train",
            "turn": 0,
            "input_ids": torch.randint(20, 400, (20 + number,), generator=dice).tolist(),
            "prompt_tokens": 4,
            "loss_mask": [0] * 4 + [1] * (16 + number),
            "spans": [],
            "held": False,
            "max_new_tokens": 8,
            "lineage": {"target": target},
        }
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """Everything up to `assemble` is done, as far as the manifest knows."""
    root = tmp_path_factory.mktemp("project")
    (root / "synthspec.yaml").write_text(yaml.safe_dump(SPEC))
    (root / "p.jsonl").write_text('{"prompt": "hello"}\n')
    (root / "g.yaml").write_text("name: g\n")
    shutil.copytree(smollm2.folder(), root / "target", ignore=shutil.ignore_patterns("model.safetensors"))
    tiny_llama(vocab_size=VOCABULARY).save_pretrained(root / "target")
    torch.manual_seed(1)
    save(Drafter(drafter_config(vocab_size=VOCABULARY, mask_token_id=MASK)), root / "start")
    run = open_run(root)
    target = loaded_target(run)
    write_rows(run.path("trainset/train.parquet"), SAMPLES, samples(9, target.fingerprint))
    write_rows(run.path("sets/dev.parquet"), SAMPLES, samples(6, target.fingerprint))
    for name in NAMES[: NAMES.index("train")]:
        stage = stage_named(name)
        run.manifest.stages[name] = StageRecord(
            fingerprint=name,
            code=stage.code,
            settings=json.loads(canonical(stage.settings(run))),
            inputs={},
            outputs={},
            started="2026-01-01T00:00:00+00:00",
            finished="2026-01-01T00:00:00+00:00",
        )
        run.enter(name, Counts("sample", 9, 9))
    run.save()
    return root


def log_of(runs: Path) -> list[dict]:
    return json.loads((runs / "small/checkpoints/log.json").read_text())["steps"]


@pytest.fixture(scope="module")
def shell(project: Path, prefect_url: str) -> Shell:
    return Shell(project, project / "prefect", prefect_url, {"OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def undisturbed(shell: Shell) -> Path:
    """The folder of runs in which one process trained from beginning to end."""
    runs = shell.folder / "undisturbed"
    shutil.copytree(shell.folder / "runs", runs)
    shell.run(f"synthspec train synthspec.yaml --runs {runs.name} --json")
    return runs


def test_killed_while_training_the_drafter_comes_out_the_same(shell: Shell, undisturbed: Path):
    runs = shell.folder / "disturbed"
    shutil.copytree(shell.folder / "runs", runs)
    command, made = f"synthspec train synthspec.yaml --runs {runs.name} --json", runs / "small/checkpoints"
    assert shell.kill_once(command, lambda: (made / "features.bin").exists())
    assert shell.kill_once(command, lambda: (made / "step-000002").exists())
    shell.run(command)
    assert log_of(runs) == log_of(undisturbed)
    one, other = (folder / "small/checkpoints/final/model.safetensors" for folder in (undisturbed, runs))
    assert one.read_bytes() == other.read_bytes()
    assert {path.name for path in made.iterdir()} == {"final", "log.json"}


def test_two_processes_train_what_one_does(shell: Shell, undisturbed: Path):
    runs = shell.folder / "shared"
    shutil.copytree(shell.folder / "runs", runs)
    command = f"torchrun --nproc-per-node 2 -m synthspec train synthspec.yaml --runs {runs.name} --json"
    done = shell.run(command)
    assert json.loads(done.stdout)["stages"]["train"]["kept"] == SPEC["train"]["steps"]  # said by one of them
    for one, both in zip(log_of(undisturbed), log_of(runs), strict=True):
        assert both["step"] == one["step"]
        assert both.get("loss", 0.0) == pytest.approx(one.get("loss", 0.0), rel=1e-5)
        assert len(both["counts"]["general"]["steps"]) == 6
    final = runs / "small/checkpoints/final/model.safetensors"
    before = final.stat().st_mtime_ns
    shell.run(command)
    assert final.stat().st_mtime_ns == before  # it is done already


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train nowhere", "nowhere"),
        ("train synthspec.yaml --runs empty", "stage train cannot start, because stage pull is not"),
    ],
)
def test_a_mistake_on_two_processes_is_said_once(shell: Shell, arguments: str, words: str):
    done = subprocess.run(
        f"torchrun --nproc-per-node 2 -m synthspec {arguments}".split(),
        cwd=shell.folder,
        env=shell.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode
    lines = [line for line in done.stderr.splitlines() if "synthspec: error: " in line]
    assert len(lines) == 1, done.stderr
    assert words in lines[0]
