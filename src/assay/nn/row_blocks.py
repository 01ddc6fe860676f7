"""Kernels of attention load and write blocks of rows of one head: heads are (batch, heads, time, d) with any strides
but of the last axis."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from assay.nn.chunk_sizes import Folded

ROWS = 64
"""Tokens of a block."""
LENGTHS = ["heads", "time"]
"""Arguments whose values no kernel is compiled for."""


class Attention(Folded):
    """Attention by kernels derives from this: (q, k, v, options) -> (o, a number of each row, which has no
    gradient)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, *ctx.options = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(q, k, v, *output)


def room(x: Tensor) -> Tensor:
    """Return a tensor of x's shape with the heads of a token side by side, as projections have them."""
    batch, heads, time, d = x.shape
    return torch.empty(batch, time, heads, d, device=x.device, dtype=x.dtype).transpose(1, 2)


def strides(*tensors: Tensor) -> list[int]:
    """Return how far sequences, heads and rows of every tensor are apart."""
    return [stride for x in tensors for stride in x.stride()[:3]]


@triton.jit
def head_of(x, program, heads, sequence_stride, head_stride):
    """Return where the rows of one head of one sequence begin."""
    return x + (program // heads) * sequence_stride + (program % heads) * head_stride


@triton.jit
def rows_of(x, row, stride, time, d, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows row.. from column `first` on in float32, zeros outside."""
    rows, own = row + tl.arange(0, ROWS), first + tl.arange(0, WIDTH)
    inside = (rows < time)[:, None] & (own < d)[None, :]
    return tl.load(x + (rows.to(tl.int64) * stride)[:, None] + own[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def put_rows(x, values, row, stride, time, d, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows, own = row + tl.arange(0, ROWS), first + tl.arange(0, WIDTH)
    inside = (rows < time)[:, None] & (own < d)[None, :]
    tl.store(x + (rows.to(tl.int64) * stride)[:, None] + own[None, :], values, mask=inside)
