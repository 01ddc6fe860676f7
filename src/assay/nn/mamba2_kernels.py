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

from assay.nn.head_blocks import Channels, Heads, Inner, Kernels, load, sigmoid

NUMBERS = 1024
"""Numbers of a warp at most. A row is one warp's, where it is no longer: warps would wait for each other's sums."""
PROGRAMS = 1056
"""Programs that share the rows of a model in the backward pass, each with its own sums for the gains: eight for each
multiprocessor of an H200, which is faster than 1024."""


def gate_then_norm(o: Heads, z: Inner, gains: Channels, *, eps: float, dtype: torch.dtype) -> Inner:
    return _GateThenNorm.apply(*(x[None] for x in (o, z, gains)), eps, dtype).squeeze(0)


class _GateThenNorm(Kernels):
    own = 3

    @staticmethod
    def forward(o: Tensor, z: Tensor, gains: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        o, z, gains = (x.contiguous() for x in (o, z, gains))
        models, sequences, heads, time, d = o.shape
        y = torch.empty(models, sequences, time, heads * d, device=o.device, dtype=dtype)
        width, rows, warps = _block(heads * d, 4)
        _gated_normed[(models * sequences, triton.cdiv(time, rows))](
            o, z, gains, y, sequences, heads, time, d, eps, width, rows, num_warps=warps
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        eps, _ = ctx.options
        o, z, gains, gradient = (x.contiguous() for x in (*ctx.saved_tensors, gradient))
        models, sequences, heads, time, d = o.shape
        width, rows, warps = _block(heads * d, 1)
        blocks = triton.cdiv(time, rows)
        programs = min(PROGRAMS, sequences * blocks)
        d_o, d_z = torch.empty_like(o), torch.empty_like(z)
        sums = torch.empty(models, programs, heads * d, device=o.device)
        _gated_normed_back[(programs, models)](
            o, z, gains, gradient, d_o, d_z, sums, sequences, heads, blocks, time, d, eps, width, rows,
            num_warps=warps,
        )  # fmt: skip
        return d_o, d_z, sums.sum(dim=1).to(gains.dtype), None, None


def _block(channels: int, least: int) -> tuple[int, int, int]:
    """Return width, rows and warps of a block, with so many warps at least."""
    width = triton.next_power_of_2(channels)
    warps = min(16, max(least, width // NUMBERS))
    return width, max(1, warps * NUMBERS // width), warps


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
    found = load(o + start, in_heads, inside) * gate * sigmoid(gate)
    over = tl.rsqrt(tl.sum(found * found, axis=1) / channels + eps)[:, None]
    tl.store(y + start + at, found * over * gain, mask=inside)


@triton.jit(do_not_specialize=["sequences", "blocks", "time"])
def _gated_normed_back(o, z, gains, gradient, d_o, d_z, sums, sequences, heads, blocks, time, d, eps,
                       WIDTH: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Compute the gradients of `_gated_normed`. Each of n programs has every n-th block of a model's rows; its sums are
    added up over rows at the end alone."""
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
        pull = load(gradient + start, at, inside)
        opened = sigmoid(gate)
        found = read * gate * opened
        over = tl.rsqrt(tl.sum(found * found, axis=1) / channels + eps)[:, None]
        unit = found * over
        total += pull * unit
        pull = pull * gain
        pull = over * (pull - unit * (tl.sum(pull * unit, axis=1) / channels)[:, None])
        tl.store(d_z + start + at, pull * read * opened * (1.0 + gate * (1.0 - opened)), mask=inside)
        tl.store(d_o + start + in_heads, pull * gate * opened, mask=inside)
    tl.store(sums + (model * programs + program) * channels + own, tl.sum(total, axis=0), mask=own < channels)
