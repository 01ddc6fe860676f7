"""Triton kernels of the short causal convolution, which torch's own operations read and write once per weight.

    y_t = sum_{i<K} w_i x_{t-K+1+i}            channel by channel, zeros before the first token
    dx_t = sum_i w_i dy_{t+K-1-i};   dw_i = sum_t x_{t-K+1+i} dy_t

Tensors are (models, sequences, time, d) and (models, d, K), contiguous; sums are float32.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

ROWS, COLUMNS = 64, 64
"""Tokens and channels that a program holds."""
PROGRAMS = 64
"""Programs that share the sequences of a model in the sums for the weights' gradient."""


def convolve(x: Float[Tensor, "batch time d"], weight: Float[Tensor, "d kernel"]) -> Float[Tensor, "batch time d"]:
    return _Convolution.apply(x[None], weight[None])[0]


class _Convolution(Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return _correlated(x.contiguous(), weight.contiguous(), back=False)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = (saved.contiguous() for saved in ctx.saved_tensors)
        gradient = gradient.contiguous()
        models, sequences, time, d = x.shape
        programs = min(PROGRAMS, sequences)
        sums = torch.empty(models, programs, d, weight.shape[-1], device=x.device)
        _weights[(programs, triton.cdiv(d, COLUMNS), models)](
            x, gradient, sums, sequences, time, d, weight.shape[-1], ROWS, COLUMNS
        )
        return _correlated(gradient, weight, back=True).to(x.dtype), sums.sum(dim=1).to(weight.dtype)

    @staticmethod
    def vmap(info: Any, dims: Sequence[int | None], x: Tensor, weight: Tensor) -> tuple[Tensor, int]:
        """Take a bank's axis as that of the models. Neither tensor has one yet but of size 1."""
        own = [
            (given.expand(info.batch_size, *given.shape) if dim is None else given.movedim(dim, 0)).squeeze(1)
            for given, dim in zip((x, weight), dims, strict=True)
        ]
        return _Convolution.apply(*own)[:, None], 0


def _correlated(x: Tensor, weight: Tensor, *, back: bool) -> Tensor:
    models, sequences, time, d = x.shape
    y = torch.empty(x.shape, device=x.device, dtype=torch.promote_types(x.dtype, weight.dtype))
    _convolved[(models * sequences, triton.cdiv(time, ROWS), triton.cdiv(d, COLUMNS))](
        x, weight, y, sequences, time, d, weight.shape[-1], ROWS, COLUMNS, back
    )
    return y


@triton.jit
def _convolved(x, weight, y, sequences, time, d, KERNEL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
               BACK: tl.constexpr):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    rows, columns = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    weight += (sequence // sequences) * d * KERNEL
    x += sequence * time * d
    found = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for i in tl.static_range(KERNEL):
        at = rows + (KERNEL - 1 - i if BACK else i - KERNEL + 1)
        inside = ((at >= 0) & (at < time))[:, None] & (columns < d)[None, :]
        given = tl.load(x + at[:, None] * d + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        found += given * tl.load(weight + columns * KERNEL + i, mask=columns < d, other=0.0).to(tl.float32)[None, :]
    tl.store(y + sequence * time * d + rows[:, None] * d + columns[None, :], found,
             mask=(rows < time)[:, None] & (columns < d)[None, :])  # fmt: skip


@triton.jit
def _weights(x, gradient, sums, sequences, time, d, KERNEL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    program, programs, model = tl.program_id(0), tl.num_programs(0), tl.program_id(2).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    for i in tl.static_range(KERNEL):
        total = tl.zeros((COLUMNS,), dtype=tl.float32)
        for sequence in range(program, sequences, programs):
            base = (model * sequences + sequence) * time * d
            for start in range(0, time, ROWS):
                rows = start + tl.arange(0, ROWS)
                at = rows + i - KERNEL + 1
                present = (rows < time)[:, None] & (columns < d)[None, :]
                past = present & (at >= 0)[:, None]
                pull = tl.load(gradient + base + rows[:, None] * d + columns[None, :], mask=present, other=0.0)
                given = tl.load(x + base + at[:, None] * d + columns[None, :], mask=past, other=0.0)
                total += tl.sum(given.to(tl.float32) * pull.to(tl.float32), axis=0)
        tl.store(sums + ((model * programs + program) * d + columns) * KERNEL + i, total, mask=columns < d)
