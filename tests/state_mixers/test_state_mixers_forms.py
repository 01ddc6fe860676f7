"""Each state mixer by its formula and its default width."""

import pytest
import torch

from assay.metrics.size import parameters
from assay.nn.random import initialised_from, stream
from assay.state_mixers import state_mixers

D = 128


def built(word):
    with initialised_from(0, "test"):
        return state_mixers.parse(word).build(D).double()


def tokens():
    return torch.randn(3, 5, D, generator=stream(0, "x"), dtype=torch.float64)


def test_mlp_has_a_hidden_layer_of_tanh_gelus_with_bias():
    module, x = built("mlp"), tokens()
    into, _, out = module
    h = x @ into.weight.T + into.bias
    h = 0.5 * h * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)))
    torch.testing.assert_close(module(x), h @ out.weight.T + out.bias)
    assert into.out_features == 4 * into.in_features
    for layer in (into, out):  # as torch starts a linear layer
        assert 0.95 * layer.in_features**-0.5 < layer.weight.abs().max() <= layer.in_features**-0.5


GATES = {"glu": torch.sigmoid, "swiglu": lambda g: g * torch.sigmoid(g), "bilinear": lambda g: g}


@pytest.mark.parametrize("name", GATES)
def test_gated_layers_multiply_a_gate_and_a_value(name):
    module, x = built(name), tokens()
    one, two = module.into.weight.split(352)
    torch.testing.assert_close(module(x), (GATES[name](x @ one.T) * (x @ two.T)) @ module.out.weight.T)


def test_none_adds_nothing():
    module, x = built("none"), tokens()
    assert torch.equal(x + module(x), x) and not list(module.parameters())


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("mlp", 2 * D * 512 + 512 + D),
        ("mlp:inner=64", 2 * D * 64 + 64 + D),
        *((name, 3 * D * 352) for name in GATES),
        *((f"{name}:inner=100", 3 * D * 100) for name in GATES),
        ("none", 0),
    ],
)
def test_widths_are_the_specs_or_the_ones_asked_for(word, count):
    assert parameters(built(word)) == count
