"""Triton kernels read the mLSTM's memory: each number is read once and written once.

    h = o / (max(|n|, e^-m) + 1e-6);   y = (gain LayerNorm(h) + skip c) * silu(z)        the norm over a head's channels

o is (models, sequences, heads, time, wide), as the scans write it: d channels, then n. m is (models, sequences, heads,
time); c, z and y are (models, sequences, time, heads d). m has no gradient: whatever it is, it cancels.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.head_blocks import Channels, Heads, Inner, Kernels, block_of, grid, load, normed, shared, sizes, totals

FLOOR = tl.constexpr(1e-6)
EPS = tl.constexpr(1e-5)
"""Added to the variance, as torch's layer_norm does."""


def held(o: Heads, m: Float[Tensor, "batch heads time"], c: Inner, z: Inner, gain: Channels, skip: Channels) -> Inner:
    return _Held.apply(*(x[None] for x in (o, m, c, z, gain, skip))).squeeze(0)


class _Held(Kernels):
    own = 6

    @staticmethod
    def forward(o: Tensor, m: Tensor, c: Tensor, z: Tensor, gain: Tensor, skip: Tensor) -> Tensor:
        o, m, c, z, gain, skip = (x.contiguous() for x in (o, m, c, z, gain, skip))
        heads, y = _channels(o, z), torch.empty_like(z)
        _held[grid(heads)](o, m, c, z, gain, skip, y, *sizes(heads), o.shape[-1], *block_of(heads.shape[-1]))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        o, m, c, z, gain, skip = (x.contiguous() for x in ctx.saved_tensors)
        heads = _channels(o, z)
        d_o, d_c, d_z = torch.zeros_like(o), torch.empty_like(c), torch.empty_like(z)
        programs, sums = shared(heads, 2)
        _held_back[programs](
            o, m, c, z, gain, skip, slope.contiguous(), d_o, d_c, d_z, sums, *sizes(heads), o.shape[-1],
            *block_of(heads.shape[-1]),
        )  # fmt: skip
        d_gain, d_skip = totals(sums)
        return d_o, None, d_c, d_z, d_gain.to(gain.dtype), d_skip.to(skip.dtype)


def _channels(o: Tensor, z: Tensor) -> Tensor:
    """Return o without n and what stands beside it."""
    return o[..., : z.shape[-1] // o.shape[2]]


@triton.jit(do_not_specialize=["sequences", "time"])
def _held(o, m, c, z, gain, skip, y, sequences, heads, time, d, wide, WIDTH: tl.constexpr,
          ROWS: tl.constexpr):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    sequence, head = program // heads, program % heads
    rows, own = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside, here = (rows < time)[:, None] & (own < d)[None, :], own < d
    at = (program * time + rows) * wide
    in_token = (sequence * time + rows)[:, None] * (heads * d) + head * d + own[None, :]
    channel = (sequence // sequences * heads + head) * d + own
    n, smallest = load(o, at + d, rows < time), tl.exp(-load(m, program * time + rows, rows < time))
    over = 1.0 / (tl.maximum(tl.abs(n), smallest) + FLOOR)
    unit, _ = normed(load(o, at[:, None] + own[None, :], inside) * over[:, None], inside, d, EPS)
    found = unit * load(gain, channel, here)[None, :] + load(skip, channel, here)[None, :] * load(c, in_token, inside)
    gate = load(z, in_token, inside)
    tl.store(y + in_token, found * gate * tl.sigmoid(gate), mask=inside)


@triton.jit(do_not_specialize=["sequences", "time"])
def _held_back(o, m, c, z, gain, skip, slope, d_o, d_c, d_z, sums, sequences, heads, time, d, wide, WIDTH: tl.constexpr,
               ROWS: tl.constexpr):  # fmt: skip
    """A program has every so-manieth block of a model's tokens, for one head."""
    program, head, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    own = tl.arange(0, WIDTH)
    here = own < d
    channel = (model * heads + head) * d + own
    scale, share = load(gain, channel, here)[None, :], load(skip, channel, here)[None, :]
    to_gain, to_skip = tl.zeros((WIDTH,), dtype=tl.float32), tl.zeros((WIDTH,), dtype=tl.float32)
    blocks = tl.cdiv(time, ROWS)
    for place in range(program, sequences * blocks, tl.num_programs(0)):
        sequence = model * sequences + place // blocks
        rows = (place % blocks) * ROWS + tl.arange(0, ROWS)
        inside = (rows < time)[:, None] & here[None, :]
        first = (sequence * heads + head) * time + rows
        at = (first * wide)[:, None] + own[None, :]
        in_token = (sequence * time + rows)[:, None] * (heads * d) + head * d + own[None, :]
        n, smallest = load(o, first * wide + d, rows < time), tl.exp(-load(m, first, rows < time))
        over = 1.0 / (tl.maximum(tl.abs(n), smallest) + FLOOR)
        given = load(o, at, inside) * over[:, None]
        unit, deviation = normed(given, inside, d, EPS)
        passed, gate, pull = load(c, in_token, inside), load(z, in_token, inside), load(slope, in_token, inside)
        open_ = tl.sigmoid(gate)
        through = open_ * (1.0 + gate * (1.0 - open_))
        tl.store(d_z + in_token, pull * (unit * scale + share * passed) * through, mask=inside)
        pull = pull * gate * open_
        tl.store(d_c + in_token, pull * share, mask=inside)
        to_skip += tl.sum(pull * passed, axis=0)
        to_gain += tl.sum(pull * unit, axis=0)
        pull = pull * scale
        along, mean = tl.sum(pull * unit, axis=1)[:, None] / d, tl.sum(pull, axis=1)[:, None] / d
        pull = tl.where(inside, deviation * (pull - mean - unit * along), 0.0)
        tl.store(d_o + at, pull * over[:, None], mask=inside)
        d_n = -tl.sum(pull * given, axis=1) * over
        d_n = tl.where(n < 0, -d_n, d_n)
        tl.store(d_o + first * wide + d, tl.where(tl.abs(n) > smallest, d_n, 0.0), mask=rows < time)
    sums += (model * tl.num_programs(0) + program) * 2 * heads * d + head * d + own
    tl.store(sums, to_gain, mask=here)
    tl.store(sums + heads * d, to_skip, mask=here)
