"""How near the Triton kernels come to what the GPU's memory and multipliers give, beside the torch path.

    python benchmarks/gpu_kernels.py

For the drafters of Qwen3-8B and of SmolLM2 in bfloat16 it times each kernel, the torch code that does the same,
a copy of as many bytes and, for the loss, the products that it cannot do without; all in turn, several rounds,
medians.  Prints one JSON line.  `of_copy` is the share of the copy's bandwidth that a kernel reaches when every
byte that has to be read or written counts once; `of_products` the share of the products' rate when the two that
the loss and its gradient take count once.  `difference` is the largest one between the kernel's result and that
of the torch path in float32, as a share of the largest value, and `torch_difference` that of the
torch path in bfloat16.  Exits 2 where there is no GPU that the kernels run on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from synthspec.dflash import kernels, loss
from synthspec.dflash.model import Norm, rotate

ROUNDS = 7
ROWS, TOKENS = 8, 3072  # documents whose features are injected, and their length
EPS = 1e-6

Row = dict[str, Any]
Act = Callable[[], Any]


@dataclass(frozen=True)
class Shape:
    """What of a drafter the kernels see; `guesses` is anchors · (block − 1)."""

    hidden: int
    heads: int
    width: int
    layers: int
    vocabulary: int
    guesses: int


SHAPES = {
    "Qwen3-8B": Shape(hidden=4096, heads=8, width=128, layers=5, vocabulary=151_936, guesses=512 * 15),
    "SmolLM2": Shape(hidden=576, heads=3, width=64, layers=3, vocabulary=49_152, guesses=512 * 15),
}


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0]).parse_args()
    if not torch.cuda.is_available():
        print("There is no CUDA device here: run this on a machine with an NVIDIA GPU", file=sys.stderr)
        return 2
    if not kernels.usable(torch.empty(0, device="cuda")):
        print("The kernels need Triton and an NVIDIA GPU of Ampere or later", file=sys.stderr)
        return 2
    found: Row = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    device = torch.device("cuda")
    for name, shape in SHAPES.items():
        torch.manual_seed(0)
        found[name] = {
            "inject": injection(shape, ROWS, TOKENS, device, ROUNDS),
            "loss": block_loss(shape, device, ROUNDS),
        }
    print(json.dumps(found))
    return 0


def injection(shape: Shape, rows: int, tokens: int, device: torch.device, rounds: int) -> Row:
    """Norm, rotary and layout of all layers, forward and backward."""
    from synthspec.dflash.kernels.inject import keys_values

    columns = shape.layers * 2 * shape.heads * shape.width
    projected = torch.randn(rows, tokens, columns, device=device, dtype=torch.bfloat16, requires_grad=True)
    gains = torch.ones(shape.layers, shape.width, device=device, requires_grad=True)
    angles = torch.rand(rows, tokens, shape.width // 2, device=device).repeat(1, 1, 2) * tokens
    cos, sin = angles.cos(), angles.sin()
    slope = torch.randn(
        shape.layers, 2, rows, shape.heads, tokens, shape.width, device=device, dtype=torch.bfloat16
    )

    def ours(x: Tensor = projected) -> Tensor:
        return keys_values(x, gains, cos, sin, shape.heads, EPS)

    def plain(x: Tensor = projected) -> Tensor:
        return in_torch(x, gains, cos, sin, shape.heads)

    exact = projected.detach().float().requires_grad_()
    wanted = plain(exact)
    wanted_slope = gradient(wanted, exact, slope.float())
    differences: dict[str, Row] = {"forward": {}, "backward": {}}
    for key, act in (("difference", ours), ("torch_difference", plain)):
        out = act()
        differences["forward"][key] = apart(out, wanted)
        differences["backward"][key] = apart(gradient(out, projected, slope), wanted_slope)
    del exact, wanted, wanted_slope, out

    small = cos.nbytes + sin.nbytes
    moved = {"forward": 2 * projected.nbytes + small, "backward": 3 * projected.nbytes + small}
    kept = {"ours": ours(), "torch": plain()}
    acts: dict[str, Act] = {"forward ours": ours, "forward torch": plain}
    for which in kept:
        acts[f"backward {which}"] = lambda which=which: gradient(kept[which], projected, slope)
    acts |= {f"{way} copy": copying(count, device) for way, count in moved.items()}
    taken = medians(acts, rounds)
    return {
        way: pace(taken, way, count) | {key: round(x, 6) for key, x in differences[way].items()}
        for way, count in moved.items()
    }


def in_torch(projected: Tensor, gains: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    """What `Attention.keys_values` does behind its products, layer by layer, [L, 2, B, G, T, D]."""
    norm = Norm(gains.shape[1], EPS)
    found = []
    for part, gain in zip(projected.unflatten(-1, (len(gains), 2, heads, -1)).unbind(2), gains, strict=True):
        keys = torch.func.functional_call(norm, {"weight": gain}, part[:, :, 0])
        keys = rotate(keys, cos[:, :, None], sin[:, :, None])
        found.append(torch.stack([keys, part[:, :, 1]]))
    return torch.stack(found).transpose(3, 4).contiguous()


def block_loss(shape: Shape, device: torch.device, rounds: int) -> Row:
    """The loss of all guesses with its gradient."""
    from synthspec.dflash.kernels.head import head_cross_entropy

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, device=device, dtype=torch.bfloat16)

    hidden, head = drawn(shape.guesses, shape.hidden), drawn(shape.vocabulary, shape.hidden)
    hidden = (hidden * 4 / shape.hidden**0.5).requires_grad_()  # logits of the size that models have
    labels = torch.randint(0, shape.vocabulary, (shape.guesses,), device=device)
    weights = torch.rand(shape.guesses, device=device)

    def ours() -> tuple[Tensor, Tensor]:
        total, _ = head_cross_entropy(hidden, head, labels, weights)
        return total, gradient(total, hidden)

    def plain() -> tuple[Tensor, Tensor]:
        total, _ = loss._HeadCrossEntropy.apply(hidden, head, labels, weights, None, None)
        return total, gradient(total, hidden)

    wide = hidden.detach().float().requires_grad_()
    wanted, _ = loss._HeadCrossEntropy.apply(wide, head.float(), labels, weights, None, None)
    wanted_slope = gradient(wanted, wide)
    differences: Row = {}
    for key, act in (("difference", ours), ("torch_difference", plain)):
        total, slope = act()
        differences[f"loss_{key}"] = apart(total, wanted)
        differences[f"slope_{key}"] = apart(slope, wanted_slope)

    # What has to be moved, and multiplied, at the least: the head and the states go in, the gradient comes out.
    moved = head.nbytes + 2 * hidden.nbytes
    operations = 2 * 2 * shape.guesses * shape.hidden * shape.vocabulary
    strip = 8192
    shares = drawn(shape.guesses, min(strip, shape.vocabulary))

    def products() -> None:
        for part in head.split(strip):
            torch.mm(hidden.detach(), part.T)
            torch.mm(shares[:, : len(part)], part)

    acts = {
        "both ours": ours,
        "both torch": plain,
        "both copy": copying(moved, device),
        "both products": products,
    }
    taken = medians(acts, rounds)
    return (
        pace(taken, "both", moved)
        | {
            "products_ms": round(1000 * taken["both products"], 3),
            "tflop_per_s": round(operations / taken["both ours"] / 1e12, 1),
            "of_products": round(taken["both products"] / taken["both ours"], 3),
        }
        | {key: round(x, 6) for key, x in differences.items()}
    )


def gradient(out: Tensor, to: Tensor, slope: Tensor | None = None) -> Tensor:
    (found,) = torch.autograd.grad(out, to, slope, retain_graph=True)
    return found


def apart(got: Tensor, wanted: Tensor) -> float:
    got, wanted = got.detach().to(wanted.dtype), wanted.detach()
    return float((got - wanted).abs().max() / wanted.abs().max())


def copying(count: int, device: torch.device) -> Act:
    """A copy that reads and writes `count` bytes together."""
    source = torch.empty(count // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def medians(acts: dict[str, Act], rounds: int) -> dict[str, float]:
    """Seconds that each act takes, the median of rounds in which all take their turn."""
    taken: dict[str, list[float]] = {name: [] for name in acts}
    for number in range(rounds + 1):
        for name, act in acts.items():
            spent = seconds(act)
            if number:  # the first round compiles and warms up
                taken[name].append(spent)
    return {name: median(each) for name, each in taken.items()}


def seconds(act: Act, times: int = 5) -> float:
    wait()
    begin = time.perf_counter()
    for _ in range(times):
        act()
    wait()
    return (time.perf_counter() - begin) / times


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def pace(taken: dict[str, float], way: str, moved: int) -> Row:
    ours, plain, copy = (taken[f"{way} {name}"] for name in ("ours", "torch", "copy"))
    return {
        "ms": round(1000 * ours, 3),
        "torch_ms": round(1000 * plain, 3),
        "gb_per_s": round(moved / ours / 1e9, 1),
        "copy_gb_per_s": round(moved / copy / 1e9, 1),
        "of_copy": round(copy / ours, 3),
    }


if __name__ == "__main__":
    sys.exit(main())
