"""The Triton kernels of banks against torch in float64. They need a GPU; what they stand for is tested everywhere in
tests/train/test_bank.py."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from assay.nn.whole import has_kernels

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and has_kernels(torch.device("cuda"))), reason="needs CUDA and Triton"
)
NARROW, WIDE = {"rtol": 2**-6, "atol": 4e-6}, {"rtol": 1e-4, "atol": 4e-6}
"""Near certainty 1 - p is what is left of a sum of logits around 12, each good to 1e-6."""


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("outputs", [7, 4096, 8192, 10_001])
@pytest.mark.parametrize("certainty", [0.0, 12.0])
def test_cross_entropy(dtype: torch.dtype, outputs: int, certainty: float) -> None:
    from assay.nn.kernels import cross_entropy

    targets = torch.randint(outputs, (3, 5), device="cuda")
    sure = torch.full((3, 5, 1), certainty, device="cuda")
    logits = draw(3, 5, outputs).scatter_add(-1, targets[..., None], sure).to(dtype).requires_grad_()
    exact = logits.detach().double().requires_grad_()
    losses, wanted = cross_entropy(logits, targets), -exact.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(losses.double(), wanted, rtol=1e-4, atol=2e-6)
    (slope,) = torch.autograd.grad((losses * draw(3, 5)).sum(), logits)
    (wanted_slope,) = torch.autograd.grad((wanted * draw(3, 5).double()).sum(), exact)
    torch.testing.assert_close(slope.double(), wanted_slope, **(NARROW if dtype == torch.bfloat16 else WIDE))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 4, 5, 16), (2, 300, 128), (1, 1, 96), (5, 70, 1000)])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    from assay.nn.kernels import rms_norm as ours

    x, gains = draw(*shape).to(dtype).requires_grad_(), draw(shape[0], shape[-1], seed=1).to(dtype).requires_grad_()
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, gains)]
    pull = draw(*shape, seed=2).to(dtype)
    found = ours(x, gains, 1e-6)
    wanted = torch.stack([rms_norm(a, a.shape[-1:], b, 1e-6) for a, b in zip(*exact, strict=True)])
    close = {"rtol": 2**-6, "atol": 2**-5} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(found.double(), wanted, **close)
    slopes = torch.autograd.grad((found * pull).sum(), (x, gains))
    for slope, right in zip(slopes, torch.autograd.grad((wanted * pull.double()).sum(), exact), strict=True):
        torch.testing.assert_close(slope.double(), right, **close)
