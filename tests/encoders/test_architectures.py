"""Each encoder against the plain thing it is made of."""

import pytest
import torch
from torch import nn
from torch.func import jacrev, vmap
from torch.nn.functional import conv1d, pad

from assay.encoders import encoders
from assay.metrics.size import parameters
from assay.nn.random import initialised_from, stream

ATOL = 1e-5


def built(word, length=32, d_in=24, d_code=32):
    with initialised_from(0, "test"):
        return encoders.parse(word).build(length, d_in, d_code).eval()


def sequences(batch=5, length=32, d_in=24):
    return torch.randn(batch, length, d_in, generator=stream(0, "x"))


@pytest.mark.parametrize(("word", "count"), [("SelfAttn", 25_304), ("StaticMLP", 24_608)])
def test_the_specs_encoders_have_the_specs_size(word, count):
    assert parameters(built(word)) == count


@pytest.mark.parametrize("word", ["GRU", "CausalConv", "MeanMLP"])
def test_the_others_are_within_three_percent_of_25_thousand(word):
    assert abs(parameters(built(word)) / 25_000 - 1) < 0.03


@pytest.mark.parametrize("word", encoders.names())
def test_codes_are_jacobian_ready(word):
    """vmap(jacrev) works, and agrees with a finite difference."""
    module, x = built(word).double(), sequences(2).double()
    jacobian = vmap(jacrev(lambda row: module(row[None])[0]))(x)
    assert jacobian.shape == (2, 32, 32, 24)
    step = 1e-6 * torch.randn(x.shape, generator=stream(0, "step"), dtype=torch.float64)
    moved = (module(x + step) - module(x - step)) / 2
    torch.testing.assert_close(torch.einsum("bctd,btd->bc", jacobian, step), moved, rtol=1e-4, atol=1e-12)


def test_static_mlp_is_one_linear_map_of_the_flat_sequence_or_two():
    x = sequences()
    flat, one, two = x.reshape(5, -1), built("static_mlp"), built("static_mlp:width=9")
    torch.testing.assert_close(one(x), torch.relu(flat @ one[1].weight.T + one[1].bias))
    hidden = torch.relu(flat @ two[1].weight.T + two[1].bias)
    assert hidden.shape == (5, 9)
    torch.testing.assert_close(two(x), torch.relu(hidden @ two[3].weight.T + two[3].bias))


@pytest.mark.parametrize("heads", [1, 8])
def test_self_attn_is_torch_multihead_attention_read_at_the_last_token(heads):
    module, x = built(f"self_attn:heads={heads}"), sequences()
    peer = nn.MultiheadAttention(72, heads, batch_first=True).eval()
    weights = dict(zip(("in_proj_weight", "in_proj_bias"), module.qkv.parameters(), strict=True))
    peer.load_state_dict(weights | {f"out_proj.{k}": v for k, v in module.out.named_parameters()})
    h = module.embed(x)
    expected = torch.relu(module.code(module.norm(peer(h, h, h)[0])))[:, -1]
    torch.testing.assert_close(module(x), expected, rtol=0, atol=ATOL)


def test_self_attn_starts_like_torch_multihead_attention():
    with initialised_from(0, "test"):
        peer = nn.MultiheadAttention(72, 8)
    module = built("self_attn")
    for ours, theirs in ((module.qkv.weight, peer.in_proj_weight), (module.out.weight, peer.out_proj.weight)):
        assert abs(ours.std().item() / theirs.std().item() - 1) < 0.05
    assert not module.qkv.bias.any() and not module.out.bias.any()


def test_gru_is_torch_gru_read_after_the_last_token():
    module, x = built("gru"), sequences()
    peer = nn.GRU(24, 75, batch_first=True)
    sources = {"ih": module.input, "hh": module.recurrent}
    peer.load_state_dict({f"{k}_{n}_l0": v for n, m in sources.items() for k, v in m.named_parameters()})
    torch.testing.assert_close(module(x), torch.relu(module.code(peer(x)[1][0])), rtol=0, atol=ATOL)


def test_causal_conv_is_a_stack_of_dilated_causal_convolutions_at_its_last_step():
    module, x = built("causal_conv"), sequences()
    h = module.embed(x).mT
    for i, merge in enumerate(module.merge):
        kernel = torch.stack(merge.weight.chunk(2, dim=1), dim=-1)
        h = h + torch.relu(conv1d(pad(h, (2**i, 0)), kernel, merge.bias, dilation=2**i))
    torch.testing.assert_close(module(x), torch.relu(module.code(h[..., -1])), rtol=0, atol=ATOL)


@pytest.mark.parametrize(("length", "layers"), [(1, 0), (2, 1), (20, 5), (32, 5), (33, 6)])
def test_causal_conv_sees_the_whole_sequence_with_no_layer_to_spare(length, layers):
    module = built("causal_conv", length)
    assert len(module.merge) == layers
    x = sequences(8, length).requires_grad_()
    module(x).sum().backward()
    assert (x.grad.abs().amax(dim=(0, 2)) > 0).all()


def test_only_the_orderless_encoders_ignore_the_order_of_tokens():
    """mean_mlp over all tokens; self_attn over all but the last, which asks."""
    x = sequences()
    swapped = x[:, [*reversed(range(31)), 31]]
    blind = {word for word in encoders.names() if torch.allclose(built(word)(x), built(word)(swapped), atol=ATOL)}
    assert {"mean_mlp", "self_attn"} <= blind
    assert not blind & {"static_mlp", "gru", "causal_conv"}
