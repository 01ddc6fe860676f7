"""Triton kernels make queries, keys and values of a projection: each number is read once and written once.

    h = conv(x) + bias, then a SiLU;   y = scale * h,  or h / |h|,  or h turned by its position       head by head

The projection is (models, sequences, time, channels); heads are written as (models, sequences, heads, time, d), as the
scans read them. Sums are float32, results have the dtype of the projection. Channels beyond the heads' are returned as
they are. A row of a block walks along a stretch of tokens, and carries what the convolution sees: x is loaded once, and
backward a gradient of x is whole when the tokens after it have added to it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.fused import Part, Plan
from assay.nn.head_blocks import Kernels, also, block_of, nothing, sigmoid

NUMBERS = 512
"""Numbers in a block of rows of one head: each row is a token of another stretch, and walks along that."""
TOKENS = {"convolved": 8, "plain": 4}
"""Tokens of a stretch that are loaded at once, with a convolution and without."""
STRETCH = {"convolved": (16, 64), "plain": (8, 8)}
"""Tokens of a stretch at most, forward and backward. Backward each has as many more to see as a convolution has before
it; without one nothing is carried along a stretch."""
PROGRAMS = {"convolved": 256, "plain": 1024}
"""Programs that share the tokens of a model backward, and have sums of their own for the weights' gradient."""


def heads(
    x: Float[Tensor, "batch time channels"],
    weight: Float[Tensor, "convolved kernel"] | None,
    bias: Float[Tensor, " convolved"] | None,
    turns: tuple[Tensor, Tensor] | None,
    plan: Plan,
) -> list[Tensor]:
    """Return the heads of every part, then the channels that no part has, but the filling. `turns` are cosines and
    sines of rotary positions, (time, d / 2)."""
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
        return (*(run.written(part) for part in plan.parts), run.x[..., plan.channels : run.filled].clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*Run(*ctx.saved_tensors, *ctx.options).backward(*gradients), None, None, None)


class Run:
    """Holds the sizes for one set of tensors, and launches the kernels."""

    def __init__(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, cos: Tensor | None, sin: Tensor | None, plan: Plan
    ) -> None:
        self.plan, self.x = plan, x.contiguous()
        self.models, self.sequences, self.time, self.channels = x.shape
        self.filled = self.channels - plan.filling
        # Neighbouring channels of one tap lie side by side, so that a thread loads several at once.
        self.weight = None if weight is None else weight.mT.contiguous()
        self.bias = None if bias is None else bias.contiguous()
        self.taps = 0 if weight is None else weight.shape[-1]
        kind = "convolved" if self.taps else "plain"
        self.tokens, self.stretch, self.most = TOKENS[kind], STRETCH[kind], PROGRAMS[kind]
        # What is not there is not read either, but a kernel takes no None beside tensors of other calls.
        self.read = [x if given is None else given for given in (self.weight, self.bias, cos, sin)]

    def options(self, part: Part) -> dict[str, Any]:
        width, rows = block_of(part.d, numbers=NUMBERS)
        way = {"SWISH": self.plan.swish, "UNIT": part.unit, "ROTARY": part.rotary, "SCALED": part.scale != 1.0}
        shape = {
            "WIDTH": width,
            "ROWS": rows,
            "TOKENS": self.tokens,
            "TAPS": self.taps,
            "BIASED": self.bias is not None,
        }
        return {**shape, **way, "STEPS": part.steps, "LAST": part.last}

    def cut(self, part: Part, longest: int) -> tuple[int, tuple[int, ...]]:
        """Return the blocks of a model's stretches of up to so many tokens, and the sizes that the kernels take."""
        length = self.tokens * triton.cdiv(self.time, self.tokens * triton.cdiv(self.time, longest))
        # Backward a stretch writes its last tokens after the tokens that see them, as many as a convolution has.
        length = max(length, self.tokens * triton.cdiv(self.taps, self.tokens))
        stretches = triton.cdiv(self.time, length)
        blocks = triton.cdiv(self.sequences * stretches, block_of(part.d, numbers=NUMBERS)[1])
        sizes = (part.heads_out, part.d, self.channels, self.plan.channels, part.start)
        return blocks, (self.sequences, stretches, length, self.time, *sizes)

    def written(self, part: Part) -> Tensor:
        blocks, sizes = self.cut(part, self.stretch[0])
        y = self.x.new_empty(self.models, self.sequences, part.heads_out, self.time * part.steps, part.d)
        _written[(blocks, part.heads, self.models)](self.x, *self.read, y, *sizes, part.scale, **self.options(part))
        return y

    def programs(self) -> int:
        """Return how many programs share the tokens of a model, for each head of every part."""
        return min(self.most, max(self.cut(part, self.stretch[1])[0] for part in self.plan.parts))

    def gradients_of(self, part: Part, gradient: Tensor, dx: Tensor, sums: Tensor) -> None:
        """Write the gradients of x, and the sums for weights and bias, if there are any."""
        blocks, sizes = self.cut(part, self.stretch[1])
        _gradients[(self.programs(), part.heads, self.models)](
            self.x, *self.read, gradient.contiguous(), dx, sums, blocks, *sizes, part.scale, **self.options(part)
        )

    def backward(self, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        own, rest = self.plan.channels, gradients[-1]
        dx = torch.empty_like(self.x)
        if own < self.channels:
            dx[..., own : self.filled] = rest
            dx[..., self.filled :] = 0.0
        kinds = self.taps + (self.bias is not None)
        sums = self.x.new_empty(self.models, self.programs(), own, kinds, dtype=torch.float32)
        for part, gradient in zip(self.plan.parts, gradients[:-1], strict=True):
            self.gradients_of(part, gradient, dx, sums)
        if self.weight is None:
            return dx, None, None
        total = sums.sum(dim=1)
        d_bias = None if self.bias is None else total[..., -1].to(self.bias.dtype)
        return dx, total[..., : self.taps].to(self.weight.dtype), d_bias


@triton.jit
def _taps(weight, columns, inside, convolved, TAPS: tl.constexpr):
    """Load the weights of some channels, tap by tap: once for all rows of a program."""
    found = ()
    for i in tl.static_range(TAPS):
        found = also(found, tl.load(weight + i * convolved + columns, mask=inside, other=0.0).to(tl.float32)[None, :])
    return found


@triton.jit
def _before(x, first, row, inside, TAPS: tl.constexpr):
    """Load what the convolution sees of the tokens before every stretch, zeros before a sequence."""
    found = ()
    for i in tl.static_range(TAPS - 1 if TAPS > 0 else 0):
        here = (first >= TAPS - 1 - i)[:, None] & inside
        found = also(found, tl.load(x + (i - TAPS + 1) * row, mask=here, other=0.0).to(tl.float32))
    return found


@triton.jit
def _next(x, step, left, row, inside, TOKENS: tl.constexpr):
    """Load the next tokens of every stretch, zeros where none are left: all at once, so that none waits for another."""
    found = ()
    for i in tl.static_range(TOKENS):
        here = (step + i < left)[:, None] & inside
        found = also(found, tl.load(x + i * row, mask=here, other=0.0).to(tl.float32))
    return found


@triton.jit
def _latest(seen, TAPS: tl.constexpr, TOKENS: tl.constexpr):
    """Keep what the convolution sees of the next tokens."""
    found = ()
    for i in tl.static_range(TAPS - 1 if TAPS > 0 else 0):
        found = also(found, seen[TOKENS + i])
    return found


@triton.jit
def _convolved(seen, taps, shift, TOKEN: tl.constexpr, TAPS: tl.constexpr):
    """Return h before its SiLU at one of some tokens."""
    if TAPS > 0:
        found = seen[TOKEN] * taps[0] + shift
        for i in tl.static_range(1, TAPS):
            found += seen[TOKEN + i] * taps[i]
    else:
        found = seen[TOKEN] + shift
    return found


@triton.jit
def _shift(bias, columns, inside, BIASED: tl.constexpr):
    return tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :] if BIASED else 0.0


@triton.jit
def _turn(table, rows, here, place, half):
    """Load cosines or sines of rotary positions for both halves of the channels."""
    return tl.load(table + rows[:, None] * half + place[None, :], mask=here, other=0.0)


@triton.jit
def _halves(own, d):
    """Return where the angle of each channel stands, the channel that it is turned with, and the sign of that one."""
    half = d // 2
    upper = own >= half
    partner = tl.where(upper, own - half, own + half)
    return tl.where(upper, partner, own), partner, tl.where(upper, 1.0, -1.0)[None, :]


@triton.jit
def _stretch(block, sequences, stretches, length, time, ROWS: tl.constexpr):
    """Return the sequence of each row's stretch among a model's, its first token, and the tokens from that one on."""
    row = block * ROWS + tl.arange(0, ROWS)
    first = row % stretches * length
    return row // stretches, first, tl.where(row < sequences * stretches, time - first, 0)


@triton.jit
def _rows(sequence, first, head, heads, time, STEPS: tl.constexpr, LAST: tl.constexpr):
    """Return the rows of some tokens of a head of the channels, among those of all heads."""
    step = STEPS - 1
    if STEPS > 1 and not LAST:
        step = head // heads
        head = head % heads
    return ((sequence * heads + head) * time + first) * STEPS + step


@triton.jit(do_not_specialize=["sequences", "stretches", "length", "time"])
def _written(x, weight, bias, cos, sin, y, sequences, stretches, length, time, heads, d, channels, convolved, start,
             scale, WIDTH: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, TAPS: tl.constexpr,
             SWISH: tl.constexpr, UNIT: tl.constexpr, ROTARY: tl.constexpr, BIASED: tl.constexpr, SCALED: tl.constexpr,
             STEPS: tl.constexpr, LAST: tl.constexpr):  # fmt: skip
    head, model = tl.program_id(1), tl.program_id(2).to(tl.int64)
    own = tl.arange(0, WIDTH)
    inside = (own < d)[None, :]
    sequence, first, left = _stretch(tl.program_id(0), sequences, stretches, length, time, ROWS)
    there = (left > 0)[:, None] & inside
    left = tl.minimum(left, length)
    weight += model * convolved * TAPS + start + head * d
    bias += model * convolved + start + head * d
    taps, shift = _taps(weight, own, own < d, convolved, TAPS), _shift(bias, own, own < d, BIASED)
    sequence = model * sequences + sequence
    row, wide = tl.cast(d, tl.int64), tl.cast(channels, tl.int64)
    x += ((sequence * time + first) * channels + start + head * d)[:, None]
    given = x + own[None, :]
    to = y + (_rows(sequence, first, head, heads, time, STEPS, LAST) * d)[:, None] + own[None, :]
    before = _before(given, first, wide, there, TAPS)
    if ROTARY:
        place, partner, sign = _halves(own, d)
        other_given = x + partner[None, :]
        other_taps = _taps(weight, partner, own < d, convolved, TAPS)
        other_shift = _shift(bias, partner, own < d, BIASED)
        other_before = _before(other_given, first, wide, there, TAPS)
    for step in range(0, length, TOKENS):
        seen = before + _next(given, step, left, wide, inside, TOKENS)
        before = _latest(seen, TAPS, TOKENS)
        given += TOKENS * wide
        if ROTARY:
            other_seen = other_before + _next(other_given, step, left, wide, inside, TOKENS)
            other_before = _latest(other_seen, TAPS, TOKENS)
            other_given += TOKENS * wide
        for i in tl.static_range(TOKENS):
            here = (step + i < left)[:, None] & inside
            h = _convolved(seen, taps, shift, i, TAPS)
            if SWISH:
                h = h * sigmoid(h)
            if UNIT:
                h = h * (scale * tl.rsqrt(tl.sum(h * h, axis=1) + 1e-6))[:, None]
            elif SCALED:
                h = scale * h
            if ROTARY:
                other = _convolved(other_seen, other_taps, other_shift, i, TAPS)
                if SWISH:
                    other = other * sigmoid(other)
                turned = sign * other * (scale * _turn(sin, first + step + i, here, place, d // 2))
                h = h * _turn(cos, first + step + i, here, place, d // 2) + turned
            tl.store(to + i * STEPS * row, h, mask=here)
            if LAST:
                for earlier in tl.static_range(1, STEPS):
                    tl.store(to + (i * STEPS - earlier) * row, tl.zeros_like(h), mask=here)
        to += TOKENS * STEPS * row


@triton.jit
def _pulled(h, pull, other, scale, cos, sin, rows, here, place, sign, half, SWISH: tl.constexpr, UNIT: tl.constexpr,
            ROTARY: tl.constexpr, SCALED: tl.constexpr):  # fmt: skip
    """Return the gradient of h before its SiLU at some tokens, given that of y, and of the channels turned with it."""
    gate = sigmoid(h) if SWISH else 1.0
    y = h * gate
    if UNIT:
        over = tl.rsqrt(tl.sum(y * y, axis=1) + 1e-6)
        along = tl.sum(pull * y, axis=1) * over * over
        pull = (scale * over)[:, None] * (pull - y * along[:, None])
    elif SCALED:
        pull = scale * pull
    if ROTARY:
        turned = sign * other * (scale * _turn(sin, rows, here, place, half))
        pull = pull * _turn(cos, rows, here, place, half) - turned
    if SWISH:
        pull = pull * (gate + y * (1.0 - gate))
    return pull


@triton.jit
def _whole(late, pull, taps, TAPS: tl.constexpr):
    """Return the gradient of x at the token that the first tap saw: it is whole now."""
    found = pull
    if TAPS > 0:
        found = pull * taps[0]
    if TAPS > 1:
        found += late[0]
    return found


@triton.jit
def _later(late, pull, taps, TAPS: tl.constexpr):
    """Return the gradients of x at the tokens that the other taps saw, as far as they are known."""
    found = ()
    for tap in tl.static_range(1, TAPS - 1):
        found = also(found, late[tap] + pull * taps[tap])
    if TAPS > 1:
        found = also(found, pull * taps[TAPS - 1])
    return found


@triton.jit
def _added(totals, seen, pull, TOKEN: tl.constexpr, TAPS: tl.constexpr, BIASED: tl.constexpr):
    """Add what a token gives to the sums for the taps and for the bias."""
    found = ()
    for tap in tl.static_range(TAPS):
        found = also(found, totals[tap] + seen[TOKEN + tap] * pull)
    if BIASED:
        found = also(found, totals[TAPS] + pull)
    return found


@triton.jit(do_not_specialize=["blocks", "sequences", "stretches", "length", "time"])
def _gradients(x, weight, bias, cos, sin, gradient, dx, sums, blocks, sequences, stretches, length, time, heads, d,
               channels, convolved, start, scale, WIDTH: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
               TAPS: tl.constexpr, SWISH: tl.constexpr, UNIT: tl.constexpr, ROTARY: tl.constexpr, BIASED: tl.constexpr,
               SCALED: tl.constexpr, STEPS: tl.constexpr, LAST: tl.constexpr):  # fmt: skip
    """Compute the gradients of x, and sums over tokens for those of the taps and, in the last column, of the bias. Each
    of n programs has every n-th block of a model's stretches, for one head; its sums are added up over rows at the end
    alone. A token's gradient is known when all tokens that see it are: each stretch looks at some of the next."""
    program, head, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    own = tl.arange(0, WIDTH)
    inside = (own < d)[None, :]
    weight += model * convolved * TAPS + start + head * d
    bias += model * convolved + start + head * d
    taps, shift = _taps(weight, own, own < d, convolved, TAPS), _shift(bias, own, own < d, BIASED)
    KINDS: tl.constexpr = TAPS + (1 if BIASED else 0)
    LATE: tl.constexpr = TAPS - 1 if TAPS > 0 else 0
    totals = nothing(KINDS, ROWS, WIDTH)
    place, partner, sign = _halves(own, d)
    row, wide = tl.cast(d * STEPS, tl.int64), tl.cast(channels, tl.int64)
    for block in range(program, blocks, tl.num_programs(0)):
        sequence, first, left = _stretch(block, sequences, stretches, length, time, ROWS)
        sequence = model * sequences + sequence
        at = ((sequence * time + first) * channels + start + head * d)[:, None] + own[None, :]
        from_heads = gradient + (_rows(sequence, first, head, heads, time, STEPS, LAST) * d)[:, None]
        given, to = x + at, dx + at - LATE * wide
        pull_at, other_at = from_heads + own[None, :], from_heads + partner[None, :]
        before = _before(given, first, wide, (left > 0)[:, None] & inside, TAPS)
        late = nothing(LATE, ROWS, WIDTH)
        for step in range(0, length, TOKENS):
            seen = before + _next(given, step, left, wide, inside, TOKENS)
            before = _latest(seen, TAPS, TOKENS)
            pulls = _next(pull_at, step, left, row, inside, TOKENS)
            others = _next(other_at, step, left, row, inside, TOKENS) if ROTARY else pulls
            for i in tl.static_range(TOKENS):
                here = (step + i < left)[:, None] & inside
                h = _convolved(seen, taps, shift, i, TAPS)
                pull = _pulled(h, pulls[i], others[i], scale, cos, sin, first + step + i, here, place, sign, d // 2,
                               SWISH, UNIT, ROTARY, SCALED)  # fmt: skip
                totals = _added(totals, seen, pull, i, TAPS, BIASED)
                here = (step + i - LATE < left)[:, None] & inside
                if i < LATE:
                    here = here & (step + i >= LATE)
                tl.store(to + i * wide, _whole(late, pull, taps, TAPS), mask=here)
                late = _later(late, pull, taps, TAPS)
            given, to = given + TOKENS * wide, to + TOKENS * wide
            pull_at, other_at = pull_at + TOKENS * row, other_at + TOKENS * row
        if LATE > 0:
            seen = before + _next(given, length, left, wide, inside, LATE)
            pulls = _next(pull_at, length, left, row, inside, LATE)
            others = _next(other_at, length, left, row, inside, LATE) if ROTARY else pulls
            for i in tl.static_range(LATE):
                here = (length + i < left)[:, None] & inside
                h = _convolved(seen, taps, shift, i, TAPS)
                pull = _pulled(h, pulls[i], others[i], scale, cos, sin, first + length + i, here, place, sign, d // 2,
                               SWISH, UNIT, ROTARY, SCALED)  # fmt: skip
                here = (length + i - LATE < left)[:, None] & inside
                tl.store(to + i * wide, _whole(late, pull, taps, TAPS), mask=here)
                late = _later(late, pull, taps, TAPS)
    for i in tl.static_range(KINDS):
        to_sums = sums + ((model * tl.num_programs(0) + program) * convolved + start + head * d + own) * KINDS + i
        tl.store(to_sums, tl.sum(totals[i], axis=0), mask=own < d)
