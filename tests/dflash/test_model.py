from __future__ import annotations

import math

import torch

from synthspec.dflash.config import SLIDING
from synthspec.dflash.model import Drafter, rotate
from tests.dflash.conftest import drafter_config


def run(drafter: Drafter, features, block, at, seen):
    rows, length = features.shape[:2]
    context = drafter.inject(features, torch.arange(length).expand(rows, -1))
    with torch.no_grad():
        return drafter(block, at, context, seen)


def case(anchors=(3, 9), rows=2, length=12, size=4):
    torch.manual_seed(5)
    features = torch.randn(rows, length, 64)
    at = torch.tensor(anchors)[None, :, None].expand(rows, -1, -1) + torch.arange(size)
    block = torch.randn(rows, len(anchors), size, 32)
    seen = torch.arange(length) < at[:, :, :1]
    return features, block, at, seen


def test_a_block_never_sees_the_target_states_of_its_anchor_or_later(drafter):
    features, block, at, seen = case()
    before = run(drafter, features, block, at, seen)
    features[:, 3:] += 10.0
    after = run(drafter, features, block, at, seen)
    assert torch.equal(before[:, 0], after[:, 0])
    assert not torch.allclose(before[:, 1], after[:, 1])


def test_every_state_before_the_anchor_matters(drafter):
    features, block, at, seen = case()
    before = run(drafter, features, block, at, seen)
    features[:, 2] += 10.0
    assert not torch.allclose(before[:, 0], run(drafter, features, block, at, seen)[:, 0])


def test_blocks_do_not_see_each_other(drafter):
    features, block, at, seen = case()
    together = run(drafter, features, block, at, seen)
    for i in range(2):
        alone = run(drafter, features, block[:, i : i + 1], at[:, i : i + 1], seen[:, i : i + 1])
        torch.testing.assert_close(alone[:, 0], together[:, i])


def test_within_a_block_full_attention_looks_both_ways_and_sliding_only_back():
    features, block, at, seen = case()
    for kinds, looks_ahead in ((("full_attention",) * 2, True), ((SLIDING,) * 2, False)):
        torch.manual_seed(1)
        drafter = Drafter(drafter_config(layer_types=kinds, sliding_window=5))
        before = run(drafter, features, block, at, seen)
        changed = block.clone()
        changed[:, :, 3] += 1.0
        after = run(drafter, features, changed, at, seen)
        assert torch.allclose(before[:, :, 1], after[:, :, 1]) is not looks_ahead


def test_a_sliding_layer_forgets_what_lies_before_its_window():
    features, block, at, seen = case(anchors=(9,))
    torch.manual_seed(1)
    drafter = Drafter(drafter_config(layer_types=(SLIDING,) * 2, sliding_window=4))
    before = run(drafter, features, block, at, seen)
    features[:, :6] += 10.0  # the query at position 9 sees 6, 7, 8 and itself
    torch.testing.assert_close(before[:, :, 0], run(drafter, features, block, at, seen)[:, :, 0])
    features[:, 6] += 10.0
    assert not torch.allclose(before[:, :, 0], run(drafter, features, block, at, seen)[:, :, 0])


def test_attention_equals_softmax_written_out(drafter):
    features, block, at, seen = case(anchors=(5,), rows=1)
    attention = drafter.layers[0].self_attn
    x = block[:, :1]
    cos, sin = (angle.unflatten(1, (1, 4)) for angle in drafter.angles(at.reshape(1, -1)))
    context = drafter.inject(features, torch.arange(12)[None])[0]
    got = attention(x, at, cos, sin, context, seen)[0, 0]

    queries = attention.q_norm(attention.q_proj(x[0, 0]).view(4, 4, 8))
    keys = attention.k_norm(attention.k_proj(x[0, 0]).view(4, 2, 8))
    queries, keys = (rotate(part, cos[0, 0, :, None], sin[0, 0, :, None]) for part in (queries, keys))
    values = attention.v_proj(x[0, 0]).view(4, 2, 8)
    outs = []
    for head in range(4):
        shared = head // 2
        all_keys = torch.cat([context[0][0, shared, :5], keys[:, shared]])
        all_values = torch.cat([context[1][0, shared, :5], values[:, shared]])
        weights = (queries[:, head] @ all_keys.T / math.sqrt(8)).softmax(-1)
        outs.append(weights @ all_values)
    torch.testing.assert_close(got, attention.o_proj(torch.cat(outs, -1)))


def test_partial_rotary_leaves_the_rest_alone():
    x = torch.randn(3, 8)
    angle = torch.randn(3, 4)
    turned = rotate(x, angle.cos(), angle.sin())
    assert torch.equal(turned[:, 4:], x[:, 4:])
    assert not torch.allclose(turned[:, :4], x[:, :4])
