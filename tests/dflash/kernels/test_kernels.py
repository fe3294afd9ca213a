"""The Triton kernels, without a GPU: their results from Triton's interpreter, and that Triton compiles them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from synthspec.dflash import kernels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is made for Linux only")

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SMALLEST = 101_376  # bytes of shared memory that a program may have on every GPU from Ampere on


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["inject", "head"])
def test_interpreted(kernel):
    """Triton decides when it is imported whether it interprets, hence the process."""
    cases = Path(__file__).parent / f"interpreted_{kernel}.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(cases)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cpu_stays_with_torch():
    assert not kernels.usable(torch.zeros(1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, which the benchmark would measure")
def test_the_benchmark_needs_a_gpu_and_says_so():
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu_kernels.py"], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "There is no CUDA device here: run this on a machine with an NVIDIA GPU\n"


def compiled(kernel, types: dict[str, str], constants: dict[str, int], capability: int, **options: int):
    """Compile a kernel as its first launch would; arguments without a type are constants."""
    import triton
    from triton.backends.compiler import GPUTarget

    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or (name in ("width", "strip") and kind == "i32")
    }
    source = triton.compiler.ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize(("rows", "width", "turned"), [(8, 128, 128), (1, 96, 48)])
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("capability", [80, 90])
def test_injection_compiles(capability, type_, rows, width, turned, empty_cache):
    from synthspec.dflash.kernels import inject

    types = dict.fromkeys(("projected", "out", "grads", "slopes"), f"*{type_}")
    types |= dict.fromkeys(("gains", "cos", "sin", "gain_slopes"), "*fp32") | {"tokens": "i32", "eps": "fp32"}
    constants = {"heads": 8, "width": width, "turned": turned, "at_once": inject.TOKENS_AT_ONCE, "padded": 128}
    if rows == 1:  # Triton makes a constant of it
        constants["rows"] = 1
    else:
        types["rows"] = "i32"
    for kernel in (inject.inject_forward, inject.inject_backward):
        assert compiled(kernel, types, constants, capability).asm["cubin"]


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("capability", [80, 90])
def test_the_loss_compiles(capability, type_, empty_cache):
    from synthspec.dflash.kernels import head

    types = dict.fromkeys(("hidden", "head", "shares"), f"*{type_}")
    types |= dict.fromkeys(("masses", "mass", "truth", "out"), "*fp32") | {"labels": "*i64"}
    types |= dict.fromkeys(("rows", "columns", "width", "first", "end", "strip"), "i32")
    size = head.tiles(TYPES[type_])
    constants = {"row_tile": size.rows, "column_tile": size.columns, "depth": size.depth}
    assert size.columns % size.depth == 0
    run = {"num_warps": size.warps, "num_stages": size.stages}
    shares = [(head.head_share, {"hard": hard}) for hard in (True, False)]
    for kernel, extra in [(head.head_mass, {}), (head.head_gather, {}), *shares]:
        made = compiled(kernel, types, constants | extra, capability, **run)
        assert made.asm["cubin"]
        assert made.metadata.shared <= SMALLEST
        if type_ != "fp32":
            assert ("wgmma" if capability == 90 else "mma.sync") in made.asm["ptx"]  # by tensor cores
