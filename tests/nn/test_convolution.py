"""The short convolution against a loop over time and taps."""

import pytest
import torch

from assay.nn.convolution import ShortConvolution, short_convolution
from assay.nn.random import initialised_from, stream


def made(kernel, **options):
    with initialised_from(0, "test"):
        module = ShortConvolution(5, kernel, **options).double()
    return module, torch.randn(2, 9, 5, generator=stream(0, "x"), dtype=torch.float64)


@pytest.mark.parametrize("kernel", [1, 2, 4, 12])
def test_each_output_is_a_weighted_sum_of_the_last_inputs(kernel):
    module, x = made(kernel)
    expected = torch.zeros_like(x)
    for t in range(9):
        for back in range(min(kernel, t + 1)):
            expected[:, t] += module.weight[:, kernel - 1 - back] * x[:, t - back]
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize("kernel", [1, 4])
def test_stepping_gives_the_same_and_carries_all_but_the_last_tap(kernel):
    module, x = made(kernel)
    seen, outputs = module.init_state(2), []
    for token in x.unbind(1):
        y, seen = module.step(token, seen)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), module(x))
    assert seen.shape == (2, kernel - 1, 5)


@torch.no_grad()
def test_a_bias_is_added_to_every_output():
    module, x = made(4, bias=True)
    plain, _ = made(4)
    plain.weight.copy_(module.weight)
    torch.testing.assert_close(module(x), plain(x) + module.bias)
    y, _ = module.step(x[:, 0], module.init_state(2))
    torch.testing.assert_close(y, module(x)[:, 0])


def test_half_precision_stays_half_precision():
    module, x = made(4, bias=True)
    module, x = module.float(), x.to(torch.bfloat16)
    y, seen = module.step(x[:, 0], x.new_zeros(2, 3, 5))
    assert module(x).dtype == y.dtype == seen.dtype == torch.bfloat16


def test_where_there_is_no_convolution_its_place_changes_and_carries_nothing():
    place = short_convolution(5, 0)
    x = torch.randn(2, 9, 5, generator=stream(0, "x"))
    assert place(x) is x and place.step(x[:, 0], place.init_state(2))[1] == () and not list(place.parameters())
