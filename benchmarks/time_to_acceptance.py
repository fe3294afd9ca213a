"""How many seconds of training it takes until a drafter's guesses hold: ours beside a public trainer's.

    python benchmarks/time_to_acceptance.py SPEC --peers DIR [--runs RUNS] [--aim 3.0] [--steps N]
                                            [--times 6] [--only NAME …]

SPEC is a spec whose training set is made (`synthspec run SPEC --until assemble`); `synthspec init` writes that
of the demo.  Everyone learns from the same samples and the same cached features of the target, in a process of
its own, and trains in turn for a while; whatever else the machine does meets all of them.  After its turn the
drafter is measured on the run's held-out prompts by real speculative decoding, which is not counted.  Who has
come to `--aim` is done; who has not after `--times` as long as ours gives up: its seconds are a lower bound.

    ours           the spec's own settings and starting drafter, as `synthspec train` would use them
    peer           SpecForge 0.2.0: its model, masks, anchors and loss, weights drawn as its model draws them,
                   and the recipe of DFlash (arXiv 2602.06036): AdamW 6e-4, warm-up of 40 steps, cosine,
                   clip 1.0, γ by block size, 512 anchors a sample
    peer_started   the same from our starting drafter
    peer_thrifty   the same from our starting drafter, with as few anchors as ours

and what ours owes to each of its parts, one left out of each:

    copied         begins with the target's last layers instead of the starting drafter
    drawn          begins with weights drawn at random
    whole          the softmax runs over the whole vocabulary
    hard           learns from written tokens alone, not from what the target foresaw of free ones
    alone          without the general samples that keep what the drafter knew
    dense          512 anchors a sample
    steady         the learning rate stays where it is after warm-up

A peer's cosine ends where its time does.  All take the samples of a step in batches of as many.  `ours_s` and
`peer_s` are seconds until the aim and `ratio` is peer over ours, of which `peer_reached` says whether it is
only a lower bound; `ratio_to_best` is the same against the fastest of the three peers, which is not how one
begins there.  Prints one JSON line, with τ over the seconds of everyone under `curves`.

DIR/specforge is the environment of `benchmarks/train_step.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]

PEERS: dict[str, Row] = {
    "peer": {"start": "drawn", "anchors": 512},
    "peer_started": {"start": "start", "anchors": 512},
    "peer_thrifty": {"start": "start", "anchors": None},
}
# What each of ours changes in the settings; `begin` and `leave` are no settings.
OURS: dict[str, Row] = {
    "ours": {},
    "copied": {"begin": "copied"},
    "drawn": {"begin": "drawn"},
    "whole": {"negatives": None},
    "hard": {"leave": "expected"},
    "alone": {"leave": "replay"},
    "dense": {"anchors": 512},
    "steady": {"schedule": "wsd", "cooldown": 0.0},
}
RATE, WARMUP, CLIP = 6e-4, 40, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path, nargs="?", help="a spec whose training set is made")
    parser.add_argument("--runs", type=Path, help="folder of its run; by default runs/ beside the spec")
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="folder of the peer's environment")
    parser.add_argument("--aim", type=float, default=3.0, help="acceptance length to come to")
    parser.add_argument("--steps", type=int, help="of our schedule; by default the spec's")
    parser.add_argument("--times", type=float, default=6.0, help="who takes so many times as long gives up")
    parser.add_argument(
        "--every", type=float, default=10.0, help="seconds of a turn, until 5%% of all are more"
    )
    parser.add_argument("--requests", type=int, default=30, help="held-out requests that are measured")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", choices=[*OURS, *PEERS], default=list(PEERS), help="beside ours")
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.only = list(dict.fromkeys(["ours", *given.only]))
    if given.worker:
        work(given.worker[0], Path(given.worker[1]), given.threads)
    elif given.spec is None:
        parser.error("name a spec")
    else:
        print(json.dumps(compare(given)))


@dataclass
class Contestant:
    """One that trains, and what has been seen of it."""

    name: str
    process: subprocess.Popen[str]
    errors: Any
    curve: list[tuple[float, float]] = field(default_factory=list)  # seconds of training, acceptance length
    steps: int = 0
    reached: bool = False
    failed: str | None = None
    done: bool = False

    @property
    def seconds(self) -> float:
        return self.curve[-1][0]

    def train(self, seconds: float, within: float) -> Row | None:
        """Let it train for so long; where its schedule follows the clock, it ends `within` seconds.

        Returns:
            What it says of its state, or None when it will not train any longer.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # what it said last tells why
            print(json.dumps({"seconds": seconds, "within": within}), file=self.process.stdin, flush=True)
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        if self.process.wait():
            self.errors.seek(0)
            self.failed = ([line.strip() for line in self.errors if line.strip()] or ["ended"])[-1]
        return None


def compare(given: argparse.Namespace) -> Row:
    from synthspec.acceptance.compare import accept_len
    from synthspec.acceptance.trace import totals, trace
    from synthspec.dflash.checkpoint import load
    from synthspec.run import open_run
    from synthspec.stages.facts import loaded_target

    run = open_run(given.spec, given.runs)
    target = loaded_target(run)
    rows = run.rows("sets/heldout_prompts.parquet")[: given.requests]

    def measure(drafter: Any) -> float:
        return float(accept_len(*totals(trace(rows, target, drafter.to(target.model.dtype)))))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(run, target, folder, given.steps)
        first = {begin: measure(load(folder / begin)) for begin in ("start", "copied", "drawn")}
        all_of_them = [begin(one, given, folder) for one in given.only]
        for one in all_of_them:
            start = OURS[one.name].get("begin", "start") if one.name in OURS else PEERS[one.name]["start"]
            one.curve.append((0.0, first[start]))
        ours = next(one for one in all_of_them if one.name == "ours")
        while waiting := [one for one in all_of_them if not one.done]:
            for one in waiting:
                if ours.failed:
                    sys.exit(f"ours cannot train: {ours.failed}")
                end = given.times * ours.seconds if ours.done else math.inf
                if one.seconds >= end:
                    one.done = True
                    continue
                told = one.train(max(given.every, 0.05 * one.seconds), end)
                if told is None:
                    one.done = True
                    continue
                tau = measure(load(folder / one.name))
                one.curve.append((told["seconds"], tau))
                one.steps, one.reached = told["step"], tau >= given.aim
                one.done = one.reached
                said = f"{told['seconds']:.0f} s, step {told['step']}, loss {told['loss']:.3f}: {tau:.2f}"
                print(one.name, said, file=sys.stderr)
        for one in all_of_them:
            one.process.kill()
    return summary(given, all_of_them)


def summary(given: argparse.Namespace, all_of_them: list[Contestant]) -> Row:
    found: Row = {"aim": given.aim, "requests": given.requests, "threads": given.threads}
    by_name = {one.name: one for one in all_of_them if not one.failed}
    ours, peer = by_name["ours"], by_name.get("peer")
    found["ours_s"], found["ours_reached"] = round(ours.seconds, 1), ours.reached
    if ours.reached and peer:
        found |= {"peer_s": round(peer.seconds, 1), "peer_reached": peer.reached}
        found["ratio"] = round(peer.seconds / ours.seconds, 2)
    if ours.reached and (rivals := [by_name[name].seconds for name in PEERS if name in by_name]):
        found["ratio_to_best"] = round(min(rivals) / ours.seconds, 2)
    found["seconds"] = {
        one.name: {"seconds": round(one.seconds, 1), "reached": one.reached, "steps": one.steps}
        for one in all_of_them
        if not one.failed
    }
    found["could_not_run"] = {one.name: one.failed for one in all_of_them if one.failed}
    found["curves"] = {
        one.name: [(round(seconds, 1), round(tau, 3)) for seconds, tau in one.curve] for one in all_of_them
    }
    return found


def begin(name: str, given: argparse.Namespace, folder: Path) -> Contestant:
    """A process that trains when told, and sleeps otherwise."""
    python = Path(sys.executable)
    if name in PEERS:
        python = given.peers / "specforge" / "bin" / "python"
        if not python.exists():
            sys.exit(f"{python} is missing: benchmarks/train_step.py says how to install it")
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
    process = subprocess.Popen(
        [str(python), __file__, "--worker", name, str(folder), "--threads", str(given.threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        # Threads that wait must not spin into the next one's turn.
        env=os.environ | {"OMP_NUM_THREADS": str(given.threads), "OMP_WAIT_POLICY": "PASSIVE"},
    )
    return Contestant(name, process, errors)


def prepare(run: Any, target: Any, folder: Path, steps: int | None) -> None:
    """Write what all share: samples, features, frozen weights, and the drafters that one can begin with."""
    import torch

    from synthspec.dflash.checkpoint import save
    from synthspec.dflash.features import extract
    from synthspec.dflash.initial import from_target
    from synthspec.dflash.midtrain import load_start, read_documents
    from synthspec.dflash.model import Drafter
    from synthspec.spec import Train

    path = run.path("trainset/train.parquet")
    rows = run.rows("trainset/train.parquet")
    settings = run.spec.train
    plain = Train(start=settings.start)
    for name in ("accumulate", "ema", "max_context", "objective", "span_weights"):
        if getattr(settings, name) != getattr(plain, name):
            sys.exit(f"train.{name}: both sides of this benchmark train without it; leave it out")
    if target.model.cap:
        sys.exit("target.model: it caps its logits, which the peer does not")
    start = load_start(settings, target, run.root)
    config = start.config
    documents = read_documents(rows, path, config.mask_token_id, config.vocab_size, settings.span_weights)
    texts = [row["input_ids"] for row in rows]
    free = {number for number, row in enumerate(rows) if not row["held"]}
    made = extract(target.model, texts, config.target_layer_ids, folder / "features.bin", soft=free)
    torch.save(
        {
            "ids": [document.ids for document in documents],
            "supervised": [document.supervised for document in documents],
            "states": made.states.clone(),
            "starts": list(made.starts),
            "expected": {number: found.clone() for number, found in made.expected.items()},
            "replay": [row["purpose"] == "replay" for row in rows],
            "embedding": target.model.embedding.weight,
            "head": target.model.head.weight,
            "settings": settings.model_dump_json(),
            "seed": run.spec.seed,
            "steps": steps or settings.steps,
        },
        folder / "data.pt",
    )
    save(start, folder / "start")
    shape = {"taps": config.target_layer_ids, "block_size": config.block_size}
    copied = from_target(
        target.model,
        layers=config.num_hidden_layers,
        mask_token_id=config.mask_token_id,
        text_ids=texts[:8],
        **shape,
    )
    save(copied, folder / "copied")
    torch.manual_seed(run.spec.seed)
    drawn = Drafter(config)
    for weight in drawn.parameters():  # as a transformers model is drawn, the peer's too
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.02)
    save(drawn, folder / "drawn")


class Turns:
    """When to train and when to wait, in the process of a contestant."""

    def __init__(self) -> None:
        self.spent, self.end, self.within = 0.0, 0.0, math.inf
        self.begun = 0.0

    def next(self) -> None:
        """Wait for a turn."""
        line = sys.stdin.readline()
        if not line:
            raise SystemExit(0)
        asked = json.loads(line)
        self.within = asked["within"]
        self.end = self.spent + asked["seconds"]
        self.begun = time.perf_counter() - self.spent

    def over(self) -> bool:
        """Whether the turn has ended."""
        self.spent = time.perf_counter() - self.begun
        return self.spent >= self.end

    def tell(self, **what: Any) -> None:
        print(json.dumps({"seconds": self.spent} | what), flush=True)


def work(name: str, folder: Path, threads: int) -> None:
    """The other end of a `Contestant`: it leaves its drafter in FOLDER/NAME after every turn."""
    from types import SimpleNamespace

    import torch

    torch.set_num_threads(threads)
    data = SimpleNamespace(**torch.load(folder / "data.pt", weights_only=True, mmap=True))
    (work_peer if name in PEERS else work_ours)(name, data, folder)


def work_ours(name: str, data: Any, folder: Path) -> None:
    from types import SimpleNamespace

    import torch

    from synthspec.dflash.batches import Document
    from synthspec.dflash.checkpoint import load, save
    from synthspec.dflash.features import Features
    from synthspec.dflash.midtrain import between
    from synthspec.dflash.train import fit
    from synthspec.spec import Train

    changed = dict(OURS[name])
    begun, left = changed.pop("begin", "start"), changed.pop("leave", None)
    settings = Train.model_validate_json(data.settings)
    settings = settings.model_copy(update=changed | {"steps": data.steps, "checkpoint_every": data.steps})
    if begun != "start":
        settings = settings.model_copy(update={"interpolation": 1.0})
    chosen = [n for n, replay in enumerate(data.replay) if not (replay and left == "replay")]
    spans = [(data.starts[n], data.starts[n + 1]) for n in chosen]
    starts = [0]
    for first, end in spans:
        starts.append(starts[-1] + end - first)
    states = data.states if left != "replay" else torch.cat([data.states[first:end] for first, end in spans])
    soft = (
        {}
        if left == "expected"
        else {place: data.expected[n] for place, n in enumerate(chosen) if n in data.expected}
    )
    embedding = torch.nn.Embedding.from_pretrained(data.embedding, freeze=True)
    model: Any = SimpleNamespace(
        embedding=embedding,
        head=SimpleNamespace(weight=data.head),
        dtype=data.head.dtype,
        device=data.head.device,
        cap=None,
    )
    start, drafter = load(folder / begun), load(folder / begun)
    turns = Turns()

    def told(step: int, numbers: dict[str, float]) -> None:
        if "loss" in numbers and (turns.over() or step == settings.steps):
            save(between(start, drafter, settings.interpolation), folder / name)
            turns.tell(step=step, loss=numbers["loss"])
            turns.next()

    documents = [Document(data.ids[n], data.supervised[n]) for n in chosen]
    turns.next()
    features = Features(states, starts, soft)
    fit(drafter, model, documents, features, settings, folder / f"{name}-state", data.seed, told=told)


def work_peer(name: str, data: Any, folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
    from specforge.modeling.draft.dflash import DFlashDraftModel
    from transformers import Qwen3Config

    told, settings = PEERS[name], json.loads(data.settings)
    raw = json.loads((folder / told["start"] / "config.json").read_text())
    config = Qwen3Config(**raw)
    config._attn_implementation = "sdpa"
    drafter = DFlashDraftModel(config)
    weights = {
        key: tensor.float() for key, tensor in load_file(folder / told["start"] / "model.safetensors").items()
    }
    missing = drafter.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys, missing
    drafter.float().train()
    embedding = torch.nn.Embedding.from_pretrained(data.embedding.float(), freeze=True)
    head = torch.nn.Linear(1, 1, bias=False)
    head.weight = torch.nn.Parameter(data.head.float(), requires_grad=False)
    block = raw["block_size"]
    module = OnlineDFlashModel(
        drafter,
        head,
        embedding,
        mask_token_id=raw["dflash_config"]["mask_token_id"],
        block_size=block,
        attention_backend="sdpa",
        num_anchors=told["anchors"] or settings["anchors"],
        loss_decay_gamma={8: 4.0, 10: 5.0, 16: 7.0}.get(block, block / 2),
    )
    parameters = [weight for weight in drafter.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    torch.manual_seed(data.seed)
    order = endless(len(data.ids), data.seed)
    turns = Turns()
    turns.next()
    for step in range(1, 1 << 30):
        rows = [next(order) for _ in range(settings["batch_documents"])]
        ids, mask, states = padded(data, rows)
        for group in optimizer.param_groups:
            group["lr"] = rate(turns, step)
        optimizer.zero_grad(set_to_none=True)
        loss = module(ids, states, mask)[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        if turns.over():
            (folder / name).mkdir(exist_ok=True)
            kept = {key: tensor.contiguous() for key, tensor in drafter.state_dict().items() if key in weights}
            save_file(kept, folder / name / "model.safetensors")
            (folder / name / "config.json").write_text(json.dumps(raw))
            turns.tell(step=step, loss=loss.item())
            turns.next()


def rate(turns: Turns, step: int) -> float:
    """The recipe's learning rate; its cosine begins once it is known when time ends."""
    warm = min(1.0, step / WARMUP)
    if math.isinf(turns.within):
        return RATE * warm
    return RATE * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, turns.spent / turns.within)))


def endless(count: int, seed: int) -> Iterator[int]:
    import torch

    dice = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=dice).tolist()


def padded(data: Any, rows: list[int]) -> tuple[Any, Any, Any]:
    """Ids, loss mask and features of some samples, padded to the longest: [B, T], [B, T], [B, T, K · H]."""
    import torch

    longest = max(len(data.ids[row]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest)
    states = torch.zeros(len(rows), longest, data.states.shape[-1])
    for place, row in enumerate(rows):
        size = len(data.ids[row])
        ids[place, :size] = data.ids[row]
        mask[place, :size] = data.supervised[row].float()
        states[place, :size] = data.states[data.starts[row] : data.starts[row + 1]].float()
    return ids, mask, states


if __name__ == "__main__":
    main()
