"""Triton kernels make the mLSTM's gates and read its memory: each number is read once and written once.

    f = logsigmoid(x_f + x'_f + bias_f);   i = x_i + x'_i + bias_i;   m_t = max(m_{t-1} + f_t, i_t), m_0 = 0
    log decay m_{t-1} + f_t - m_t <= 0;   strength exp(i_t - m_t)
    h = o / (max(|n|, e^-m) + 1e-6);   y = (gain LayerNorm(h) + skip c) * silu(z)        the norm over a head's channels

x and x' are (models, sequences, time, channels): a forget and an input gate per head, and channels that nothing reads.
o is (models, sequences, heads, time, d), as the scans write it; n, m, decay and strength are (models, sequences, heads,
time), float32; c, z and y are (models, sequences, time, heads d). m has no gradient: whatever it is, it cancels.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.chunk_sizes import chunk_of
from assay.nn.gate_kernels import softplus
from assay.nn.head_blocks import Channels, Heads, Inner, Kernels, block_of, grid, load, normed, sigmoid, sizes

FLOOR = tl.constexpr(1e-6)
EPS = tl.constexpr(1e-5)
"""Added to the variance, as torch's layer_norm does."""
PROGRAMS, REGISTERS = 640, 96
"""Programs of the backward pass, which share its tokens, and registers of their threads at most: with so few, five run
on each multiprocessor, and all of them run at once."""
GATED, GATED_PROGRAMS = 256, 512
"""Tokens of a head whose gates a program finds at once, and programs that share a model's tokens backward."""
PerHead = Float[Tensor, "batch heads time"]


def gated(x: Inner, more: Inner, bias: Channels) -> tuple[PerHead, PerHead, PerHead]:
    """Return m, the log decay and the strength."""
    m, decay, strength = _Gated.apply(x[None], more[None], bias[None])
    return m.squeeze(0), decay.squeeze(0), strength.squeeze(0)


class _Gated(Kernels):
    own = 3

    @staticmethod
    def forward(x: Tensor, more: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, more, bias = x.contiguous(), more.contiguous(), bias.contiguous()
        models, sequences, time, channels = x.shape
        heads = bias.shape[-1] // 2
        m, decay, strength = (torch.empty(models, sequences, heads, time, device=x.device) for _ in range(3))
        _gates[(models * sequences * heads,)](
            x, more, bias, m, decay, strength, sequences, heads, time, channels, chunk_of(time, GATED)
        )
        return m, decay, strength

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        m, _, strength = output
        ctx.save_for_backward(*inputs, strength)
        ctx.mark_non_differentiable(m)
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: None, d_decay: Tensor | None, d_strength: Tensor | None) -> tuple[Tensor, ...]:
        x, more, bias, strength = (x.contiguous() for x in ctx.saved_tensors)
        pulls = (torch.zeros_like(strength) if d is None else d.contiguous() for d in (d_decay, d_strength))
        models, sequences, time, channels = x.shape
        width, rows = block_of(channels)
        blocks = triton.cdiv(time, rows)
        programs = min(GATED_PROGRAMS, sequences * blocks)
        d_x, sums = torch.empty_like(x), torch.empty(*bias.shape, programs, device=x.device)
        _gates_back[(programs, models)](
            x, more, bias, strength, *pulls, d_x, sums, sequences, bias.shape[-1] // 2, time, channels, blocks, width,
            rows,
        )  # fmt: skip
        return d_x, d_x, sums.sum(dim=-1).to(bias.dtype)


def held(o: Heads, n: PerHead, m: PerHead, c: Inner, z: Inner, gain: Channels, skip: Channels) -> Inner:
    return _Held.apply(*(x[None] for x in (o, n, m, c, z, gain, skip))).squeeze(0)


class _Held(Kernels):
    own = 7

    @staticmethod
    def forward(o: Tensor, n: Tensor, m: Tensor, c: Tensor, z: Tensor, gain: Tensor, skip: Tensor) -> Tensor:
        o, n, m, c, z, gain, skip = (x.contiguous() for x in (o, n, m, c, z, gain, skip))
        y = torch.empty_like(z)
        _held[grid(o)](o, n, m, c, z, gain, skip, y, *sizes(o), *block_of(o.shape[-1]))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        o, n, m, c, z, gain, skip = (x.contiguous() for x in ctx.saved_tensors)
        d_o, d_n, d_c, d_z = (torch.empty_like(x) for x in (o, n, c, z))
        models, sequences, heads, time, d = o.shape
        width, rows = block_of(d)
        blocks = triton.cdiv(time, rows)
        programs = min(max(1, PROGRAMS // (models * heads)), sequences * blocks)
        sums = torch.empty(models, 2, heads * d, programs, device=o.device)  # torch adds up neighbours fast
        _held_back[(programs, heads, models)](
            o, n, m, c, z, gain, skip, gradient.contiguous(), d_o, d_n, d_c, d_z, sums, *sizes(o), blocks, width, rows,
            maxnreg=REGISTERS,
        )  # fmt: skip
        d_gain, d_skip = sums.sum(dim=-1).unbind(1)
        return d_o, d_n, None, d_c, d_z, d_gain.to(gain.dtype), d_skip.to(skip.dtype)


@triton.jit
def _then(decay, written, next_decay, next_written):
    """Return what two steps of m <- max(m + decay, written) do, as one step."""
    return decay + next_decay, tl.maximum(written + next_decay, next_written)


@triton.jit
def _logs(x, more, bias, rows, inside, heads, channels):
    """Load the logarithms of a head's gates."""
    forget = load(x, rows * channels, inside) + load(more, rows * channels, inside) + tl.load(bias).to(tl.float32)
    x, more, bias = x + heads, more + heads, bias + heads
    written = load(x, rows * channels, inside) + load(more, rows * channels, inside) + tl.load(bias).to(tl.float32)
    return -softplus(-forget), written


@triton.jit(do_not_specialize=["sequences", "time"])
def _gates(x, more, bias, m, decay, strength, sequences, heads, time, channels, BLOCK: tl.constexpr):
    """Compute m, decay and strength. A program has a head of a sequence. Each token finds m and, with the tokens before
    it once more, m before it."""
    program = tl.program_id(0).to(tl.int64)
    sequence, head = program // heads, program % heads
    x += sequence * time * channels + head
    more += sequence * time * channels + head
    bias += sequence // sequences * 2 * heads + head
    place = tl.arange(0, BLOCK)
    carried = 0.0
    for start in range(0, time, BLOCK):
        rows = start + place
        inside, after = rows < time, (place > 0) & (rows < time)
        log_f, log_i = _logs(x, more, bias, rows, inside, heads, channels)
        sums, largest = tl.associative_scan((log_f, log_i), 0, _then)
        now = tl.maximum(carried + sums, largest)
        earlier_f, earlier_i = _logs(x, more, bias, rows - 1, after, heads, channels)
        earlier_f, earlier_i = tl.where(place > 0, earlier_f, 0.0), tl.where(place > 0, earlier_i, float("-inf"))
        sums, largest = tl.associative_scan((earlier_f, earlier_i), 0, _then)
        before = tl.maximum(carried + sums, largest)
        at = program * time + rows
        tl.store(m + at, now, mask=inside)
        tl.store(decay + at, tl.minimum(before + log_f - now, 0.0), mask=inside)
        tl.store(strength + at, tl.exp(log_i - now), mask=inside)
        carried = tl.sum(tl.where(place == BLOCK - 1, now, 0.0), axis=0)


@triton.jit(do_not_specialize=["sequences", "time", "blocks"])
def _gates_back(x, more, bias, strength, d_decay, d_strength, d_x, sums, sequences, heads, time, channels, blocks,
                WIDTH: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Compute the gradients of `_gates`. Each of n programs has every n-th block of a model's tokens. What nothing
    reads has gradients of 0."""
    program, programs, model = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    own = tl.arange(0, WIDTH)
    forgets, writes = own < heads, (own >= heads) & (own < 2 * heads)
    of_forget = load(bias + model * 2 * heads, own, forgets)[None, :]
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for place in range(program, sequences * blocks, programs):
        sequence = model * sequences + place // blocks
        rows = (place % blocks) * ROWS + tl.arange(0, ROWS)
        there = (rows < time)[:, None]
        first, in_token = sequence * time * channels, rows[:, None] * channels + own[None, :]
        by_head = sequence * heads * time + (own % heads * time)[None, :] + rows[:, None]
        to_f, to_i = there & forgets[None, :], there & writes[None, :]
        forget = load(x + first, in_token, to_f) + load(more + first, in_token, to_f) + of_forget
        pull = load(d_decay, by_head, to_f) * tl.sigmoid(-forget)
        pull += load(d_strength, by_head, to_i) * load(strength, by_head, to_i)
        tl.store(d_x + first + in_token, pull, mask=there & (own < channels)[None, :])
        total += pull
    sums += (model * 2 * heads + own) * programs + program
    tl.store(sums, tl.sum(total, axis=0), mask=own < 2 * heads)


@triton.jit(do_not_specialize=["sequences", "time"])
def _held(o, n, m, c, z, gain, skip, y, sequences, heads, time, d, WIDTH: tl.constexpr,
          ROWS: tl.constexpr):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    sequence, head = program // heads, program % heads
    rows, own = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside, here = (rows < time)[:, None] & (own < d)[None, :], own < d
    first = program * time + rows
    in_token = (sequence * time + rows)[:, None] * (heads * d) + head * d + own[None, :]
    channel = (sequence // sequences * heads + head) * d + own
    read, smallest = load(n, first, rows < time), tl.exp(-load(m, first, rows < time))
    over = 1.0 / (tl.maximum(tl.abs(read), smallest) + FLOOR)
    unit, _ = normed(load(o, first[:, None] * d + own[None, :], inside) * over[:, None], inside, d, EPS)
    found = unit * load(gain, channel, here)[None, :] + load(skip, channel, here)[None, :] * load(c, in_token, inside)
    gate = load(z, in_token, inside)
    tl.store(y + in_token, found * gate * sigmoid(gate), mask=inside)


@triton.jit(do_not_specialize=["sequences", "time", "blocks"])
def _held_back(o, n, m, c, z, gain, skip, gradient, d_o, d_n, d_c, d_z, sums, sequences, heads, time, d, blocks,
               WIDTH: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Compute the gradients of `_held`. Each of n programs has every n-th block of a model's tokens, for one head; its
    sums are added up over rows at the end alone. The norm takes out all of 1 / (max(|n|, e^-m) + 1e-6) but for its EPS,
    and that is what n's gradient is."""
    program, head, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    own = tl.arange(0, WIDTH)
    here = own < d
    channel = (model * heads + head) * d + own
    scale, share = load(gain, channel, here)[None, :], load(skip, channel, here)[None, :]
    to_gain, to_skip = tl.zeros((ROWS, WIDTH), dtype=tl.float32), tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for place in range(program, sequences * blocks, tl.num_programs(0)):
        sequence = model * sequences + place // blocks
        rows = (place % blocks) * ROWS + tl.arange(0, ROWS)
        inside = (rows < time)[:, None] & here[None, :]
        by_head, by_token = (sequence * heads + head) * time, sequence * time * heads * d + head * d
        at, in_token = rows[:, None] * d + own[None, :], rows[:, None] * (heads * d) + own[None, :]
        given, passed = load(o + by_head * d, at, inside), load(c + by_token, in_token, inside)
        gate, pull = load(z + by_token, in_token, inside), load(gradient + by_token, in_token, inside)
        read, smallest = load(n + by_head, rows, rows < time), tl.exp(-load(m + by_head, rows, rows < time))
        over = 1.0 / (tl.maximum(tl.abs(read), smallest) + FLOOR)
        unit, deviation = normed(given * over[:, None], inside, d, EPS)
        open_ = sigmoid(gate)
        swish = gate * open_
        tl.store(d_z + by_token + in_token, pull * (unit * scale + share * passed) * (open_ + swish * (1.0 - open_)),
                 mask=inside)  # fmt: skip
        pull = pull * swish
        tl.store(d_c + by_token + in_token, pull * share, mask=inside)
        to_skip += pull * passed
        to_gain += pull * unit
        pull = pull * scale
        along, mean = tl.sum(pull * unit, axis=1)[:, None] / d, tl.sum(pull, axis=1)[:, None] / d
        pull = over[:, None] * deviation * (pull - mean - unit * along)
        tl.store(d_o + by_head * d + at, pull, mask=inside)
        to_n = tl.sum(along * deviation * deviation, axis=1) * (EPS * d) * over
        to_n = tl.where(tl.abs(read) > smallest, tl.where(read < 0, to_n, -to_n), 0.0)
        tl.store(d_n + by_head + rows, to_n, mask=rows < time)
    sums += (model * 2 * heads * d + head * d + own) * tl.num_programs(0) + program
    tl.store(sums, tl.sum(to_gain, axis=0), mask=here)
    tl.store(sums + heads * d * tl.num_programs(0), tl.sum(to_skip, axis=0), mask=here)
