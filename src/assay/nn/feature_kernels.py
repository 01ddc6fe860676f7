"""Triton kernels make the features of linear attention of a projection: each number is read once and written once.

    phi_q = scale (a + b_a) * (c + b_c),   phi_k = (e + b_e) * (f + b_f)        channel by channel of a head

The projection is (models, sequences, time, channels), the heads of a, c, e, f and of the values side by side; what is
written is (models, sequences, heads, time, d), as the scans read it. Values pass as they are.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.axes import Read
from assay.nn.fused import Part, Plan
from assay.nn.head_blocks import Heads, Inner, Kernels, block_of
from assay.nn.head_kernels import Run

NUMBERS = 2048
"""Numbers in a block of rows of one head."""
PROGRAMS = 128
"""Programs that share the tokens of one head of a model in the backward pass, each with its own sums for the biases."""


def features(x: Inner, biases: Float[Tensor, "4 d"], *, heads: int, scale: float) -> tuple[Heads, Heads, Read]:
    """Return the features of queries and keys, and the values."""
    q, k, v = _Features.apply(x[None], biases[None], heads, scale)
    return q.squeeze(0), k.squeeze(0), v.squeeze(0)


class _Features(Kernels):
    own = 2

    @staticmethod
    def forward(x: Tensor, biases: Tensor, heads: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        x, (models, sequences, time, channels), d = x.contiguous(), x.shape, biases.shape[-1]
        y = x.new_empty(2, models, sequences, heads, time, d)
        width, rows = block_of(d, numbers=NUMBERS)
        _features[(models * sequences * heads, triton.cdiv(time, rows), 2)](
            x, biases.contiguous(), y, y.stride(0), sequences, heads, time, d, channels, scale, width, rows
        )
        run, values = _values(x, heads, d)
        return y[0], y[1], run.written(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_q: Tensor, d_k: Tensor, d_v: Tensor) -> tuple[Tensor | None, ...]:
        (x, biases), (heads, scale) = ctx.saved_tensors, ctx.options
        x, (models, sequences, time, channels), d = x.contiguous(), x.shape, biases.shape[-1]
        width, rows = block_of(d, numbers=NUMBERS)
        blocks = triton.cdiv(time, rows)
        programs = min(PROGRAMS, sequences * blocks)
        dx, sums = torch.empty_like(x), torch.empty(models, 4, d, heads * programs, device=x.device)
        run, values = _values(x, heads, d)
        run.gradients_of(values, d_v, dx, sums)
        for part, gradient in enumerate((d_q, d_k)):
            _features_back[(programs, heads, models)](
                x, biases.contiguous(), gradient.contiguous(), dx, sums, sequences, blocks, time, d, channels,
                1.0 if part else scale, part, width, rows,
            )  # fmt: skip
        return dx, sums.sum(dim=-1).to(biases.dtype), None, None


def _values(x: Tensor, heads: int, d: int) -> tuple[Run, Part]:
    """Return the kernels that move values, which pass as they are, to their heads and back, and which these are."""
    values = Part(4 * heads * d, heads, (x.shape[-1] - 4 * heads * d) // heads)
    return Run(x, None, None, None, None, Plan((values,), swish=False)), values


@triton.jit
def _factor(x, biases, kind, here, own, d):
    """Load some rows of one of the four, with its bias."""
    bias = tl.load(biases + kind * d + own, mask=own < d, other=0.0).to(tl.float32)
    return tl.load(x, mask=here, other=0.0).to(tl.float32) + bias[None, :]


@triton.jit(do_not_specialize=["apart", "sequences", "time"])
def _features(x, biases, y, apart, sequences, heads, time, d, channels, scale, WIDTH: tl.constexpr,
              ROWS: tl.constexpr):  # fmt: skip
    program, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    sequence, head = program // heads, program % heads
    rows, own = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    here = (rows < time)[:, None] & (own < d)[None, :]
    biases += sequence // sequences * 4 * d
    x += (sequence * time + rows)[:, None] * channels + (2 * part * heads + head) * d + own[None, :]
    found = _factor(x, biases, 2 * part, here, own, d) * _factor(x + heads * d, biases, 2 * part + 1, here, own, d)
    found *= tl.where(part == 0, scale, 1.0)
    tl.store(y + part.to(tl.int64) * apart + (program * time + rows)[:, None] * d + own[None, :], found, mask=here)


@triton.jit(do_not_specialize=["sequences", "blocks", "time"])
def _features_back(x, biases, gradient, dx, sums, sequences, blocks, time, d, channels, scale, part,
                   WIDTH: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Compute the gradients of `_features`. Each of n programs has every n-th block of a model's tokens, for one
    head."""
    program, head, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    programs, heads, own = tl.num_programs(0), tl.num_programs(1), tl.arange(0, WIDTH)
    first, second = tl.zeros((ROWS, WIDTH), dtype=tl.float32), tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    biases += model * 4 * d
    for block in range(program, sequences * blocks, programs):
        sequence, rows = model * sequences + block // blocks, (block % blocks) * ROWS + tl.arange(0, ROWS)
        here = (rows < time)[:, None] & (own < d)[None, :]
        at = (sequence * time + rows)[:, None] * channels + (2 * part * heads + head) * d + own[None, :]
        given = gradient + ((sequence * heads + head) * time + rows)[:, None] * d + own[None, :]
        pull = scale * tl.load(given, mask=here, other=0.0).to(tl.float32)
        to_one = pull * _factor(x + at + heads * d, biases, 2 * part + 1, here, own, d)
        to_other = pull * _factor(x + at, biases, 2 * part, here, own, d)
        tl.store(dx + at, to_one, mask=here)
        tl.store(dx + at + heads * d, to_other, mask=here)
        first += to_one
        second += to_other
    to = sums + ((model * 4 + 2 * part) * d + own) * heads * programs + head * programs + program
    tl.store(to, tl.sum(first, axis=0), mask=own < d)
    tl.store(to + d * heads * programs, tl.sum(second, axis=0), mask=own < d)
