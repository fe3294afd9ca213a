"""A small training in a process of its own: the tests start it, kill it, and start it under torchrun.

python -m tests.dflash.loop OUT '{"optimizer": "muon"}' ['{"shard": true}' …]

Each argument is the settings of a training, whose log and weights go to OUT/0, OUT/1, …; a line is printed
after every step.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from synthspec.dflash import ranks
from synthspec.dflash.batches import Document
from synthspec.dflash.checkpoint import save
from synthspec.dflash.features import Online, extract
from synthspec.dflash.model import Drafter
from synthspec.dflash.objectives import foreseen_as
from synthspec.dflash.train import fit
from synthspec.files import write_json
from synthspec.spec import Train
from synthspec.targets.causal import CausalModel
from tests.dflash.conftest import MASK, drafter_config, tiny_llama

TAPS = (1, 3)


def documents() -> list[Document]:
    """Ten texts of 24 to 33 tokens whose first three are a prompt."""
    dice = torch.Generator().manual_seed(5)
    texts = [torch.randint(3, MASK, (24 + number,), generator=dice) for number in range(10)]
    return [Document(ids, torch.arange(len(ids)) >= 3) for ids in texts]


def settings(**changes: Any) -> Train:
    return Train(
        **{
            "steps": 6,
            "batch_documents": 4,
            "anchors": 6,
            "learning_rate": 3e-3,
            "checkpoint_every": 3,
            "negatives": 40,
        }
        | changes
    )


def train(out: Path, chosen: Train) -> None:
    """Train a small random drafter for a small random target."""
    model = CausalModel(tiny_llama())
    torch.manual_seed(1)
    drafter = Drafter(drafter_config())
    learnt = documents()
    texts = [one.ids.tolist() for one in learnt]
    form = foreseen_as(chosen.objective)
    kept = {"soft": {0, 3, 7} if form else set(), "form": form or "expected"}
    features = (
        Online(model, texts, TAPS, **kept)
        if chosen.features_cache == "none"
        else extract(model, texts, TAPS, out / "features.bin", dtype=torch.float32, **kept)
    )

    def evaluate(current: Drafter) -> dict[str, Any]:
        """A number that depends on every weight: what is judged is what the state holds."""
        return {"seen": float(sum(weight.detach().double().abs().sum() for weight in current.parameters()))}

    log = fit(
        drafter,
        model,
        learnt,
        features,
        chosen,
        out,
        7,
        evaluate=evaluate,
        keep=lambda current, step: save(current, out / f"step-{step}"),
        tick=lambda n, tokens: print(n, flush=True),
    )
    if ranks.rank() == 0:
        write_json(out / "log.json", log)


if __name__ == "__main__":
    with ranks.joined() if "TORCHELASTIC_RUN_ID" in os.environ else nullcontext():
        for number, given in enumerate(sys.argv[2:]):
            train(Path(sys.argv[1]) / str(number), settings(**json.loads(given)))
