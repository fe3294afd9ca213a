"""How long a training step takes, beside those of the public DFlash trainers.

    python benchmarks/train_step.py --peers DIR [--rounds N] [--threads N] [--dtypes fp32 bf16] [--only NAME …]

Everyone trains the same drafter from the same weights on the same batch, the same anchors and the same dtype,
one step each in turn, every trainer in a process of its own that sleeps while another steps; whatever else the
machine does meets all of them.  The target has the shape of SmolLM2-135M (a vocabulary of 49,152, head tied and
frozen) and random weights; all take the softmax over the whole vocabulary, clip the gradient and step with
fused AdamW; ours also draws the batch, as `synthspec.dflash.train.fit` does.  Prints one JSON line.

DIR holds an environment for each peer that shall be met; each begins with `python -m venv DIR/NAME` and
`DIR/NAME/bin/pip install torch==2.13.0`, and goes on with `DIR/NAME/bin/pip install --no-deps`

    dflash       dflash==0.1.0
    specforge    specforge==0.2.0
    nemo         nemo-automodel==0.7.0
    speculators  speculators==0.9.0 hs-connectors==0.9.0

and at last, with their dependencies, transformers (5.8.1 for specforge, 5.18.0 for the others) and

    specforge    pydantic
    nemo         datasets pillow
    speculators  pydantic-settings openai datasets aiohttp httpx loguru psutil click

How they differ, and what is done about it.  z-lab's package holds the model without a trainer: here it gets
the plain dense mask and the plain loss, once with the head over all places of a block and once over the guesses
alone.  SpecForge and NeMo put the head over all places, then drop the anchor's; SpecForge computes its head
twice, as it does by default.  speculators packs the documents into one row, learns the verifier's favourite
tokens (the verifier's states are made so that they are the text's) and divides by the sum of the mask without
the decay, so its loss is told on our scale.  All of them are given the same anchors in place of those that they
would draw.  FlexAttention has no backward pass on a CPU: all attend by SDPA.

`share_of_ceiling` is the time that the products of a step take by themselves, as the same machine does them in
its turn, in the dtype in which we multiply, over our step's time.  `rss_before_mb` is the peak memory of a
process that holds its libraries, weights and batch, and has not stepped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

# Torch and everything else heavy is imported in the processes that step, so that this one stays small: Linux
# counts the memory of a parent into the peak of its children.

HIDDEN, WIDE, LAYERS, HEADS, SHARED, WIDTH = 576, 1536, 2, 9, 3, 64
VOCABULARY, MASK, EPS, THETA = 49_152, 16, 1e-5, 100_000.0
TARGET_LAYERS, TAPS = 30, (1, 14, 27)
ROWS, TOKENS, SUPERVISED = 2, 512, 256
ANCHORS, BLOCK, GAMMA, RATE = 64, 8, 4.0, 6e-4
SEED = 0

OURS, CEILING = "synthspec", "ceiling"
# The trainers, and the environment that each runs in.
PEERS = {
    "zlab": "dflash",
    "zlab_guesses": "dflash",
    "specforge": "specforge",
    "nemo": "nemo",
    "speculators": "speculators",
}
GAP = 1e-4  # largest relative difference of losses that may still be the same step, in float32

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument(
        "--rounds", type=int, default=7, help="timed steps of each, after one that is not; 0 times that"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--only", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker == "prepare":
        prepare(given.data)
    elif given.worker:
        work(given.worker, given.dtypes[0], given.data, given.threads)
    else:
        print(json.dumps(compare(given)))


def compare(given: argparse.Namespace) -> Row:
    by_dtype = (
        "loss", "loss_gap", "step_s", "peak_rss_mb", "rss_before_mb", "speedup_over_best_peer",
        "memory_ratio_to_best_peer", "gflop", "ceiling_gflop_per_s", "share_of_ceiling",
    )  # fmt: skip
    found: Row = {name: {} for name in (*by_dtype, "could_not_run")}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.pt"
        subprocess.run([sys.executable, __file__, "--worker", "prepare", "--data", str(data)], check=True)
        for dtype in given.dtypes:
            in_turn(given, dtype, data, found)
    found["rounds"], found["threads"], found["cpu"] = given.rounds, given.threads, cpu()
    return found


def in_turn(given: argparse.Namespace, dtype: str, data: Path, found: Row) -> None:
    """Let everyone step in turn, and put what comes out into `found`."""
    workers: dict[str, Worker] = {}
    for name in (OURS, CEILING, *given.only):
        python = Path(sys.executable)
        if name in PEERS:
            python = (given.peers or Path("peers")) / PEERS[name] / "bin" / "python"
        try:
            workers[name] = Worker(name, python, dtype, data, given.threads)
        except (OSError, RuntimeError) as error:
            if name not in PEERS:
                raise
            found["could_not_run"][f"{name} {dtype}"] = str(error)
    told: dict[str, list[Row]] = {name: [] for name in workers}
    for number in range(given.rounds + 1):
        for name, worker in list(workers.items()):
            try:
                told[name].append(worker.step())
            except RuntimeError as error:
                if name not in PEERS:
                    raise
                found["could_not_run"][f"{name} {dtype}"] = str(error)
                del workers[name]
        said = ", ".join(f"{name} {told[name][-1]['seconds']:.3f}" for name in workers)
        print(f"{dtype} round {number}: {said}", file=sys.stderr)
    before = {name: worker.start for name, worker in workers.items()}
    most = {name: worker.end() for name, worker in workers.items()}
    seconds = {name: median(row["seconds"] for row in told[name][1:] or told[name]) for name in workers}
    first = {name: told[name][0]["loss"] for name in workers if name != CEILING}
    gap = {name: abs(first[name] - first[OURS]) / first[OURS] for name in first if name != OURS}
    peers = [name for name in seconds if name in PEERS]
    for name in peers:
        if dtype == "fp32" and gap[name] > GAP:
            sys.exit(f"{name} has a loss of {first[name]} where ours is {first[OURS]}: not the same step")
    flops = told[CEILING][0]["gflop"]
    found["loss"][dtype] = round(first[OURS], 6)
    found["loss_gap"][dtype] = {name: float(f"{gap[name]:.1e}") for name in gap}
    found["step_s"][dtype] = {name: round(seconds[name], 4) for name in (OURS, *peers)}
    found["peak_rss_mb"][dtype] = {name: most[name] for name in (OURS, *peers)}
    found["rss_before_mb"][dtype] = {name: before[name] for name in (OURS, *peers)}
    found["gflop"][dtype] = round(flops, 1)
    found["ceiling_gflop_per_s"][dtype] = round(flops / seconds[CEILING], 1)
    found["share_of_ceiling"][dtype] = round(seconds[CEILING] / seconds[OURS], 3)
    if peers:
        best, least = min(seconds[name] for name in peers), min(most[name] for name in peers)
        found["speedup_over_best_peer"][dtype] = round(best / seconds[OURS], 2)
        found["memory_ratio_to_best_peer"][dtype] = round(most[OURS] / least, 3)


def cpu() -> Row:
    """Name of the processor, and what of its flags says how fast it multiplies."""
    name, flags = platform.processor(), ""
    if (info := Path("/proc/cpuinfo")).exists():
        lines = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        lines = {key.strip(): value.strip() for key, value in lines.items()}
        name, flags = lines.get("model name", name), lines.get("flags", lines.get("Features", ""))
    telling = ("avx", "fma", "amx", "sve", "bf16", "f16c", "asimd")
    return {
        "name": name,
        "flags": [flag for flag in flags.split() if flag.startswith(telling) or "bf16" in flag],
    }


class Worker:
    """A process that steps when told, and sleeps otherwise."""

    def __init__(self, name: str, python: Path, dtype: str, data: Path, threads: int) -> None:
        if not python.exists():
            raise RuntimeError(f"{python} is missing")
        given = ["--worker", name, "--dtypes", dtype, "--data", str(data), "--threads", str(threads)]
        # Threads that wait must not spin into the next one's turn.
        own = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [str(python), __file__, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | own,
        )
        self.start = int(self.read()["peak_rss_mb"])

    def read(self) -> Row:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        lines = [line for line in self.errors.read().splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"ended with {self.process.returncode}")

    def step(self) -> Row:
        self.ask("step")
        return self.read()

    def end(self) -> int:
        """Peak memory of the process, in MB."""
        self.ask("end")
        told = self.read()
        self.process.wait()
        return int(told["peak_rss_mb"])

    def ask(self, what: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said last tells why


def work(name: str, dtype: str, data: Path, threads: int) -> None:
    """The other end of a `Worker`."""
    import torch

    torch.set_num_threads(threads)
    step = STEPS[name](SimpleNamespace(**torch.load(data, weights_only=True)), dtype)
    print(json.dumps({"peak_rss_mb": peak()}), flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            print(json.dumps({"peak_rss_mb": peak()}), flush=True)
            return
        begun = time.perf_counter()
        told = step()
        told["seconds"] = time.perf_counter() - begun
        print(json.dumps(told), flush=True)


def peak() -> int:
    """The most memory that this process has had, in MB."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most // (1024 if sys.platform == "linux" else 1 << 20)


def prepare(path: Path) -> None:
    """Write what all share: weights, documents, features, anchors."""
    import torch

    dice = torch.Generator().manual_seed(SEED)

    def normal(*shape: int, size: float = 0.02) -> Any:
        return size * torch.randn(*shape, generator=dice)

    weights = {
        "fc.weight": normal(HIDDEN, len(TAPS) * HIDDEN),
        "hidden_norm.weight": 1 + normal(HIDDEN),
        "norm.weight": 1 + normal(HIDDEN),
    }
    for layer in range(LAYERS):
        attention, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
        weights |= {
            f"layers.{layer}.input_layernorm.weight": 1 + normal(HIDDEN),
            f"layers.{layer}.post_attention_layernorm.weight": 1 + normal(HIDDEN),
            f"{attention}.q_proj.weight": normal(HEADS * WIDTH, HIDDEN),
            f"{attention}.k_proj.weight": normal(SHARED * WIDTH, HIDDEN),
            f"{attention}.v_proj.weight": normal(SHARED * WIDTH, HIDDEN),
            f"{attention}.o_proj.weight": normal(HIDDEN, HEADS * WIDTH),
            f"{attention}.q_norm.weight": 1 + normal(WIDTH),
            f"{attention}.k_norm.weight": 1 + normal(WIDTH),
            f"{mlp}.gate_proj.weight": normal(WIDE, HIDDEN),
            f"{mlp}.up_proj.weight": normal(WIDE, HIDDEN),
            f"{mlp}.down_proj.weight": normal(HIDDEN, WIDE),
        }
    # Blocks that hang over the end are a peer's error and another's masked places: there are none.
    possible = torch.arange(TOKENS - SUPERVISED, TOKENS - BLOCK)
    anchors = [
        possible[torch.randperm(len(possible), generator=dice)[:ANCHORS]].sort().values for _ in range(ROWS)
    ]
    data = {
        "weights": weights,
        "embedding": normal(VOCABULARY, HIDDEN, size=0.04),
        "ids": torch.randint(100, VOCABULARY, (ROWS, TOKENS), generator=dice),
        "features": normal(ROWS, TOKENS, len(TAPS) * HIDDEN, size=1.0).bfloat16(),
        "anchors": torch.stack(anchors),
    }
    torch.save(data, path)


def torch_dtype(dtype: str) -> Any:
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]


def supervised() -> Any:
    import torch

    return (torch.arange(TOKENS) >= TOKENS - SUPERVISED).expand(ROWS, -1)


def optimized(module: Any, loss_of: Callable[[], Any]) -> Callable[[], Row]:
    """A step of training the weights of a module."""
    import torch

    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step() -> Row:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return {"loss": loss.item()}

    return step


def with_weights(module: Any, data: Any) -> Any:
    """The module with the shared weights in place of its own."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            parameter.data = data.weights.pop(name)
    assert not data.weights, f"weights that the drafter lacks: {sorted(data.weights)}"
    return module


def frozen_parts(data: Any, dtype: str) -> tuple[Any, Any]:
    """Embedding and head of the target, which share their weights."""
    from torch import nn

    embedding = nn.Embedding.from_pretrained(data.embedding.to(torch_dtype(dtype)), freeze=True)
    head = nn.Linear(1, 1, bias=False)
    head.weight = embedding.weight
    del data.embedding
    return embedding, head


def ours(data: Any, dtype: str) -> Callable[[], Row]:
    import torch

    from synthspec.dflash.batches import Document, draw
    from synthspec.dflash.config import FULL, DrafterConfig
    from synthspec.dflash.features import Features
    from synthspec.dflash.loss import decay
    from synthspec.dflash.model import Drafter
    from synthspec.dflash.train import block_loss

    class Given(Document):
        """A document whose anchors are given."""

        def anchors(self) -> torch.Tensor:
            return next(own for ids, own in zip(data.ids, data.anchors, strict=True) if ids is self.ids)

    config = DrafterConfig(
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        head_dim=WIDTH,
        vocab_size=VOCABULARY,
        block_size=BLOCK,
        num_target_layers=TARGET_LAYERS,
        target_layer_ids=TAPS,
        mask_token_id=MASK,
        max_position_embeddings=8192,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        layer_types=(FULL,) * LAYERS,
    )
    drafter = with_weights(Drafter(config), data)
    embedding, head = frozen_parts(data, dtype)
    model: Any = SimpleNamespace(embedding=embedding, head=head, dtype=embedding.weight.dtype, cap=None)
    data.ids = list(data.ids)
    documents = [Given(ids, own) for ids, own in zip(data.ids, supervised(), strict=True)]
    features = Features(data.features.flatten(0, 1), [row * TOKENS for row in range(ROWS + 1)], {})
    weights = decay(BLOCK, GAMMA)

    def loss_of() -> torch.Tensor:
        batch = draw(
            documents,
            features,
            range(ROWS),
            anchors=ANCHORS,
            block_size=BLOCK,
            decay=weights,
            seed=SEED,
            step=0,
        )
        return block_loss(drafter, model, batch)[0]

    return optimized(drafter, loss_of)


def qwen3_config(**more: Any) -> Any:
    """The drafter's config as the peers write it."""
    from transformers import Qwen3Config

    config = Qwen3Config(
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        head_dim=WIDTH,
        vocab_size=VOCABULARY,
        max_position_embeddings=8192,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        layer_types=["full_attention"] * LAYERS,
        attention_bias=False,
        tie_word_embeddings=False,
        **more,
    )
    config._attn_implementation = "sdpa"
    return config


def zlab_config() -> Any:
    return qwen3_config(
        block_size=BLOCK,
        num_target_layers=TARGET_LAYERS,
        dflash_config={"target_layer_ids": list(TAPS), "mask_token_id": MASK},
    )


def autocast(dtype: str) -> Any:
    import torch

    return torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16")


def zlab(data: Any, dtype: str, guesses: bool = False) -> Callable[[], Row]:
    """z-lab's model, under a dense mask and a plain loss."""
    import torch
    from dflash.model import DFlashDraftModel
    from torch.nn.functional import cross_entropy

    drafter = with_weights(DFlashDraftModel(zlab_config()), data).train()
    embedding, head = frozen_parts(data, dtype)
    features = data.features.to(torch_dtype(dtype))
    offsets = torch.arange(BLOCK)
    decayed = torch.exp(-(offsets - 1) / GAMMA) * (offsets > 0)

    def loss_of() -> torch.Tensor:
        at = data.anchors[..., None] + offsets  # [B, N, S]
        ids = data.ids[torch.arange(ROWS)[:, None, None], at]
        noise = ids.clone()
        noise[..., 1:] = MASK
        block = torch.arange(ANCHORS).repeat_interleave(BLOCK)
        own = (block[:, None] == block).expand(ROWS, -1, -1)
        before = torch.arange(TOKENS) < data.anchors.repeat_interleave(BLOCK, 1)[..., None]
        places = torch.cat([torch.arange(TOKENS).expand(ROWS, -1), at.flatten(1)], 1)
        weights = decayed.expand_as(at)
        with autocast(dtype):
            hidden = drafter(
                position_ids=places,
                attention_mask=torch.cat([before, own], -1)[:, None],
                noise_embedding=embedding(noise.flatten(1)),
                target_hidden=features,
            )
            if guesses:
                hidden = hidden.unflatten(1, (ANCHORS, BLOCK))[:, :, 1:].flatten(1, 2)
                ids, weights = ids[..., 1:], weights[..., 1:]
            logits = drafter.compute_logits(hidden, head)
            each = cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none")
        return (each * weights.flatten()).sum() / weights.sum()

    return optimized(drafter, loss_of)


def zlab_guesses(data: Any, dtype: str) -> Callable[[], Row]:
    return zlab(data, dtype, guesses=True)


def specforge(data: Any, dtype: str) -> Callable[[], Row]:
    import torch
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
    from specforge.modeling.draft.dflash import DFlashDraftModel

    drafter = with_weights(DFlashDraftModel(zlab_config()), data).train()
    embedding, head = frozen_parts(data, dtype)
    module = OnlineDFlashModel(
        drafter,
        head,
        embedding,
        mask_token_id=MASK,
        block_size=BLOCK,
        attention_backend="sdpa",
        num_anchors=ANCHORS,
        loss_decay_gamma=GAMMA,
    )
    keep = torch.ones_like(data.anchors, dtype=torch.bool)
    module._sample_anchor_positions = lambda *args, **kwargs: (data.anchors, keep)
    features, mask = data.features.to(torch_dtype(dtype)), supervised().float()

    def loss_of() -> torch.Tensor:
        with autocast(dtype):
            return module(data.ids, features, mask)[0]

    return optimized(drafter, loss_of)


def nemo(data: Any, dtype: str) -> Callable[[], Row]:
    import torch
    from nemo_automodel.components.speculative.dflash.core import DFlashTrainerModule
    from nemo_automodel.components.speculative.dflash.draft_qwen3 import Qwen3DFlashDraftModel

    drafter = with_weights(Qwen3DFlashDraftModel(zlab_config()), data).train()
    embedding, head = frozen_parts(data, dtype)
    module = DFlashTrainerModule(
        drafter,
        head,
        embedding,
        mask_token_id=MASK,
        block_size=BLOCK,
        attention_backend="sdpa",
        num_anchors=ANCHORS,
        loss_decay_gamma=GAMMA,
    )
    keep = torch.ones_like(data.anchors, dtype=torch.bool)
    module._sample_anchor_positions = lambda *args, **kwargs: (data.anchors, keep)
    features, mask = data.features.to(torch_dtype(dtype)), supervised().float()

    def loss_of() -> torch.Tensor:
        with autocast(dtype):
            return module(data.ids, features, mask).loss

    return optimized(drafter, loss_of)


def speculators(data: Any, dtype: str) -> Callable[[], Row]:
    import torch
    from speculators.losses import resolve_loss_config
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig, core

    config = DFlashSpeculatorConfig(
        transformer_layer_config=qwen3_config(),
        draft_vocab_size=VOCABULARY,
        block_size=BLOCK,
        aux_hidden_state_layer_ids=list(TAPS),
        mask_token_id=MASK,
    )
    drafter = with_weights(DFlashDraftModel(config), data).train()
    drafter.embed_tokens, drafter.lm_head = frozen_parts(data, dtype)
    drafter.verifier_lm_head = drafter.lm_head
    anchors = (data.anchors + TOKENS * torch.arange(ROWS)[:, None]).flatten()  # one row holds all documents
    valid = torch.ones_like(anchors, dtype=torch.bool)
    core.select_anchors = lambda *args, **kwargs: (anchors, valid)
    following = torch.cat([data.ids[:, 1:], data.ids[:, -1:]], 1)
    packed = {
        "hidden_states": data.features.to(torch_dtype(dtype)).view(1, ROWS * TOKENS, -1),
        "input_ids": data.ids.view(1, -1),
        "loss_mask": supervised().float().reshape(1, -1),
        # States whose product with the head is largest at the token that follows.
        "verifier_last_hidden_states": drafter.lm_head.weight[following.view(1, -1)],
        "document_ids": torch.arange(ROWS).repeat_interleave(TOKENS)[None],
        "position_ids": torch.arange(TOKENS).repeat(ROWS)[None],
    }
    with torch.no_grad():
        drafter.verifier_norm.weight.data.fill_(1.0)
    told = {"loss_config": resolve_loss_config("ce", "eager"), "gamma": GAMMA, "max_anchors": len(anchors)}
    weights = torch.exp(-torch.arange(BLOCK - 1) / GAMMA)
    scale = len(weights) / weights.sum()

    def loss_of() -> torch.Tensor:
        with autocast(dtype):
            return drafter(**packed, **told)[1] * scale

    return optimized(drafter, loss_of)


def products(anchors: Any) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """The products of a step, as how often and the shapes of both factors.

    Of every weight there are three: forward, and the gradients to the weight and to what came in, which the
    features do not need.  Attention has two forward and four backward, over the context that the blocks may
    see; what a block does with itself is next to nothing.  The head is frozen: two, in slices that caches hold.
    """
    context, block, guesses = ROWS * TOKENS, ROWS * ANCHORS * BLOCK, ROWS * ANCHORS * (BLOCK - 1)

    def linear(times: int, rows: int, inside: int, out: int) -> Iterator[Any]:
        yield times, (rows, inside), (inside, out)
        yield times, (rows, out), (out, inside)
        yield times, (out, rows), (rows, inside)

    fed = len(TAPS) * HIDDEN
    yield from ((1, (context, fed), (fed, HIDDEN)), (1, (HIDDEN, context), (context, fed)))
    yield from linear(2 * LAYERS, context, HIDDEN, SHARED * WIDTH)
    yield from linear(2 * LAYERS, block, HIDDEN, SHARED * WIDTH)
    yield from linear(LAYERS, block, HIDDEN, HEADS * WIDTH)
    yield from linear(LAYERS, block, HEADS * WIDTH, HIDDEN)
    yield from linear(2 * LAYERS, block, HIDDEN, WIDE)
    yield from linear(LAYERS, block, WIDE, HIDDEN)
    seen, asked, pairs = round(anchors.float().mean().item()), HEADS // SHARED * ANCHORS * BLOCK, ROWS * SHARED
    yield 2 * LAYERS, (pairs, asked, WIDTH), (pairs, WIDTH, seen)
    yield 2 * LAYERS, (pairs, asked, seen), (pairs, seen, WIDTH)
    yield 2 * LAYERS, (pairs, seen, asked), (pairs, asked, WIDTH)
    part = 1024
    yield VOCABULARY // part, (guesses, HIDDEN), (HIDDEN, part)
    yield VOCABULARY // part, (guesses, part), (part, HIDDEN)


def ceiling(data: Any, dtype: str) -> Callable[[], Row]:
    """The products of a step and nothing else, in the dtype in which ours multiplies."""
    import torch

    from synthspec.dflash.loss import multiplies_bfloat16

    narrow = dtype == "bf16" and multiplies_bfloat16(torch.device("cpu"))
    kind = torch.bfloat16 if narrow else torch.float32
    pairs = [
        (times, torch.randn(a, dtype=kind), torch.randn(b, dtype=kind))
        for times, a, b in products(data.anchors)
    ]
    # The head lies as rows of the vocabulary, and so do weights as they are kept.
    pairs = [(times, a, b.mT.contiguous().mT, (a @ b)) for times, a, b in pairs]
    gflop = sum(2e-9 * times * a.numel() * b.shape[-1] for times, a, b, _ in pairs)

    def step() -> Row:
        for times, a, b, out in pairs:
            for _ in range(times):
                torch.matmul(a, b, out=out)
        return {"gflop": gflop}

    return step


STEPS = {
    OURS: ours,
    CEILING: ceiling,
    "zlab": zlab,
    "zlab_guesses": zlab_guesses,
    "specforge": specforge,
    "nemo": nemo,
    "speculators": speculators,
}

if __name__ == "__main__":
    main()
