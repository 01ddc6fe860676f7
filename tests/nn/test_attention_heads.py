"""Attention in its fast forms against loops over time."""

import pytest
import torch

from assay.nn.attention import (
    causal_attention,
    divided,
    linear_attention,
    linear_attention_step,
    window_attention,
    with_ones,
)
from assay.nn.feature_maps import Taylor
from assay.nn.random import stream
from assay.nn.rotary import rotate


def drawn(time, *, heads=4, kv_heads=4, d=6, e=5):
    rng = stream(0, "qkv")
    shapes = (heads, time, d), (kv_heads, time, d), (kv_heads, time, e)
    return tuple(torch.randn(2, *shape, generator=rng, dtype=torch.float64) for shape in shapes)


def softmax_loop(q, k, v, window=10**9):
    """Query by query, key by key."""
    group, outputs = q.shape[1] // k.shape[1], torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    for h in range(q.shape[1]):
        for t in range(q.shape[2]):
            seen = range(max(0, t - window + 1), t + 1)
            weights = [torch.exp((q[:, h, t] * k[:, h // group, s]).sum(-1) / q.shape[-1] ** 0.5) for s in seen]
            for s, weight in zip(seen, weights, strict=True):
                outputs[:, h, t] += (weight / sum(weights))[:, None] * v[:, h // group, s]
    return outputs


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_causal_attention_is_the_loop_and_queries_share_keys_in_groups(kv_heads):
    q, k, v = drawn(7, kv_heads=kv_heads)
    o = causal_attention(q, k, v)
    torch.testing.assert_close(o, softmax_loop(q, k, v))
    torch.testing.assert_close(causal_attention(q[:, :, -1:], k, v), o[:, :, -1:])
    repeated = (x.repeat_interleave(4 // kv_heads, dim=1) for x in (k, v))
    torch.testing.assert_close(o, causal_attention(q, *repeated))


@pytest.mark.parametrize("window", [1, 2, 3, 5, 11, 40])
@pytest.mark.parametrize("time", [1, 3, 11])
def test_window_attention_is_the_loop_over_the_last_tokens(time, window):
    q, k, v = drawn(time, heads=2, kv_heads=1)
    torch.testing.assert_close(window_attention(q, k, v, window=window), softmax_loop(q, k, v, window))


def test_a_window_with_rotary_positions_is_masked_attention_at_absolute_positions():
    q, k, v = drawn(21)
    t = torch.arange(21)
    near = (t[:, None] >= t) & (t[:, None] - t < 4)
    scores = (rotate(q) @ rotate(k).mT / 6**0.5).masked_fill(~near, float("-inf"))
    torch.testing.assert_close(window_attention(q, k, v, window=4, rotary=True), torch.softmax(scores, -1) @ v)


@pytest.mark.parametrize(("time", "chunk"), [(1, 4), (4, 4), (5, 4), (13, 4), (13, 1), (13, 64)])
def test_linear_attention_in_chunks_is_the_loop(time, chunk):
    q, k, v = drawn(time)
    carried, outputs = torch.zeros(2, 4, 6, 5, dtype=torch.float64), []
    for t in range(time):
        o, carried = linear_attention_step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], carried)
        outputs.append(o)
    slow = torch.stack(
        [sum((q[:, :, t] * k[:, :, s]).sum(-1, True) * v[:, :, s] for s in range(t + 1)) for t in range(time)], 2
    )
    torch.testing.assert_close(torch.cat(outputs, 2), slow)
    torch.testing.assert_close(linear_attention(q, k, v, chunk=chunk), slow)


def test_a_kernel_within_chunks_and_its_features_between_them_are_one_thing():
    (q, k, v), taylor = drawn(13), Taylor(6).double()
    whole = linear_attention(taylor(q), taylor(k), v)
    torch.testing.assert_close(linear_attention(q, k, v, kernel=taylor.kernel, features=taylor, chunk=4), whole)


@pytest.mark.parametrize("time", [70, 200])
@pytest.mark.parametrize("form", ["causal", "window", "linear"])
def test_prefixes_keep_their_bits_across_blocks_in_float32(form, time):
    run = {"causal": causal_attention, "window": lambda *x: window_attention(*x, window=16), "linear": linear_attention}
    qkv = [x.float() for x in drawn(time)]
    for t in (1, 63, 64, 65, time - 1):
        changed = [torch.cat([x[:, :, :t], x[:, :, t:].flip(2) + 1], dim=2) for x in qkv]
        assert torch.equal(run[form](*qkv)[:, :, :t], run[form](*changed)[:, :, :t])


def test_a_channel_of_ones_gives_the_denominator():
    q, k, v = (x.abs() for x in drawn(9))
    weights = torch.tril(q @ k.mT)
    expected = weights @ v / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(divided(linear_attention(q, k, with_ones(v), chunk=4), floor=0.0), expected)


def test_long_sums_do_not_stop_growing_in_bf16():
    one = torch.ones(1, 1, 4096, 1, dtype=torch.bfloat16)
    assert linear_attention(one, one, one)[0, 0, -1, 0] == 4096
