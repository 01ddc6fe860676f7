"""Triton kernels normalise every head's output and multiply it by its gate: each number is read once and written once.

    y = gain o / sqrt(mean(o^2) + eps) * act(gate)        the mean over a head's channels; act: silu or sigmoid

o is (models, sequences, heads, time, d), as the scans write it, and the last of `every` so many rows is read; the gate
and y are (models, sequences, time, heads d), as the projections have them.
"""

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.head_blocks import Inner, Kernels, block_of, dense, sigmoid

NUMBERS = 2048
"""Numbers in a block of rows of one head."""
PROGRAMS = 1024
"""Programs that share the rows of a model in the backward pass, each with its own sums for the gains."""
Act = Literal["silu", "sigmoid"]


def gated_norm(
    o: Float[Tensor, "batch heads rows d"],
    gate: Inner | None,
    gains: Float[Tensor, " d"],
    *,
    eps: float,
    act: Act,
    dtype: torch.dtype,
    every: int,
) -> Inner:
    given = None if gate is None else gate[None]
    return _GatedNorm.apply(o[None], given, gains[None], eps, act == "silu", dtype, every).squeeze(0)


class _GatedNorm(Kernels):
    own = 3

    @staticmethod
    def forward(
        o: Tensor, gate: Tensor | None, gains: Tensor, eps: float, swish: bool, dtype: torch.dtype, every: int
    ) -> Tensor:
        o = dense(o)[..., every - 1 :: every, :]
        models, sequences, heads, time, d = o.shape
        y = torch.empty(models, sequences, time, heads * d, device=o.device, dtype=dtype)
        width, rows = block_of(d, numbers=NUMBERS)
        gate = y if gate is None else gate.contiguous()
        _read[(models * sequences * heads, triton.cdiv(time, rows))](
            o, gate, gains.contiguous(), y, *o.stride()[:4], sequences, heads, time, d, eps, width, rows, gate is not y,
            swish,
        )  # fmt: skip
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (o, gate, gains), (eps, swish, _, every) = ctx.saved_tensors, ctx.options
        d_o = torch.empty(o.shape, device=o.device, dtype=o.dtype)
        o, gradient, gated = dense(o)[..., every - 1 :: every, :], gradient.contiguous(), gate is not None
        gate = gate.contiguous() if gated else gradient
        models, sequences, heads, time, d = o.shape
        width, rows = block_of(d, numbers=NUMBERS)
        blocks = triton.cdiv(time, rows)
        programs = min(PROGRAMS, sequences * heads * blocks)
        d_gate = torch.empty_like(gate) if gated else d_o
        sums = torch.empty(models, d, programs, device=o.device)  # torch adds up neighbours fast
        _read_back[(programs, models)](
            o, gate, gains.contiguous(), gradient, d_o, d_gate, sums, *o.stride()[:4], sequences, heads, blocks, time,
            d, eps, width, rows, gated, swish, every,
        )  # fmt: skip
        return d_o, d_gate if gated else None, sums.sum(dim=-1).to(gains.dtype), None, None, None, None


@triton.jit(do_not_specialize=["sequences", "time"])
def _read(o, gate, gains, y, o_model, o_sequence, o_head, o_row, sequences, heads, time, d, eps, WIDTH: tl.constexpr,
          ROWS: tl.constexpr, GATED: tl.constexpr, SWISH: tl.constexpr):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    sequence, head = program // heads, program % heads
    model = sequence // sequences
    rows, own = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (rows < time)[:, None] & (own < d)[None, :]
    o += model * o_model + (sequence % sequences) * o_sequence + head * o_head
    given = tl.load(o + rows[:, None] * o_row + own[None, :], mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(gains + model * d + own, mask=own < d, other=0.0).to(tl.float32)
    found = given * tl.rsqrt(tl.sum(given * given, axis=1) / d + eps)[:, None] * gain[None, :]
    at = (sequence * time + rows)[:, None] * (heads * d) + head * d + own[None, :]
    if GATED:
        z = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
        found = found * sigmoid(z)
        if SWISH:
            found = found * z
    tl.store(y + at, found, mask=inside)


@triton.jit(do_not_specialize=["sequences", "blocks", "time"])
def _read_back(o, gate, gains, gradient, d_o, d_gate, sums, o_model, o_sequence, o_head, o_row, sequences, heads,
               blocks, time, d, eps, WIDTH: tl.constexpr, ROWS: tl.constexpr, GATED: tl.constexpr, SWISH: tl.constexpr,
               EVERY: tl.constexpr):  # fmt: skip
    """Compute the gradients of `_read`. Each of n programs has every n-th block of a model's rows. Rows of o that were
    not read have gradients of zero."""
    program, programs, model = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    own = tl.arange(0, WIDTH)
    gain = tl.load(gains + model * d + own, mask=own < d, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    o += model * o_model
    for block in range(program, sequences * heads * blocks, programs):
        rows = (block % blocks) * ROWS + tl.arange(0, ROWS)
        head = (block // blocks) % heads
        place = (block // blocks // heads).to(tl.int64)
        sequence = model * sequences + place
        inside = (rows < time)[:, None] & (own < d)[None, :]
        at_o = o + place * o_sequence + head * o_head + rows[:, None] * o_row + own[None, :]
        at = (sequence * time + rows)[:, None] * (heads * d) + head * d + own[None, :]
        given = tl.load(at_o, mask=inside, other=0.0).to(tl.float32)
        pull = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        z = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32) if GATED else pull
        over = tl.rsqrt(tl.sum(given * given, axis=1) / d + eps)[:, None]
        unit = given * over
        if GATED:
            share = sigmoid(z)
            through = share * (1.0 - share)
            if SWISH:
                through = share * (1.0 + z * (1.0 - share))
                share = share * z
            tl.store(d_gate + at, pull * unit * gain * through, mask=inside)
            pull = pull * share
        total += pull * unit
        pull = pull * gain
        along = tl.sum(pull * unit, axis=1)[:, None] / d
        to = d_o + (((sequence * heads + head) * time + rows) * EVERY)[:, None] * d + own[None, :]
        for i in tl.static_range(EVERY - 1):
            tl.store(to + i * d, tl.zeros_like(pull), mask=inside)
        tl.store(to + (EVERY - 1) * d, over * (pull - unit * along), mask=inside)
    tl.store(sums + (model * d + own) * programs + program, tl.sum(total, axis=0), mask=own < d)
