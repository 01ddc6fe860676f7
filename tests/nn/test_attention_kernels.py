"""Attention by Triton kernels against attention written out in float64, gradients included. It needs a GPU, or Triton's
interpreter."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from triton_device import DEVICE, needs_triton, worst
from triton_device import precision as precision

pytestmark = needs_triton
EXACT = 2e-5
"""Norm of the error over the norm of what is wanted."""


def both(
    kernel: Callable[..., Tensor], plain: Callable[..., Tensor], size: tuple[int, ...], spread: float = 1.0
) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs and gradients of attention by a kernel in float32, and written out in float64."""
    sequences, heads, time, d, e = size
    rng = torch.Generator(DEVICE).manual_seed(0)
    shapes = [(sequences, time, heads, width) for width in (d, d, e)]
    drawn = [spread * torch.randn(shape, generator=rng, device=DEVICE) for shape in shapes]
    weights = torch.randn(sequences, heads, time, e, generator=rng, device=DEVICE)

    def answers(run: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        given = [x.to(dtype).requires_grad_() for x in drawn]
        o = run(*(x.transpose(1, 2) for x in given))  # strides as projections leave them
        return [o, *torch.autograd.grad((o * weights).sum(), given)]

    return answers(kernel, torch.float32), answers(plain, torch.float64)


@pytest.mark.parametrize("size", [(2, 2, 20, 8, 24), (1, 3, 130, 16, 80)])
def test_attention_with_polynomial_weights(size: tuple[int, ...]) -> None:
    from assay.nn.based_kernels import taylor_attention

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        a = q @ k.mT
        seen = (1 + a + a.square() / 2).tril()
        return seen @ v / (seen.sum(-1, keepdim=True) + 1e-12)

    assert worst(*both(lambda q, k, v: taylor_attention(q, k, v, floor=1e-12), plain, size)) < EXACT


@pytest.mark.parametrize("size", [(2, 2, 20, 8, 24, 2), (1, 3, 130, 16, 16, 7), (1, 1, 200, 16, 48, 64),
                                  (1, 1, 150, 16, 16, 300), (1, 1, 130, 64, 64, 20)])  # fmt: skip
def test_attention_in_a_window(size: tuple[int, ...]) -> None:
    from assay.nn.window_kernels import attention_in_window

    *rest, window = size

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        gap = torch.arange(q.shape[2], device=DEVICE)[:, None] - torch.arange(q.shape[2], device=DEVICE)
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        return scores.masked_fill((gap < 0) | (gap >= window), -torch.inf).softmax(dim=-1) @ v

    found, wanted = both(lambda q, k, v: attention_in_window(q, k, v, window=window), plain, tuple(rest), spread=3.0)
    assert worst(found, wanted) < EXACT
