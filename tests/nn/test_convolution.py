"""The short convolution against a loop over time and taps."""

import pytest
import torch

from assay.nn.convolution import ShortConvolution
from assay.nn.random import initialised_from, stream


def made(kernel):
    with initialised_from(0, "test"):
        module = ShortConvolution(5, kernel).double()
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
