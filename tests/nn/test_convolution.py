"""The short convolution against a loop over time and taps, and its Triton kernels against that of torch. The kernels
need a GPU, or Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from assay.nn import scan
from assay.nn.convolution import ShortConvolution, short_convolution
from assay.nn.random import initialised_from, stream
from triton_device import DEVICE, needs_triton, worst


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


@needs_triton
@pytest.mark.parametrize(("size", "kernel"), [((2, 9, 5), 1), ((3, 70, 48), 4), ((2, 130, 200), 3)])
def test_kernels_agree_with_shifted_products_alone_and_in_a_bank(
    size: tuple[int, int, int], kernel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bias, as on Mamba-2's u, B and C; gradients of tokens, weights and bias included."""
    models = 2
    rng = torch.Generator(DEVICE).manual_seed(0)
    module = ShortConvolution(size[-1], kernel, bias=True).to(DEVICE)
    names = ("x", "weight", "bias")
    shapes = size, (size[-1], kernel), (size[-1],)
    drawn = [torch.randn(models, *shape, generator=rng, device=DEVICE).requires_grad_() for shape in shapes]

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names[1:], weights, strict=True)), x)

    def found(together: bool) -> list[Tensor]:
        y = torch.vmap(run)(*drawn) if together else torch.stack([run(*x) for x in zip(*drawn, strict=True)])
        return [y, *torch.autograd.grad(y.square().sum(), drawn)]

    wanted = [x.double() for x in found(False)]
    monkeypatch.setattr(scan, "backend", "triton")
    assert worst(found(False), wanted) < 2e-5
    assert worst(found(True), wanted) < 2e-5
