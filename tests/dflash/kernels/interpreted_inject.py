"""Run by test_kernels.py in a process of its own, where Triton interprets its kernels on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synthspec.dflash import kernels
from synthspec.dflash.config import DrafterConfig
from synthspec.dflash.kernels.inject import keys_values
from synthspec.dflash.model import Drafter, Norm, rotate
from tests.dflash.conftest import drafter_config
from tests.dflash.kernels.interpreter import mend

mend()
EPS = 1e-3  # large enough to be seen

# Keys are rounded twice in half precision, after the norm and at the end.
NEAR = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}


def written_out(projected: Tensor, gains: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    """What is to come out, from float64 inputs."""
    rows, tokens, _ = projected.shape
    layers, width = gains.shape
    keys, values = projected.view(rows, tokens, layers, 2, heads, width).unbind(3)
    keys = keys / (keys.pow(2).sum(-1, keepdim=True) / width + EPS).sqrt() * gains[:, None]
    half = cos.shape[-1] // 2
    x, y, rest = keys.split([half, half, width - 2 * half], -1)
    (x_cos, y_cos), (x_sin, y_sin) = (part[:, :, None, None].split(half, -1) for part in (cos, sin))
    keys = torch.cat([x * x_cos - y * x_sin, y * y_cos + x * y_sin, rest], -1)
    return torch.stack([keys, values]).permute(3, 0, 1, 4, 2, 5)  # from [2, B, T, L, G, D]


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize(
    ("rows", "tokens", "layers", "heads", "width", "turned"),
    [
        (1, 8, 1, 1, 16, 16),
        (2, 11, 3, 2, 64, 64),
        (1, 1, 2, 3, 128, 64),  # partial rotary
        (3, 5, 2, 2, 24, 12),  # sizes that are no powers of two
        (2, 4, 2, 1, 8, 2),
    ],
)
def test_equals_norm_rotary_and_layout_written_out(rows, tokens, layers, heads, width, turned, dtype, fresh):
    projected = (3 * torch.randn(rows, tokens, layers * 2 * heads * width)).to(dtype).requires_grad_()
    gains = torch.randn(layers, width).to(dtype).requires_grad_()
    # Every dimension has an angle of its own here, which tells the two of a pair apart.
    angles = 100 * torch.rand(rows, tokens, turned)
    cos, sin = angles.cos(), angles.sin()
    got = keys_values(projected, gains, cos, sin, heads, EPS)
    assert got.shape == (layers, 2, rows, heads, tokens, width)
    assert got.dtype == dtype
    assert torch.equal(got[:, 1].permute(1, 3, 0, 2, 4), values_of(projected, layers, heads, width))
    exact = [x.detach().double().requires_grad_() for x in (projected, gains)]
    wanted = written_out(*exact, cos.double(), sin.double(), heads)
    torch.testing.assert_close(got.double(), wanted, **NEAR[dtype])

    slope = torch.randn_like(got)
    got.backward(slope)
    wanted.backward(slope.double())
    torch.testing.assert_close(projected.grad.double(), exact[0].grad, **NEAR[dtype])
    # The gain's slope is a sum over all tokens and heads.
    far = {"rtol": NEAR[dtype]["rtol"], "atol": NEAR[dtype]["atol"] * exact[1].grad.abs().max().item()}
    torch.testing.assert_close(gains.grad.double(), exact[1].grad, **far)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_keys_are_rounded_where_torch_rounds_them(dtype, fresh):
    """All but those few that lie between two numbers are the same bits."""
    projected = torch.randn(2, 7, 2 * 3 * 32).to(dtype)
    angles = (100 * torch.rand(2, 7, 16)).repeat(1, 1, 2)
    norm = Norm(32, EPS)
    torch.nn.init.normal_(norm.weight)
    got = keys_values(projected, norm.weight[None].detach(), angles.cos(), angles.sin(), 3, EPS)[0, 0]
    keys = norm(projected.unflatten(-1, (2, 3, 32))[:, :, 0])
    keys = rotate(keys, angles.cos()[:, :, None], angles.sin()[:, :, None]).transpose(1, 2)
    assert (got == keys).double().mean() > 0.98


def values_of(projected: Tensor, layers: int, heads: int, width: int) -> Tensor:
    return projected.detach().unflatten(-1, (layers, 2, heads, width))[:, :, :, 1]


def test_a_gradient_laid_out_otherwise_is_read_right(fresh):
    projected = torch.randn(2, 6, 2 * 2 * 2 * 8, requires_grad=True)
    angles = torch.rand(2, 6, 8)
    got = keys_values(projected, torch.ones(2, 8), angles.cos(), angles.sin(), 2, EPS)
    slope = torch.randn(got.shape[::-1]).permute(5, 4, 3, 2, 1, 0)
    (strided,) = torch.autograd.grad(got, projected, slope, retain_graph=True)
    (plain,) = torch.autograd.grad(got, projected, slope.contiguous())
    assert torch.equal(strided, plain)


def weights_and_slopes(drafter: Drafter, use: bool, dtype: torch.dtype, monkeypatch) -> list[Tensor]:
    """Keys and values of all layers, and the gradients of all weights through them."""
    monkeypatch.setattr(kernels, "usable", lambda x: use)
    drafter.zero_grad()
    dice = torch.Generator().manual_seed(0)
    features = torch.randn(2, 11, 64, generator=dice)
    positions = torch.stack([torch.arange(11), torch.arange(11) + 200])
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        pairs = drafter.inject(features, positions)
    assert all(part.dtype == dtype for pair in pairs for part in pair)
    parts = [part for pair in pairs for part in pair]
    sum((part * torch.randn(part.shape, generator=dice)).sum() for part in parts).backward()
    return parts + [one.grad for one in drafter.parameters() if one.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_drafter_injects_and_learns_as_in_torch(dtype, fresh, monkeypatch):
    config: DrafterConfig = drafter_config()  # four query heads share two key heads
    drafter = Drafter(config)
    for layer in drafter.layers:
        torch.nn.init.normal_(layer.self_attn.k_norm.weight)
    plain = weights_and_slopes(drafter, False, dtype, monkeypatch)
    ours = weights_and_slopes(drafter, True, dtype, monkeypatch)
    assert len(ours) == len(plain) == 2 * 2 + 2 + 2 * 3
    for one, other in zip(ours, plain, strict=True):
        scale = other.abs().max().item()
        rough = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(one, other, rtol=rough, atol=rough * scale)
