"""The stage that mid-trains the drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
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
    """Train the drafter; unit: step, those not taken for drift are surplus.

    On several ranks all must call; rank 0 alone measures and writes.
    """
    from synthspec.acceptance.choose import choose, drifted
    from synthspec.acceptance.measure import on_the_way
    from synthspec.dflash import ranks
    from synthspec.dflash.midtrain import midtrain
    from synthspec.samples.schema import DEV

    target = ranks.together(lambda: loaded_target(run))
    settings = run.spec.train
    dev = run.rows(f"sets/{DEV}.parquet")
    assembled = run.ledger().stages.get("assemble")

    def evaluate(drafter: Any) -> dict[str, Any]:
        with progress.bar("measure on the way", len(dev), "answers") as seen:
            return on_the_way(dev, target, drafter, seen)

    def stop(log: Sequence[dict[str, Any]]) -> str | None:
        tick(0, note=_measured(log))
        if settings.stop_on_drift is None:
            return None
        return drifted(log, run.spec.gate.ood_drop, settings.stop_on_drift)

    with (
        _tracker(run) as told,
        progress.bar("read the training set", assembled.kept if assembled else None, "samples") as reading,
        progress.bar("train", settings.steps, "steps", resumes=True, second="tokens") as tick,
    ):
        made = midtrain(
            run.path("trainset/train.parquet"),
            target,
            settings,
            run.path("checkpoints"),
            run.spec.seed,
            root=run.root,
            evaluate=evaluate if dev else None,
            choose=choose,
            stop=stop,
            tick=tick,
            told=told,
            reading=reading,
            reader=_captured(run, target) if settings.features else None,
            say=progress.say,
        )
    last = made["steps"][-1]
    if "stopped" in last:
        progress.say(f"  training ended after {last['step']} of {settings.steps} steps: {last['stopped']}")
    left = settings.steps - last["step"]
    return Counts("step", settings.steps, last["step"], {"surplus": left} if left else {})


def _measured(log: Sequence[dict[str, Any]]) -> str:
    """What the last entry measured, in a few words: `τ 3.41, drift −0.02`."""
    before, now = (entry.get("accept_len", {}) for entry in (log[0], log[-1]))
    parts = [f"τ {now['in_domain']:.2f}"] if "in_domain" in now else []
    if "general" in now and "general" in before:
        parts.append(f"drift {now['general'] - before['general']:+.2f}".replace("-", "−"))
    return ", ".join(parts)


def _tracker(run: Run) -> AbstractContextManager[Callable[[int, dict[str, float]], None] | None]:
    """What draws curves, if the person wants them."""
    from synthspec.dflash import ranks
    from synthspec.track import tracker

    if run.spec.train.track is None or ranks.rank():
        return nullcontext()
    return tracker(run.spec.train.track, run.path("curves"), run.name)


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
