"""base_conv and hyena against sums written out, and what they are for in recall sweeps."""

import math

import pytest
import torch
from torch import Tensor

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.nn.random import initialised_from, stream

D, T = 6, 11


def built(word: str) -> MixerModule:
    with initialised_from(0, word):
        return mixers.parse(word).build(D, T).double().eval()


def tokens(time: int = T) -> Tensor:
    return torch.randn(1, time, D, generator=stream(0, "tokens"), dtype=torch.float64)


def delayed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A depthwise causal convolution, term by term."""
    time, channels, kernel = len(x), x.shape[1], weight.shape[1]
    y = torch.zeros_like(x)
    for t in range(time):
        for c in range(channels):
            y[t, c] = bias[c] + sum(weight[c, kernel - 1 - i] * x[t - i, c] for i in range(min(kernel, t + 1)))
    return y


@torch.no_grad()
def test_base_conv_is_a_convolution_times_a_gate_and_the_input() -> None:
    module, u = built("base_conv"), tokens()
    gate = u[0] @ module.gate.weight.T + module.gate.bias
    wanted = delayed(u[0], module.convolution.weight, module.convolution.bias) * gate + u[0]
    torch.testing.assert_close(module(u)[0], wanted, rtol=1e-12, atol=1e-12)


def slow_filter(module: MixerModule, t: int) -> Tensor:
    """h(t): an MLP of (share of the length, cos, -sin) with sines, under a window that differs by channel."""
    implicit, share = module.filter, t / (T - 1)
    angle = 1e-4 * 2 * math.pi * t / T
    h = torch.tensor([share, math.cos(angle), -math.sin(angle)], dtype=torch.float64)
    for layer in implicit.inner:
        h = torch.sin(implicit.frequency * (layer.weight @ h + layer.bias))
    slow, fast = math.log(100) / 1.5, math.log(100) / 0.3
    rates = torch.tensor([slow + (fast - slow) * c / (D - 1) for c in range(D)], dtype=torch.float64)
    return (implicit.out.weight @ h) * torch.exp(-share * rates)


@torch.no_grad()
@pytest.mark.parametrize("width", [64, 16])
def test_hyena_is_a_sum_over_the_whole_past_between_two_gates(width: int) -> None:
    module, u = built(f"hyena:filter_order={width}"), tokens()
    assert [layer.weight.shape for layer in module.filter.inner] == [(width, 3), (width, width), (width, width)]
    projected = delayed(
        u[0] @ module.project.weight.T + module.project.bias, module.convolution.weight, module.convolution.bias
    )
    x1, x2, v = projected[:, :D], projected[:, D : 2 * D], projected[:, 2 * D :]
    z, h = x1 * v, [slow_filter(module, t) for t in range(T)]
    reached = torch.stack([sum(h[t - s] * z[s] for s in range(t + 1)) for t in range(T)])
    wanted = (x2 * (reached + module.skip * z)) @ module.out.weight.T + module.out.bias
    torch.testing.assert_close(module(u)[0], wanted, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_hyenas_state_grows_by_a_token_each_token() -> None:
    mixer = mixers.parse("hyena")
    assert mixer.state_size(D, 8) - mixer.state_size(D, 7) == D
    assert mixer.state_size(D, 0) == 2 * 3 * D


@torch.no_grad()
def test_a_filter_continues_past_the_length_it_was_built_for() -> None:
    module = built("hyena")
    longer = module.filter(T + 5)
    assert torch.isfinite(longer).all()
    torch.testing.assert_close(longer[:T], module.filter(T), rtol=0, atol=0)
    assert module(tokens(T + 5)).shape == (1, T + 5, D)


@pytest.mark.parametrize("mixer", ["attention", "delta_net", "kda"])
def test_zoologys_layout_is_a_base_conv_and_the_mixer_that_is_measured(mixer: str) -> None:
    layout, measured = mixers.parse(f"hybrid:pattern=base_conv+{mixer}"), mixers.parse(mixer)
    assert layout.tells_order(), "no table of positions is added"
    assert layout.state_size(64, 40) == measured.state_size(64, 40) + 2 * 64
    assert layout.build(32, 10)(torch.zeros(2, 10, 32)).shape == (2, 10, 32)
