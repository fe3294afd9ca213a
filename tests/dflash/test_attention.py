from __future__ import annotations

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from synthspec.dflash import attention, model
from synthspec.dflash.attention import attend, attend_densely
from synthspec.dflash.batches import Document, draw
from synthspec.dflash.config import FULL, SLIDING
from synthspec.dflash.features import Features
from synthspec.dflash.loss import decay
from synthspec.dflash.model import Drafter
from synthspec.dflash.train import block_loss
from synthspec.targets.causal import CausalModel
from tests.dflash.conftest import VOCABULARY, drafter_config, tiny_llama

SIZE, TOKENS = 4, 20
# Anchors of ragged documents: one at the very start, places that hold no block (0), late ones.
ANCHORS = torch.tensor([[0, 3, 9, 11, 15], [2, 4, 0, 0, 0], [5, 6, 7, 18, 19]])


def case(dtype=torch.float64, *, window=None, groups=2, share=2, width=8):
    torch.manual_seed(3)
    rows, blocks = ANCHORS.shape
    at = ANCHORS[..., None] + torch.arange(SIZE)
    visible = (torch.arange(TOKENS) < ANCHORS[..., None])[:, :, None]
    within = torch.ones(SIZE, SIZE, dtype=torch.bool)
    if window is not None:
        visible, within = visible & (torch.arange(TOKENS) > at[..., None] - window), within.tril()
    shapes = (
        (rows, groups, blocks, share * SIZE, width),
        *[(rows, groups, TOKENS, width)] * 2,
        *[(rows, groups, blocks, SIZE, width)] * 2,
    )
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes], visible, within


def apply(how, tensors, visible, within):
    queries, keys, values, own_keys, own_values = tensors
    return how(queries, (keys, values), (own_keys, own_values), visible, within)


@pytest.mark.parametrize("at_once", [1, 2, 16])
@pytest.mark.parametrize(("groups", "share"), [(2, 2), (4, 1), (1, 3)])
@pytest.mark.parametrize("window", [None, 5])
def test_parts_put_together_are_the_attention_under_a_dense_mask(window, groups, share, at_once, monkeypatch):
    monkeypatch.setattr(attention, "BLOCKS_AT_ONCE", at_once)
    tensors, visible, within = case(window=window, groups=groups, share=share)
    toward = torch.randn_like(tensors[0])
    ways = []
    for how in (attend, attend_densely):
        out = apply(how, tensors, visible, within)
        ways.append([out, *torch.autograd.grad((out * toward).sum(), tensors)])
    for apart, dense in zip(*ways, strict=True):
        torch.testing.assert_close(apart, dense, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("window", [None, 5])
def test_its_gradient_is_that_of_finite_differences(window, monkeypatch):
    monkeypatch.setattr(attention, "BLOCKS_AT_ONCE", 2)
    tensors, visible, within = case(window=window, width=2, groups=1)
    assert torch.autograd.gradcheck(lambda *given: apply(attend, given, visible, within), tensors)


def test_bfloat16_keeps_to_float64():
    tensors, visible, within = case()
    exact = apply(attend_densely, tensors, visible, within)
    near = apply(attend, [one.bfloat16() for one in tensors], visible, within)
    torch.testing.assert_close(near.double(), exact, rtol=2e-2, atol=2e-2)


def batch_of(lengths, anchors):
    torch.manual_seed(0)
    documents = [
        Document(torch.randint(3, VOCABULARY - 1, (length,)), torch.arange(length) >= 3) for length in lengths
    ]
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    features = Features(torch.randn(starts[-1], 64).bfloat16(), starts, {})
    weights = decay(SIZE, 2.0)
    chosen = list(range(len(lengths)))
    return draw(documents, features, chosen, anchors=anchors, block_size=SIZE, decay=weights, seed=0, step=0)


@pytest.mark.parametrize("kinds", [(FULL, FULL), (SLIDING, SLIDING), (FULL, SLIDING)])
def test_the_step_in_float32_is_that_of_a_dense_mask_in_float64(kinds, monkeypatch):
    batch = batch_of((31, 12, 25, 6), 16)
    torch.manual_seed(1)
    drafter = Drafter(drafter_config(layer_types=kinds, sliding_window=7))
    exact = copy.deepcopy(drafter).double()
    loss, _ = block_loss(drafter, CausalModel(tiny_llama()), batch)
    loss.backward()
    monkeypatch.setattr(model, "attend", attend_densely)
    true, _ = block_loss(exact, CausalModel(tiny_llama().double()), batch)
    true.backward()
    assert abs(loss.item() - true.item()) < 1e-5 * true.item()
    for (name, ours), theirs in zip(drafter.named_parameters(), exact.parameters(), strict=True):
        gap = (ours.grad.double() - theirs.grad).norm() / theirs.grad.norm()
        assert gap < 1e-5, (name, float(gap))


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor holds that any operation puts out."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple) else (out,):
            if isinstance(one, torch.Tensor):
                self.numbers = max(self.numbers, one.untyped_storage().nbytes() // one.element_size())
        return out


def test_no_block_is_compared_with_another():
    """What is made grows with the blocks, not with their square."""
    largest = []
    for blocks in (64, 128, 256):
        queries = torch.randn(1, 1, blocks, SIZE, 2, requires_grad=True)
        own = [torch.randn(1, 1, blocks, SIZE, 2, requires_grad=True) for _ in range(2)]
        context = [torch.randn(1, 1, 8, 2, requires_grad=True) for _ in range(2)]
        visible = torch.ones(1, blocks, 1, 8, dtype=torch.bool)
        within = torch.ones(SIZE, SIZE, dtype=torch.bool)
        with Largest() as seen:
            attend(queries, tuple(context), tuple(own), visible, within).sum().backward()
        largest.append(seen.numbers)
    assert largest[2] - largest[1] <= 2.2 * (largest[1] - largest[0])
    assert largest[2] < blocks * SIZE * 8


def test_early_blocks_do_not_read_the_context_of_late_ones(monkeypatch):
    """A value that nothing looks at may be anything at all, as long as no block of the neighbourhood does."""
    monkeypatch.setattr(attention, "BLOCKS_AT_ONCE", 2)
    tensors, visible, within = case()
    queries, keys, values, own_keys, own_values = (one.detach() for one in tensors)
    values[:, :, 6:] = torch.nan  # anchors of the first two blocks are up to 6 in every row
    out = attend(queries, (keys, values), (own_keys, own_values), visible, within)
    assert out[:, :, :2].isfinite().all()
    assert out[:, :, 2:].isnan().any()
