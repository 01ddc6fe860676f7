"""Gated linear attention against its formula, written out token by token and head by head."""

import torch
from torch.nn.functional import logsigmoid, rms_norm, silu

from assay.mixers import mixers
from assay.nn.random import initialised_from, stream


def test_outputs_follow_the_formula() -> None:
    with initialised_from(0, "gla"):
        module = mixers["gated_linear_attn"]().build(16, 10).double()
    x = torch.randn(10, 16, generator=stream(0, "tokens"), dtype=torch.float64)
    heads, dk, dv = 2, 4, 8
    q, k, v = (x @ module.heads.qkv.weight.T).split([heads * dk, heads * dk, heads * dv], dim=-1)
    log_decay = logsigmoid(module.decay(x)) / 16
    rows = []
    for h in range(heads):
        keys, values = slice(h * dk, (h + 1) * dk), slice(h * dv, (h + 1) * dv)
        s, outputs = torch.zeros(dk, dv, dtype=torch.float64), []
        for t in range(10):
            s = torch.diag(log_decay[t, keys].exp()) @ s + torch.outer(k[t, keys], v[t, values])
            outputs.append(s.T @ q[t, keys] / dk**0.5)
        rows.append(rms_norm(torch.stack(outputs), (dv,), eps=1e-5) * silu(module.gate(x))[:, values])
    torch.testing.assert_close(module(x[None])[0], module.heads.out(torch.cat(rows, dim=-1)), rtol=1e-9, atol=1e-9)


def test_its_widths_heads_and_gate_are_the_published_ones() -> None:
    published = {
        "num_heads": 2,
        "expand_k": 0.5,
        "expand_v": 1.0,
        "gate_normalizer": 16.0,
        "gate_low_rank": 16,
        "conv": 0,
        "conv_on": "qkv",
    }
    assert mixers["gated_linear_attn"]().spec() == {"name": "gated_linear_attn", **published}
    heads = mixers["gated_linear_attn"]().build(128, 64).heads
    assert (heads.key_dim, heads.value_dim) == (128 // 2 // 2, 128 // 2)


def test_a_new_model_remembers_for_about_twenty_tokens() -> None:
    """logsigmoid(0) / 16 = -.043: what is written halves in 16 tokens."""
    with initialised_from(0, "gla"):
        module = mixers["gated_linear_attn"]().build(128, 64)
    x = torch.randn(4, 64, 128, generator=stream(0, "tokens"))
    heads, beside = module.heads.split_beside(x, module.beside)
    *_, log_decay = module.written(x, *heads, *beside)
    assert 15 < -1 / log_decay.mean() < 30
    assert (log_decay < 0).all()
