"""Triton kernels make queries, keys and values of a projection: each number is read once and written once.

    h = conv(x) + bias, then a SiLU;   y = scale * h,  or h / |h|,  or h turned by its position       head by head

The projection is (models, sequences, time, channels); heads are written as (models, sequences, heads, time, d), as the
scans read them. Sums are float32, results have the dtype of the projection. Channels beyond the heads' are returned as
they are. Backward, `_slopes` makes the slopes of h, with the sums for weights and bias, and convolution_kernels.py
those of x.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.convolution_kernels import correlate
from assay.nn.fused import Part, Plan
from assay.nn.head_blocks import Kernels, also, block_of, nothing

NUMBERS = 2048
"""Numbers in a block of rows of one head."""
NUMBERS_BACK = 1024
"""The same in the backward pass, where a program keeps a sum for each number and weight."""
PROGRAMS = 256
"""Programs that share the tokens of a model in the sums for the weights' gradient."""


def heads(
    x: Float[Tensor, "batch time channels"],
    weight: Float[Tensor, "convolved kernel"] | None,
    bias: Float[Tensor, " convolved"] | None,
    turns: tuple[Tensor, Tensor] | None,
    plan: Plan,
) -> list[Tensor]:
    """Return the heads of every part, then the channels that no part has. `turns` are cosines and sines of rotary
    positions, (time, d / 2)."""
    cos, sin = turns or (None, None)
    own = (None if given is None else given[None] for given in (weight, bias))
    return [found.squeeze(0) for found in _Heads.apply(x[None], *own, cos, sin, plan)]


class _Heads(Kernels):
    own, shared = 3, 2

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, cos: Tensor | None, sin: Tensor | None, plan: Plan
    ) -> tuple[Tensor, ...]:
        run = Run(x, weight, bias, cos, sin, plan)
        return (*(run.written(part) for part in plan.parts), run.x[..., plan.channels :].clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return (*Run(*ctx.saved_tensors, *ctx.options).backward(*slopes), None, None, None)


class Run:
    """Sizes and launches of the kernels for one set of tensors."""

    def __init__(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, cos: Tensor | None, sin: Tensor | None, plan: Plan
    ) -> None:
        self.plan, self.x = plan, x.contiguous()
        self.models, self.sequences, self.time, self.channels = x.shape
        # Neighbouring channels of one tap lie side by side, so that a thread loads several at once.
        self.weight = None if weight is None else weight.mT.contiguous()
        self.bias = None if bias is None else bias.contiguous()
        self.taps = 0 if weight is None else weight.shape[-1]
        # What is not there is not read either, but a kernel takes no None beside tensors of other calls.
        self.read = [x if given is None else given for given in (self.weight, self.bias, cos, sin)]

    def options(self, part: Part, numbers: int) -> dict[str, Any]:
        width, rows = block_of(part.d, numbers=numbers)
        way = {"SWISH": self.plan.swish, "UNIT": part.unit, "ROTARY": part.rotary, "BIASED": self.bias is not None}
        return {"WIDTH": width, "ROWS": rows, "TAPS": self.taps, **way}

    def written(self, part: Part) -> Tensor:
        options = self.options(part, NUMBERS)
        y = self.x.new_empty(self.models, self.sequences, part.heads, self.time, part.d)
        grid = (self.models * self.sequences * part.heads, triton.cdiv(self.time, options["ROWS"]))
        sizes = (self.sequences, part.heads, self.time, part.d, self.channels, self.plan.channels, part.start)
        _written[grid](self.x, *self.read, y, *sizes, part.scale, **options)
        return y

    def slopes_of(self, part: Part, slope: Tensor, dh: Tensor, sums: Tensor) -> None:
        """Write the slopes of h and the sums for weights and bias."""
        options = self.options(part, NUMBERS_BACK)
        blocks = triton.cdiv(self.time, options["ROWS"])
        programs = min(PROGRAMS, self.sequences * blocks)
        sizes = (self.sequences, blocks, self.time, part.d, self.channels, dh.shape[-1], self.plan.channels, part.start)
        _slopes[(programs, part.heads, self.models)](
            self.x, *self.read, slope.contiguous(), dh, sums, *sizes, PROGRAMS, part.scale,
            **options,
        )  # fmt: skip
        if self.taps and programs < PROGRAMS:
            sums[:, programs:, part.start : part.start + part.heads * part.d] = 0

    def backward(self, *slopes: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        own, rest = self.plan.channels, slopes[-1]
        dx = torch.empty_like(self.x)
        if own < self.channels:
            dx[..., own:] = rest
        # Without a convolution the slopes of h are those of x.
        dh = self.x.new_empty(*self.x.shape[:-1], own) if self.taps else dx
        kinds = self.taps + (self.bias is not None)
        sums = self.x.new_empty(self.models, PROGRAMS, own, kinds, dtype=torch.float32)
        for part, slope in zip(self.plan.parts, slopes[:-1], strict=True):
            self.slopes_of(part, slope, dh, sums)
        if self.weight is None:
            return dx, None, None
        correlate(dh, self.weight, dx, back=True)
        total = sums.sum(dim=1)
        d_bias = None if self.bias is None else total[..., -1].to(self.bias.dtype)
        return dx, total[..., : self.taps].to(self.weight.dtype), d_bias


@triton.jit
def _taps(weight, columns, inside, convolved, TAPS: tl.constexpr):
    """Load the weights of some channels, tap by tap: once for all rows of a program."""
    found = ()
    for i in tl.static_range(TAPS):
        tap = tl.load(weight + i * convolved + columns, mask=inside, other=0.0).to(tl.float32)
        found = also(found, tap[None, :])
    return found


@triton.jit
def _seen(x, rows, columns, inside, time, channels, TAPS: tl.constexpr):
    """Load x at some tokens and channels, tap by tap, zeros outside; without a convolution x itself."""
    found = ()
    for i in tl.static_range(TAPS if TAPS > 0 else 1):
        at = rows + (i - TAPS + 1 if TAPS > 0 else 0)
        here = ((at >= 0) & (at < time))[:, None] & inside[None, :]
        given = tl.load(x + at[:, None] * channels + columns[None, :], mask=here, other=0.0).to(tl.float32)
        found = also(found, given)
    return found


@triton.jit
def _convolved(seen, taps, bias, columns, inside, TAPS: tl.constexpr, BIASED: tl.constexpr):
    """Return h before its SiLU at some tokens and channels."""
    found = seen[0]
    if TAPS > 0:
        found = found * taps[0]
        for i in tl.static_range(1, TAPS):
            found += seen[i] * taps[i]
    if BIASED:
        found += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    return found


@triton.jit
def _turn(table, rows, place, inside, time, half):
    """Load cosines or sines of rotary positions for both halves of the channels."""
    here = (rows < time)[:, None] & inside[None, :]
    return tl.load(table + rows[:, None] * half + place[None, :], mask=here, other=0.0)


@triton.jit(do_not_specialize=["sequences", "time"])
def _written(x, weight, bias, cos, sin, y, sequences, heads, time, d, channels, convolved, start, scale,
             WIDTH: tl.constexpr, ROWS: tl.constexpr, TAPS: tl.constexpr, SWISH: tl.constexpr, UNIT: tl.constexpr,
             ROTARY: tl.constexpr, BIASED: tl.constexpr):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    sequence, head = program // heads, program % heads
    rows, own = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = own < d
    x += sequence * time * channels
    weight += (sequence // sequences) * convolved * TAPS
    bias += (sequence // sequences) * convolved
    first = start + head * d
    taps = _taps(weight, first + own, inside, convolved, TAPS)
    seen = _seen(x, rows, first + own, inside, time, channels, TAPS)
    h = _convolved(seen, taps, bias, first + own, inside, TAPS, BIASED)
    if SWISH:
        h = h * tl.sigmoid(h)
    if UNIT:
        h = h * tl.rsqrt(tl.sum(h * h, axis=1) + 1e-6)[:, None]
    if ROTARY:
        half = d // 2
        place = tl.where(own < half, own, own - half)
        partner = tl.where(own < half, own + half, own - half)
        taps = _taps(weight, first + partner, inside, convolved, TAPS)
        seen = _seen(x, rows, first + partner, inside, time, channels, TAPS)
        other = _convolved(seen, taps, bias, first + partner, inside, TAPS, BIASED)
        if SWISH:
            other = other * tl.sigmoid(other)
        sign = tl.where(own < half, -1.0, 1.0)
        h = h * _turn(cos, rows, place, inside, time, half) + (
            sign[None, :] * other * _turn(sin, rows, place, inside, time, half)
        )
    at = y + program * time * d + rows[:, None] * d + own[None, :]
    tl.store(at, scale * h, mask=(rows < time)[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["sequences", "blocks", "time"])
def _slopes(x, weight, bias, cos, sin, slope, dh, sums, sequences, blocks, time, d, channels, wide, convolved, start,
            most, scale, WIDTH: tl.constexpr, ROWS: tl.constexpr, TAPS: tl.constexpr, SWISH: tl.constexpr,
            UNIT: tl.constexpr, ROTARY: tl.constexpr, BIASED: tl.constexpr):  # fmt: skip
    """Slopes of h, and sums over tokens for the gradients of the taps and, in the last column, of the bias. A program
    has every so-manieth block of a model's tokens, for one head; its sums are added up over rows at the end alone."""
    program, head, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    own = tl.arange(0, WIDTH)
    inside = own < d
    columns = start + head * d + own
    weight += model * convolved * TAPS
    bias += model * convolved
    KINDS: tl.constexpr = TAPS + (1 if BIASED else 0)
    totals, taps = nothing(KINDS, ROWS, WIDTH), _taps(weight, columns, inside, convolved, TAPS)
    for unit in range(program, sequences * blocks, tl.num_programs(0)):
        sequence = model * sequences + unit // blocks
        rows = (unit % blocks) * ROWS + tl.arange(0, ROWS)
        here = (rows < time)[:, None] & inside[None, :]
        seen = _seen(x + sequence * time * channels, rows, columns, inside, time, channels, TAPS)
        h = _convolved(seen, taps, bias, columns, inside, TAPS, BIASED)
        from_heads = slope + (sequence * tl.num_programs(1) + head) * time * d + rows[:, None] * d
        pull = scale * tl.load(from_heads + own[None, :], mask=here, other=0.0).to(tl.float32)
        gate = tl.sigmoid(h)
        if UNIT:
            y = h * gate if SWISH else h
            over = tl.rsqrt(tl.sum(y * y, axis=1) + 1e-6)[:, None]
            y = y * over
            pull = over * (pull - y * tl.sum(pull * y, axis=1)[:, None])
        if ROTARY:
            half = d // 2
            place = tl.where(own < half, own, own - half)
            partner = tl.where(own < half, own + half, own - half)
            sign = tl.where(own < half, 1.0, -1.0)
            other = scale * tl.load(from_heads + partner[None, :], mask=here, other=0.0).to(tl.float32)
            pull = pull * _turn(cos, rows, place, inside, time, half) + (
                sign[None, :] * other * _turn(sin, rows, place, inside, time, half)
            )
        if SWISH:
            pull = pull * gate * (1.0 + h * (1.0 - gate))
        tl.store(dh + sequence * time * wide + rows[:, None] * wide + columns[None, :], pull, mask=here)
        found = ()
        for i in tl.static_range(TAPS):
            found = also(found, totals[i] + seen[i] * pull)
        if BIASED:
            found = also(found, totals[TAPS] + pull)
        totals = found
    for i in tl.static_range(KINDS):
        to = sums + ((model * most + program) * convolved + columns) * KINDS + i
        tl.store(to, tl.sum(totals[i], axis=0), mask=inside)
