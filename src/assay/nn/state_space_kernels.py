"""Triton kernels read Mamba-2's heads: each number is read once and written once.

    s = (o + D u) * silu(z);   y = gain s / sqrt(mean(s^2) + eps)        D per head, the mean over all heads' channels

o and u are (models, sequences, heads, time, d), as the scans have them; z and y are (models, sequences, time, heads d).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.head_blocks import Channels, Heads, Inner, Kernels, block_of

NUMBERS = 2048
"""Numbers in a block of rows."""
PROGRAMS = 512
"""Programs that share the rows of a model in the backward pass, each with its own sums for gains and D."""


def gate_then_norm(
    o: Heads, u: Heads, z: Inner, skip: Float[Tensor, " heads"], gains: Channels, *, eps: float, dtype: torch.dtype
) -> Inner:
    return _GateThenNorm.apply(*(x[None] for x in (o, u, z, skip, gains)), eps, dtype).squeeze(0)


class _GateThenNorm(Kernels):
    own = 5

    @staticmethod
    def forward(o: Tensor, u: Tensor, z: Tensor, skip: Tensor, gains: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        o, u, z, skip, gains = (x.contiguous() for x in (o, u, z, skip, gains))
        models, sequences, heads, time, d = o.shape
        y = torch.empty(models, sequences, time, heads * d, device=o.device, dtype=dtype)
        width, rows = block_of(heads * d, numbers=NUMBERS, most=NUMBERS)
        _gated_normed[(models * sequences, triton.cdiv(time, rows))](
            o, u, z, skip, gains, y, sequences, heads, time, d, eps, width, rows
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        eps, _ = ctx.options
        o, u, z, skip, gains, slope = (x.contiguous() for x in (*ctx.saved_tensors, slope))
        models, sequences, heads, time, d = o.shape
        width, rows = block_of(heads * d, numbers=NUMBERS, most=NUMBERS)
        blocks = triton.cdiv(time, rows)
        programs = min(PROGRAMS, sequences * blocks)
        d_o, d_u, d_z = torch.empty_like(o), torch.empty_like(u), torch.empty_like(z)
        sums = torch.empty(models, programs, 2, heads * d, device=o.device)
        _gated_normed_back[(programs, models)](
            o, u, z, skip, gains, slope, d_o, d_u, d_z, sums, sequences, heads, blocks, time, d, eps, width, rows
        )
        d_gains, d_skip = sums.sum(dim=1).unbind(1)
        d_skip = d_skip.unflatten(-1, (heads, d)).sum(dim=-1)
        return d_o, d_u, d_z, d_skip.to(skip.dtype), d_gains.to(gains.dtype), None, None


@triton.jit(do_not_specialize=["sequences", "time"])
def _gated_normed(o, u, z, skip, gains, y, sequences, heads, time, d, eps, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    sequence = tl.program_id(0).to(tl.int64)
    model = sequence // sequences
    rows, own = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    channels = heads * d
    inside = (rows < time)[:, None] & (own < channels)[None, :]
    at = sequence * time * channels + rows[:, None] * channels + own[None, :]
    in_heads = sequence * time * channels + (own // d * time * d + own % d)[None, :] + rows[:, None] * d
    share = tl.load(skip + model * heads + own // d, mask=own < channels, other=0.0).to(tl.float32)[None, :]
    gain = tl.load(gains + model * channels + own, mask=own < channels, other=0.0).to(tl.float32)[None, :]
    read = tl.load(o + in_heads, mask=inside, other=0.0).to(tl.float32)
    read += share * tl.load(u + in_heads, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
    found = read * gate * tl.sigmoid(gate)
    over = tl.rsqrt(tl.sum(found * found, axis=1) / channels + eps)[:, None]
    tl.store(y + at, found * over * gain, mask=inside)


@triton.jit(do_not_specialize=["sequences", "blocks", "time"])
def _gated_normed_back(o, u, z, skip, gains, slope, d_o, d_u, d_z, sums, sequences, heads, blocks, time, d, eps,
                       WIDTH: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """A program has every so-manieth block of a model's rows."""
    program, programs, model = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    own = tl.arange(0, WIDTH)
    channels = heads * d
    share = tl.load(skip + model * heads + own // d, mask=own < channels, other=0.0).to(tl.float32)[None, :]
    gain = tl.load(gains + model * channels + own, mask=own < channels, other=0.0).to(tl.float32)[None, :]
    for_gains, for_skip = tl.zeros((WIDTH,), dtype=tl.float32), tl.zeros((WIDTH,), dtype=tl.float32)
    for block in range(program, sequences * blocks, programs):
        start = (model * sequences + block // blocks) * time * channels
        rows = (block % blocks) * ROWS + tl.arange(0, ROWS)
        inside = (rows < time)[:, None] & (own < channels)[None, :]
        at = start + rows[:, None] * channels + own[None, :]
        in_heads = start + (own // d * time * d + own % d)[None, :] + rows[:, None] * d
        written = tl.load(u + in_heads, mask=inside, other=0.0).to(tl.float32)
        read = tl.load(o + in_heads, mask=inside, other=0.0).to(tl.float32) + share * written
        gate = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(gate)
        found = read * gate * sigmoid
        over = tl.rsqrt(tl.sum(found * found, axis=1) / channels + eps)[:, None]
        unit = found * over
        pull = tl.load(slope + at, mask=inside, other=0.0).to(tl.float32)
        for_gains += tl.sum(pull * unit, axis=0)
        pull = pull * gain
        pull = over * (pull - unit * (tl.sum(pull * unit, axis=1) / channels)[:, None])
        tl.store(d_z + at, pull * read * sigmoid * (1.0 + gate * (1.0 - sigmoid)), mask=inside)
        pull = pull * gate * sigmoid
        for_skip += tl.sum(pull * written, axis=0)
        tl.store(d_o + in_heads, pull, mask=inside)
        tl.store(d_u + in_heads, pull * share, mask=inside)
    to = sums + (model * programs + program) * 2 * channels + own
    tl.store(to, for_gains, mask=own < channels)
    tl.store(to + channels, for_skip, mask=own < channels)
