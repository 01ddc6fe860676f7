"""Triton kernels compute two operations of many small models at once; imported on CUDA alone.

Banks are bound by memory. torch's own kernels move a tensor of logits ten times for its cross entropy, and normalise
rows of 128 numbers at a fifth of the memory's speed; these read and write each number once, and compute in float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

COLUMNS = 4096
"""Logits that a program holds at a time."""
NUMBERS = 4096
"""Numbers in a block of rows to normalise."""
PROGRAMS = 2048
"""Programs that share the rows of all models in the backward pass, each with its own sums for the gains."""


def cross_entropy(logits: Float[Tensor, "*rows outputs"], targets: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """Return -log softmax(logits)[target], in float32."""
    losses = _CrossEntropy.apply(logits.flatten(0, -2), targets.flatten())
    return losses.view(targets.shape)


def rms_norm(
    x: Float[Tensor, "models *rows d"], gains: Float[Tensor, "models d"], eps: float
) -> Float[Tensor, "models *rows d"]:
    """Return gain x / sqrt(mean(x^2) + eps) over the last axis, each model with its own gains."""
    return _RmsNorm.apply(x, gains, eps)


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        logits = logits.contiguous()
        losses, sums = (torch.empty(len(logits), device=logits.device) for _ in range(2))
        _losses[(len(logits),)](logits, targets, losses, sums, logits.shape[1], COLUMNS)
        ctx.save_for_backward(logits, targets, sums)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, targets, sums = ctx.saved_tensors
        d_logits = torch.empty_like(logits)
        _losses_backward[(len(logits),)](
            logits, targets, sums, gradient.contiguous(), d_logits, logits.shape[1], COLUMNS
        )
        return d_logits, None


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gains: Tensor, eps: float) -> Tensor:
        x, gains = x.contiguous(), gains.contiguous()
        d = x.shape[-1]
        count, rows = x.numel() // d, max(1, NUMBERS // triton.next_power_of_2(d))
        y, scale = torch.empty_like(x), torch.empty(count, device=x.device)
        sizes = (count // len(gains), d, triton.next_power_of_2(d), rows)
        _norm[(triton.cdiv(count, rows),)](x, gains, y, scale, eps, count, *sizes)
        ctx.save_for_backward(x, gains, scale)
        ctx.sizes = sizes
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gains, scale = ctx.saved_tensors
        per_model, d, _, rows = ctx.sizes
        programs = max(1, min(PROGRAMS // len(gains), triton.cdiv(per_model, rows)))
        d_x = torch.empty_like(x)
        sums = torch.empty(len(gains), programs, d, device=x.device)
        grid = (len(gains), programs)
        _norm_backward[grid](gradient.contiguous(), x, gains, scale, d_x, sums, *ctx.sizes)
        return d_x, sums.sum(dim=1).to(gains.dtype), None


@triton.jit
def _losses(logits, targets, losses, sums, outputs, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest, total = -float("inf"), 0.0
    for start in range(0, outputs, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        z = tl.load(logits + row * outputs + columns, mask=columns < outputs, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(z))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(z - larger))
        largest = larger
    log_sum = largest + tl.log(total)
    target = tl.load(targets + row)
    tl.store(sums + row, log_sum)
    tl.store(losses + row, log_sum - tl.load(logits + row * outputs + target).to(tl.float32))


@triton.jit
def _losses_backward(logits, targets, sums, gradient, d_logits, outputs, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target, log_sum, weight = tl.load(targets + row), tl.load(sums + row), tl.load(gradient + row)
    for start in range(0, outputs, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        z = tl.load(logits + row * outputs + columns, mask=columns < outputs, other=-float("inf")).to(tl.float32)
        change = (tl.exp(z - log_sum) - tl.where(columns == target, 1.0, 0.0)) * weight
        tl.store(d_logits + row * outputs + columns, change, mask=columns < outputs)


@triton.jit
def _norm(x, gains, y, scale, eps, count, per_model, d, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = (rows < count)[:, None] & (columns < d)[None, :]
    at = rows[:, None] * d + columns[None, :]
    given = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    over = 1.0 / tl.sqrt(tl.sum(given * given, axis=1) / d + eps)
    gain = tl.load(gains + (rows // per_model)[:, None] * d + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, given * over[:, None] * gain, mask=inside)
    tl.store(scale + rows, over, mask=rows < count)


@triton.jit
def _norm_backward(gradient, x, gains, scale, d_x, sums, per_model, d, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    model, program, programs = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    columns = tl.arange(0, WIDTH)
    gain = tl.load(gains + model * d + columns, mask=columns < d, other=0.0).to(tl.float32)
    total = tl.zeros((WIDTH,), dtype=tl.float32)
    for start in range(program * ROWS, per_model, programs * ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < per_model)[:, None] & (columns < d)[None, :]
        at = (model * per_model + rows)[:, None] * d + columns[None, :]
        over = tl.load(scale + model * per_model + rows, mask=rows < per_model, other=0.0)[:, None]
        unit = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * over
        pull = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(pull * unit, axis=0)
        pull = pull * gain[None, :]
        along = tl.sum(pull * unit, axis=1)[:, None] / d
        tl.store(d_x + at, (pull - unit * along) * over, mask=inside)
    tl.store(sums + (model * programs + program) * d + columns, total, mask=columns < d)
