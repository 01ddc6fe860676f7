"""Triton kernels read Mamba-2's heads: each number is read once and written once.

    s = o * silu(z);   y = gain s / sqrt(mean(s^2) + eps)        the mean over all heads' channels

o is (models, sequences, heads, time, d), as the scans have it, with D u added; z and y are (models, sequences, time,
heads d).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.head_blocks import Channels, Heads, Inner, Kernels, block_of, load

NUMBERS = 2048
"""Numbers in a block of rows."""
PROGRAMS = 512
"""Programs that share the rows of a model in the backward pass, each with its own sums for the gains."""


def gate_then_norm(o: Heads, z: Inner, gains: Channels, *, eps: float, dtype: torch.dtype) -> Inner:
    return _GateThenNorm.apply(*(x[None] for x in (o, z, gains)), eps, dtype).squeeze(0)


class _GateThenNorm(Kernels):
    own = 3

    @staticmethod
    def forward(o: Tensor, z: Tensor, gains: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        o, z, gains = (x.contiguous() for x in (o, z, gains))
        models, sequences, heads, time, d = o.shape
        y = torch.empty(models, sequences, time, heads * d, device=o.device, dtype=dtype)
        width, rows = block_of(heads * d, numbers=NUMBERS, most=NUMBERS)
        _gated_normed[(models * sequences, triton.cdiv(time, rows))](
            o, z, gains, y, sequences, heads, time, d, eps, width, rows
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        eps, _ = ctx.options
        o, z, gains, slope = (x.contiguous() for x in (*ctx.saved_tensors, slope))
        models, sequences, heads, time, d = o.shape
        width, rows = block_of(heads * d, numbers=NUMBERS, most=NUMBERS)
        blocks = triton.cdiv(time, rows)
        programs = min(PROGRAMS, sequences * blocks)
        d_o, d_z = torch.empty_like(o), torch.empty_like(z)
        sums = torch.empty(models, programs, heads * d, device=o.device)
        _gated_normed_back[(programs, models)](
            o, z, gains, slope, d_o, d_z, sums, sequences, heads, blocks, time, d, eps, width, rows
        )
        return d_o, d_z, sums.sum(dim=1).to(gains.dtype), None, None


@triton.jit(do_not_specialize=["sequences", "time"])
def _gated_normed(o, z, gains, y, sequences, heads, time, d, eps, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    sequence = tl.program_id(0).to(tl.int64)
    rows, own = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    channels = heads * d
    inside, start = (rows < time)[:, None] & (own < channels)[None, :], sequence * time * channels
    in_heads = (own // d * time * d + own % d)[None, :] + rows[:, None] * d
    at = rows[:, None] * channels + own[None, :]
    gain = load(gains, sequence // sequences * channels + own, own < channels)[None, :]
    gate = load(z + start, at, inside)
    found = load(o + start, in_heads, inside) * gate * tl.sigmoid(gate)
    over = tl.rsqrt(tl.sum(found * found, axis=1) / channels + eps)[:, None]
    tl.store(y + start + at, found * over * gain, mask=inside)


@triton.jit(do_not_specialize=["sequences", "blocks", "time"])
def _gated_normed_back(o, z, gains, slope, d_o, d_z, sums, sequences, heads, blocks, time, d, eps,
                       WIDTH: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """A program has every so-manieth block of a model's rows; its sums are added up over rows at the end alone."""
    program, programs, model = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    own = tl.arange(0, WIDTH)
    channels = heads * d
    gain = load(gains, model * channels + own, own < channels)[None, :]
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for block in range(program, sequences * blocks, programs):
        start = (model * sequences + block // blocks) * time * channels
        rows = (block % blocks) * ROWS + tl.arange(0, ROWS)
        inside = (rows < time)[:, None] & (own < channels)[None, :]
        in_heads = (own // d * time * d + own % d)[None, :] + rows[:, None] * d
        at = rows[:, None] * channels + own[None, :]
        read, gate = load(o + start, in_heads, inside), load(z + start, at, inside)
        pull = load(slope + start, at, inside)
        sigmoid = tl.sigmoid(gate)
        found = read * gate * sigmoid
        over = tl.rsqrt(tl.sum(found * found, axis=1) / channels + eps)[:, None]
        unit = found * over
        total += pull * unit
        pull = pull * gain
        pull = over * (pull - unit * (tl.sum(pull * unit, axis=1) / channels)[:, None])
        tl.store(d_z + start + at, pull * read * sigmoid * (1.0 + gate * (1.0 - sigmoid)), mask=inside)
        tl.store(d_o + start + in_heads, pull * gate * sigmoid, mask=inside)
    tl.store(sums + (model * programs + program) * channels + own, tl.sum(total, axis=0), mask=own < channels)
