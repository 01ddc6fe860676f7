"""The largest numbers of each row against sorted lists; the kernel, which needs a GPU or Triton's interpreter, too."""

import pytest
import torch
from torch import Tensor

from assay.nn import largest as module
from assay.nn.largest import largest
from assay.nn.random import stream
from triton_device import DEVICE, needs_triton

SIZES = [(2, 3, 7, (1, 5)), (3, 4, 40, (40, 1, 8)), (1, 2, 1024, (128,)), (2, 2, 4608, (32, 288))]
"""Models, rows, units, and how many each model keeps."""


def plain(z: Tensor, count: tuple[int, ...], among: Tensor | None) -> Tensor:
    """One row at a time, by a sorted list."""
    kept = torch.zeros_like(z)
    for m, b in torch.cartesian_prod(torch.arange(z.shape[0]), torch.arange(z.shape[1])).tolist():
        units = [u for u in range(z.shape[2]) if among is None or bool(among[m, u])]
        for u in sorted(units, key=lambda u: -float(z[m, b, u]))[: count[m]]:
            kept[m, b, u] = z[m, b, u]
    return kept


def drawn(models: int, rows: int, units: int, among: str) -> tuple[Tensor, Tensor | None]:
    rng = stream(0, "test")
    z = torch.randn(models, rows, units, generator=rng)
    shares = {"all": None, "some": 0.5, "few": 0.02, "none": 0.0}
    share = shares[among]
    return z, None if share is None else torch.rand(models, units, generator=rng) < share


@pytest.mark.parametrize("among", ["all", "some", "few", "none"])
@pytest.mark.parametrize(("models", "rows", "units", "count"), SIZES[:3])
def test_the_largest_are_kept_and_have_gradients(
    models: int, rows: int, units: int, count: tuple[int, ...], among: str
):
    z, mask = drawn(models, rows, units, among)
    z.requires_grad_()
    kept = largest(z, torch.tensor(count), max(count), mask)
    assert torch.equal(kept, plain(z.detach(), count, mask))
    (gradient,) = torch.autograd.grad(kept.sum(), z)
    assert torch.equal(gradient, (kept != 0).float())


def test_a_number_that_is_none_is_not_hidden():
    z = torch.tensor([[[1.0, torch.nan, -1.0]]])
    assert largest(z, torch.tensor([2]), 2).isnan().any()


@needs_triton
@pytest.mark.parametrize("among", ["all", "some", "few", "none"])
@pytest.mark.parametrize(("models", "rows", "units", "count"), SIZES)
def test_the_kernel_keeps_the_same(models: int, rows: int, units: int, count: tuple[int, ...], among: str):
    z, mask = drawn(models, rows, units, among)
    wanted = largest(z, torch.tensor(count), max(count), mask)
    z = z.to(DEVICE).requires_grad_()
    kept = module.kernels.largest(z, torch.tensor(count, device=DEVICE), None if mask is None else mask.to(DEVICE))
    assert torch.equal(kept.cpu(), wanted)
    pull = torch.randn(z.shape, generator=stream(1, "test"))
    (gradient,) = torch.autograd.grad((kept * pull.to(DEVICE)).sum(), z)
    assert torch.equal(gradient.cpu(), pull * (wanted != 0))


@needs_triton
def test_the_kernel_keeps_as_many_where_numbers_are_equal():
    z = torch.randint(-2, 3, (2, 50, 33), generator=stream(0, "test")).float().to(DEVICE)
    kept = module.kernels.largest(z + 3, torch.tensor([5, 11], device=DEVICE))
    assert ((kept != 0).sum(dim=2) == torch.tensor([[5], [11]], device=DEVICE)).all()
    wanted = largest(z.cpu() + 3, torch.tensor([5, 11]), 11)
    assert torch.equal(kept.sort(dim=2).values.cpu(), wanted.sort(dim=2).values)


@needs_triton
def test_the_kernel_does_not_hide_what_is_no_number():
    z = torch.tensor([[[1.0, torch.nan, -1.0, torch.inf]]], device=DEVICE)
    assert module.kernels.largest(z, torch.tensor([2], device=DEVICE)).isnan().any()
