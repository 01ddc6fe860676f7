"""The solver of least squares by conjugate gradients against factors of every Gram matrix in float64, gradients
included. It needs a GPU, or Triton's interpreter."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, softplus

from assay.mixers import mixers
from assay.nn import scan
from assay.nn.least_squares import ridge_scan
from triton_device import DEVICE, draw, needs_triton, worst
from triton_device import precision as precision

pytestmark = needs_triton
EXACT, TF32 = 2e-5, 5e-3
"""Norm of the error over the norm of what is wanted."""


def drawn(size: tuple[int, ...], *, alike: float = 0.5, kept: float = 4.0) -> list[Tensor]:
    """Return q, k, b, log a, the ridge and a first Gram matrix, for (sequences, heads, tokens, channels). Keys share a
    direction, the more the more `alike`, and the state keeps the more of its tokens the more is `kept`."""
    rng = torch.Generator(DEVICE).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=DEVICE)

    q, k = (normalize(normal(*size) + shift, dim=-1) for shift in (0.0, alike))
    beta, log_decay = torch.sigmoid(normal(*size[:-1])), logsigmoid(normal(*size[:-1]) + kept)
    seen = normal(*size[:2], size[-1], size[-1])
    return [q, k, beta, log_decay, 0.25 + softplus(normal(size[1], size[-1])), seen @ seen.mT / size[-1]]


def answers(run: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    *inputs, state = tensors = [x.detach().clone().requires_grad_() for x in tensors]
    x = run(*inputs, state=state)
    pull = torch.randn(x.shape, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE)
    return [x, *torch.autograd.grad((x * pull).sum(), tensors)]


@pytest.mark.parametrize("size", [(2, 2, 16, 16), (2, 2, 100, 24), (1, 2, 130, 64), (1, 1, 70, 128)])
def test_agrees_with_factors_of_every_gram_matrix(size: tuple[int, ...]) -> None:
    from assay.nn.least_squares_kernels import WIDEST
    from assay.nn.triton import ridge_scan as by_kernels

    tensors = drawn(size)
    wanted = answers(ridge_scan, [x.double() for x in tensors])
    if size[-1] <= WIDEST:  # torch's form runs beyond
        assert worst(answers(by_kernels, tensors), wanted) < EXACT
    torch.set_float32_matmul_precision("high")
    assert worst(answers(by_kernels, tensors), wanted) < TF32
    narrow = [x.bfloat16() for x in tensors[:2]]
    wanted = answers(ridge_scan, [x.double() for x in (*narrow, *tensors[2:])])
    assert worst(answers(by_kernels, [*narrow, *tensors[2:]]), wanted) < 1e-2


@pytest.mark.parametrize(("alike", "kept"), [(3.0, 9.0), (0.0, -4.0)], ids=["hardly told apart", "forgotten at once"])
def test_keys_that_make_the_systems_hard_or_trivial(alike: float, kept: float) -> None:
    from assay.nn.triton import ridge_scan as by_kernels

    tensors = drawn((2, 2, 150, 16), alike=alike, kept=kept)
    wanted = answers(ridge_scan, [x.double() for x in tensors])
    found = answers(by_kernels, tensors)
    assert worst(found[:2], wanted[:2]) < EXACT
    assert worst(found, wanted) < 1e-4


def test_nothing_written_and_nothing_asked_are_no_division_by_zero() -> None:
    from assay.nn.triton import ridge_scan as by_kernels

    q, k, beta, _, ridge, state = tensors = drawn((1, 2, 40, 16))
    q[:, :, ::3], k[:, :, ::2], beta[:, 1], state[:, 1] = 0.0, 0.0, 0.0, 0.0
    found = answers(by_kernels, tensors)
    assert all(x.isfinite().all() for x in found)
    torch.testing.assert_close(found[0][:, 1], q[:, 1] / ridge[1])
    assert worst(found, answers(ridge_scan, [x.double() for x in tensors])) < EXACT


def test_models_of_a_bank_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "backend", "triton")
    each = [drawn((2, 2, 70, 16), alike=alike)[:-1] for alike in (0.0, 0.3, 0.6)]
    models = [torch.stack(x).requires_grad_() for x in zip(*each, strict=True)]
    together = torch.vmap(ridge_scan)(*models)
    apart = torch.stack([ridge_scan(*x) for x in zip(*models, strict=True)])
    assert torch.equal(together, apart)
    gradients = (torch.autograd.grad(x.square().sum(), models, retain_graph=True) for x in (together, apart))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_gradients_of_a_layer_in_bf16_are_about_as_exact_as_torch_s(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the gates' biases are small differences of large sums: products of bf16 made them .24 wrong."""
    torch.manual_seed(seed)
    layer = mixers.parse("mesa:num_heads=2").build(64, 256).to(DEVICE)
    x, pull = draw(2, 256, 64, seed=10 + seed), draw(2, 256, 64, seed=1000 + seed)

    def gradients(backend: str, *, autocast: bool) -> list[Tensor]:
        monkeypatch.setattr(scan, "backend", backend)
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=autocast):
            y = layer(x)
        return list(torch.autograd.grad(y, list(layer.parameters()), pull.to(y.dtype)))

    exact, plain = gradients("torch", autocast=False), gradients("torch", autocast=True)
    for wanted, ours, torchs in zip(exact, gradients("triton", autocast=True), plain, strict=True):
        assert worst([ours], [wanted]) < 2 * worst([torchs], [wanted]) + 0.005


@pytest.mark.parametrize("which", range(4), ids=["q", "k", "b", "log a"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_is_not_hidden(which: int, value: float) -> None:
    """Of the token itself, and of what sees it; another sequence keeps its answers."""
    from assay.nn.triton import ridge_scan as by_kernels

    tensors = drawn((2, 1, 24, 16))
    wanted = by_kernels(*tensors[:-1])
    tensors[which] = tensors[which].clone()
    tensors[which][0, :, 5] = value
    found = by_kernels(*tensors[:-1])
    assert found[0, :, 5].isnan().all() and torch.equal(found[1], wanted[1])
