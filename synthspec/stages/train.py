"""The stage that mid-trains the drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from synthspec import progress
from synthspec.ledger import Counts
from synthspec.run import Run
from synthspec.stages.facts import loaded_target

if TYPE_CHECKING:
    from synthspec.dflash.features import Reader

# A text whose tokens are of many kinds.
PROOF = 'Write {"name": "find_train", "to": "Łódź"} and then 12,345.60, please:\n- "why?" – because.'


def train(run: Run) -> Counts:
    """Train the drafter; unit: step."""
    from synthspec.acceptance.choose import choose
    from synthspec.acceptance.measure import on_the_way
    from synthspec.dflash.midtrain import midtrain
    from synthspec.samples.schema import DEV

    target = loaded_target(run)
    settings = run.spec.train
    dev = run.rows(f"sets/{DEV}.parquet")
    assembled = run.ledger().stages.get("assemble")

    def evaluate(drafter: Any) -> dict[str, Any]:
        with progress.bar("measure on the way", len(dev), "answers") as seen:
            return on_the_way(dev, target, drafter, seen)

    with (
        progress.bar("read the training set", assembled.kept if assembled else None, "samples") as reading,
        progress.bar("train", settings.steps, "steps", resumes=True) as tick,
    ):
        midtrain(
            run.path("trainset/train.parquet"),
            target,
            settings,
            run.path("checkpoints"),
            run.spec.seed,
            root=run.root,
            evaluate=evaluate if dev else None,
            choose=choose,
            tick=tick,
            reading=reading,
            reader=_captured(run, target) if settings.features else None,
        )
    return Counts("step", settings.steps, settings.steps)


def _captured(run: Run, target: Any) -> Callable[[Sequence[int]], Reader]:
    """What reads taps on the spec's server, once it has shown that they are the target's layers."""
    from synthspec.keys import read_key
    from synthspec.targets.captured import Captured

    server = run.spec.train.features
    assert server is not None
    key = read_key(server.key, run.root, "train.features.key") if server.key else None

    def reader(taps: Sequence[int]) -> Reader:
        captured = Captured(server.url, taps, target.description["hidden_size"], key)
        captured.prove(target.model, target.tokenizer(PROOF, add_special_tokens=False)["input_ids"])
        return captured.fetch

    return reader
