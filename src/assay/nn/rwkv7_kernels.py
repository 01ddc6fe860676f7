"""Triton kernels stand around RWKV-7's recurrence: each number is read once and written once.

    `replaced`   rate = sigmoid(z + c);   kappa = k' xi / |k' xi|;   k = k' (1 + (rate - 1) alpha);   a = -rate kappa
    `recalled`   y = (GroupNorm(o) + (r . (rho k)) v) gate,  one group per head

Heads are (models, sequences, heads, time, d), as the scans have them; z, gate and y are (models, sequences, time, heads
d), as the projections have them. Parameters are (models, heads d).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.head_blocks import (
    Channels,
    Heads,
    Inner,
    Kernels,
    block_of,
    grid,
    load,
    normed,
    places,
    shared,
    sigmoid,
    sizes,
    totals,
)


def replaced(k: Heads, z: Inner, bias: Channels, xi: Channels, alpha: Channels) -> tuple[Heads, Heads, Heads]:
    """Return k, a and kappa."""
    k, a, kappa = _Replaced.apply(*(x[None] for x in (k, z, bias, xi, alpha)))
    return k.squeeze(0), a.squeeze(0), kappa.squeeze(0)


def recalled(
    o: Heads, r: Heads, k: Heads, v: Heads, gate: Inner, gain: Channels, shift: Channels, rho: Channels, *, eps: float
) -> Inner:
    return _Recalled.apply(*(x[None] for x in (o, r, k, v, gate, gain, shift, rho)), eps).squeeze(0)


class _Replaced(Kernels):
    own = 5

    @staticmethod
    def forward(k: Tensor, z: Tensor, bias: Tensor, xi: Tensor, alpha: Tensor) -> tuple[Tensor, ...]:
        k, z, bias, xi, alpha = (x.contiguous() for x in (k, z, bias, xi, alpha))
        found = [torch.empty_like(k) for _ in range(3)]
        _replaced[grid(k)](k, z, bias, xi, alpha, *found, *sizes(k), *block_of(k.shape[-1]))
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        k, z, bias, xi, alpha = (x.contiguous() for x in ctx.saved_tensors)
        d_k, d_z = torch.empty_like(k), torch.empty_like(z)
        programs, sums = shared(k, 3)
        _replaced_back[programs](
            k,
            z,
            bias,
            xi,
            alpha,
            *(x.contiguous() for x in gradients),
            d_k,
            d_z,
            sums,
            *sizes(k),
            *block_of(k.shape[-1]),
        )
        return d_k, d_z, *(sum_.to(x.dtype) for sum_, x in zip(totals(sums), (bias, xi, alpha), strict=True))


class _Recalled(Kernels):
    own = 8

    @staticmethod
    def forward(
        o: Tensor, r: Tensor, k: Tensor, v: Tensor, gate: Tensor, gain: Tensor, shift: Tensor, rho: Tensor, eps: float
    ) -> Tensor:
        o, r, k, v, gate, gain, shift, rho = (x.contiguous() for x in (o, r, k, v, gate, gain, shift, rho))
        y = torch.empty_like(gate)
        _recalled[grid(o)](o, r, k, v, gate, gain, shift, rho, y, *sizes(o), eps, *block_of(o.shape[-1]))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = [x.contiguous() for x in ctx.saved_tensors]
        o, gradients = tensors[0], [torch.empty_like(x) for x in tensors[:5]]
        programs, sums = shared(o, 3)
        _recalled_back[programs](
            *tensors, gradient.contiguous(), *gradients, sums, *sizes(o), *ctx.options, *block_of(o.shape[-1])
        )
        to_parameters = (sum_.to(x.dtype) for sum_, x in zip(totals(sums), tensors[5:], strict=True))
        return *gradients, *to_parameters, None


@triton.jit
def _mixed(k, z, xi, alpha):
    """Return rate, kappa, 1 / |k' xi| and what k' is multiplied by."""
    rate = sigmoid(z)
    removed = k * xi
    over = tl.rsqrt(tl.sum(removed * removed, axis=1) + 1e-6)[:, None]
    return rate, removed * over, over, 1.0 + (rate - 1.0) * alpha


@triton.jit(do_not_specialize=["sequences", "time"])
def _replaced(k, z, bias, xi, alpha, k_out, a_out, kappa_out, sequences, heads, time, d, WIDTH: tl.constexpr,
              ROWS: tl.constexpr):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    sequence, head = program // heads, program % heads
    rows, own = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside, at, in_token = places(sequence, head, rows, own, heads, time, d)
    here, channel = own < d, (sequence // sequences * heads + head) * d + own
    given = load(k, at, inside)
    logits = load(z, in_token, inside) + load(bias, channel, here)[None, :]
    rate, kappa, _, share = _mixed(given, logits, load(xi, channel, here)[None, :],
                                   load(alpha, channel, here)[None, :])  # fmt: skip
    tl.store(k_out + at, given * share, mask=inside)
    tl.store(a_out + at, -rate * kappa, mask=inside)
    tl.store(kappa_out + at, kappa, mask=inside)


@triton.jit(do_not_specialize=["sequences", "time"])
def _replaced_back(k, z, bias, xi, alpha, gradient_k, gradient_a, gradient_kappa, d_k, d_z, sums, sequences, heads,
                   time, d, WIDTH: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Compute the gradients of `_replaced`. Each of n programs has every n-th block of a model's tokens, for one
    head."""
    program, head, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    own = tl.arange(0, WIDTH)
    here = own < d
    channel = (model * heads + head) * d + own
    c, erasing = load(bias, channel, here)[None, :], load(xi, channel, here)[None, :]
    replacing = load(alpha, channel, here)[None, :]
    # Sums are added up over rows at the end alone, where warps wait for each other.
    to_bias, to_xi = tl.zeros((ROWS, WIDTH), dtype=tl.float32), tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    to_alpha = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    blocks = tl.cdiv(time, ROWS)
    for place in range(program, sequences * blocks, tl.num_programs(0)):
        sequence = model * sequences + place // blocks
        rows = (place % blocks) * ROWS + tl.arange(0, ROWS)
        inside, at, in_token = places(sequence, head, rows, own, heads, time, d)
        given = load(k, at, inside)
        rate, kappa, over, share = _mixed(given, load(z, in_token, inside) + c, erasing, replacing)
        pull_k, pull_a = load(gradient_k, at, inside), load(gradient_a, at, inside)
        pull = load(gradient_kappa, at, inside) - rate * pull_a
        pull = over * (pull - kappa * tl.sum(pull * kappa, axis=1)[:, None])
        pull_z = (pull_k * given * replacing - kappa * pull_a) * rate * (1.0 - rate)
        tl.store(d_k + at, pull_k * share + pull * erasing, mask=inside)
        tl.store(d_z + in_token, pull_z, mask=inside)
        to_bias += pull_z
        to_xi += tl.where(inside, pull * given, 0.0)
        to_alpha += pull_k * given * (rate - 1.0)
    sums += (model * tl.num_programs(0) + program) * 3 * heads * d + head * d + own
    tl.store(sums, tl.sum(to_bias, axis=0), mask=here)
    tl.store(sums + heads * d, tl.sum(to_xi, axis=0), mask=here)
    tl.store(sums + 2 * heads * d, tl.sum(to_alpha, axis=0), mask=here)


@triton.jit(do_not_specialize=["sequences", "time"])
def _recalled(o, r, k, v, gate, gain, shift, rho, y, sequences, heads, time, d, eps, WIDTH: tl.constexpr,
              ROWS: tl.constexpr):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    sequence, head = program // heads, program % heads
    rows, own = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside, at, in_token = places(sequence, head, rows, own, heads, time, d)
    here, channel = own < d, (sequence // sequences * heads + head) * d + own
    unit, _ = normed(load(o, at, inside), inside, d, eps)
    weights = load(r, at, inside) * load(k, at, inside) * load(rho, channel, here)[None, :]
    found = unit * load(gain, channel, here)[None, :] + load(shift, channel, here)[None, :]
    found += tl.sum(weights, axis=1)[:, None] * load(v, at, inside)
    tl.store(y + in_token, found * load(gate, in_token, inside), mask=inside)


@triton.jit(do_not_specialize=["sequences", "time"])
def _recalled_back(o, r, k, v, gate, gain, shift, rho, gradient, d_o, d_r, d_k, d_v, d_gate, sums, sequences, heads,
                   time, d, eps, WIDTH: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Compute the gradients of `_recalled`. Each of n programs has every n-th block of a model's tokens, for one
    head."""
    program, head, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    own = tl.arange(0, WIDTH)
    here = own < d
    channel = (model * heads + head) * d + own
    scale, offset = load(gain, channel, here)[None, :], load(shift, channel, here)[None, :]
    bonus = load(rho, channel, here)[None, :]
    to_gain, to_shift = tl.zeros((ROWS, WIDTH), dtype=tl.float32), tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    to_rho = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    blocks = tl.cdiv(time, ROWS)
    for place in range(program, sequences * blocks, tl.num_programs(0)):
        sequence = model * sequences + place // blocks
        rows = (place % blocks) * ROWS + tl.arange(0, ROWS)
        inside, at, in_token = places(sequence, head, rows, own, heads, time, d)
        read, pull, gated = load(o, at, inside), load(gradient, in_token, inside), load(gate, in_token, inside)
        queries, keys, values = load(r, at, inside), load(k, at, inside), load(v, at, inside)
        unit, over = normed(read, inside, d, eps)
        present = tl.sum(queries * keys * bonus, axis=1)[:, None]
        tl.store(d_gate + in_token, pull * (unit * scale + offset + present * values), mask=inside)
        pull = pull * gated
        tl.store(d_v + at, pull * present, mask=inside)
        d_present = tl.sum(pull * values, axis=1)[:, None]
        tl.store(d_r + at, d_present * keys * bonus, mask=inside)
        tl.store(d_k + at, d_present * queries * bonus, mask=inside)
        to_rho += d_present * queries * keys
        to_gain += pull * unit
        to_shift += pull
        pull = pull * scale
        along, mean = tl.sum(pull * unit, axis=1)[:, None] / d, tl.sum(pull, axis=1)[:, None] / d
        tl.store(d_o + at, over * (pull - mean - unit * along), mask=inside)
    sums += (model * tl.num_programs(0) + program) * 3 * heads * d + head * d + own
    tl.store(sums, tl.sum(to_gain, axis=0), mask=here)
    tl.store(sums + heads * d, tl.sum(to_shift, axis=0), mask=here)
    tl.store(sums + 2 * heads * d, tl.sum(to_rho, axis=0), mask=here)
