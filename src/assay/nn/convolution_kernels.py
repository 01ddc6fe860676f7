"""Triton kernels compute the short causal convolution, whose numbers torch's own read and write once per weight.

    y_t = sum_{i<K} w_i x_{t-K+1+i} + b        channel by channel, zeros before the first token
    dx_t = sum_i w_i dy_{t+K-1-i};   dw_i = sum_t x_{t-K+1+i} dy_t;   db = sum_t dy_t

Tensors are (models, sequences, time, d), (models, d, K) and (models, d), contiguous; sums are float32, and results have
the dtype of x.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.head_blocks import Kernels, also, nothing

ROWS, COLUMNS = 64, 64
"""Tokens and channels that a program holds."""
SUMMED = 16
"""Tokens that a program holds in the backward pass, where it keeps a sum for each number and weight."""
PROGRAMS = 256
"""Programs that share the tokens of a model in the sums for the weights' gradient."""


def convolve(
    x: Float[Tensor, "batch time d"], weight: Float[Tensor, "d kernel"], bias: Float[Tensor, " d"] | None
) -> Float[Tensor, "batch time d"]:
    return _Convolution.apply(x[None], weight[None], None if bias is None else bias[None]).squeeze(0)


class _Convolution(Kernels):
    own = 3

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        return correlate(x, weight.mT.contiguous(), bias=bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        *given, bias = ctx.saved_tensors
        x, weight, gradient = (x.contiguous() for x in (*given, gradient))
        models, sequences, time, d = x.shape
        taps, blocks = weight.shape[-1], triton.cdiv(time, SUMMED)
        programs = min(PROGRAMS, sequences * blocks)
        sums = torch.empty(models, programs, d, taps + 1, device=x.device)
        _weights[(programs, triton.cdiv(d, COLUMNS), models)](
            x, gradient, sums, sequences, blocks, time, d, taps, SUMMED, COLUMNS
        )
        total = sums.sum(dim=1)
        d_bias = None if bias is None else total[..., -1].to(bias.dtype)
        dx = correlate(gradient, weight.mT.contiguous(), back=True)
        return dx, total[..., :-1].to(weight.dtype), d_bias


def correlate(x: Tensor, weight: Tensor, *, bias: Tensor | None = None, back: bool = False) -> Tensor:
    """Return the convolution of x, or its transpose. Weights are (models, K, d), so that a thread loads those of
    several channels at once."""
    (models, sequences, time, d), y = x.shape, torch.empty_like(x)
    _convolved[(models * sequences, triton.cdiv(time, ROWS), triton.cdiv(d, COLUMNS))](
        x, weight, weight if bias is None else bias.contiguous(), y, sequences, time, d,
        weight.shape[1], ROWS, COLUMNS, back, bias is not None,
    )  # fmt: skip
    return y


@triton.jit(do_not_specialize=["sequences", "time"])
def _convolved(x, weight, bias, y, sequences, time, d, KERNEL: tl.constexpr, ROWS: tl.constexpr,
               COLUMNS: tl.constexpr, BACK: tl.constexpr, BIASED: tl.constexpr):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    rows, columns = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    weight += (sequence // sequences) * d * KERNEL
    x += sequence * time * d
    found = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for i in tl.static_range(KERNEL):
        at = rows + (KERNEL - 1 - i if BACK else i - KERNEL + 1)
        inside = ((at >= 0) & (at < time))[:, None] & (columns < d)[None, :]
        given = tl.load(x + at[:, None] * d + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        found += given * tl.load(weight + i * d + columns, mask=columns < d, other=0.0).to(tl.float32)[None, :]
    if BIASED:
        bias += (sequence // sequences) * d
        found += tl.load(bias + columns, mask=columns < d, other=0.0).to(tl.float32)[None, :]
    tl.store(y + sequence * time * d + rows[:, None] * d + columns[None, :], found,
             mask=(rows < time)[:, None] & (columns < d)[None, :])  # fmt: skip


@triton.jit(do_not_specialize=["sequences", "blocks", "time"])
def _weights(x, gradient, sums, sequences, blocks, time, d, KERNEL: tl.constexpr, ROWS: tl.constexpr,
             COLUMNS: tl.constexpr):  # fmt: skip
    """Compute sums over tokens for the weights' gradients and, in the last column, the bias's. Each of n programs has
    every n-th block of a model's tokens; its sums are added up over rows at the end alone."""
    program, programs, model = tl.program_id(0), tl.num_programs(0), tl.program_id(2).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    totals = nothing(KERNEL + 1, ROWS, COLUMNS)
    for block in range(program, sequences * blocks, programs):
        base = (model * sequences + block // blocks) * time * d
        rows = (block % blocks) * ROWS + tl.arange(0, ROWS)
        present = (rows < time)[:, None] & (columns < d)[None, :]
        pull = tl.load(gradient + base + rows[:, None] * d + columns[None, :], mask=present, other=0.0).to(tl.float32)
        found = ()
        for i in tl.static_range(KERNEL):
            at = rows + (i - KERNEL + 1)
            past = present & (at >= 0)[:, None]
            given = tl.load(x + base + at[:, None] * d + columns[None, :], mask=past, other=0.0).to(tl.float32)
            found = also(found, totals[i] + given * pull)
        totals = also(found, totals[KERNEL] + pull)
    to = sums + ((model * programs + program) * d + columns) * (KERNEL + 1)
    for i in tl.static_range(KERNEL + 1):
        tl.store(to + i, tl.sum(totals[i], axis=0), mask=columns < d)
