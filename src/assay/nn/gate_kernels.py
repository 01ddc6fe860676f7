"""Triton kernels make decays and strengths of writing of a projection: each number is read once and written once.

    y = scale * f(x + bias)        f: sigmoid, logsigmoid or softplus

x is (models, sequences, time, heads d), y (models, sequences, heads, time, d), float32, as the scans read it.
"""

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.head_blocks import Channels, Heads, Inner, Kernels, block_of, dense

NUMBERS = 2048
"""Numbers in a block of rows."""
PROGRAMS = 512
"""Programs that share the rows of a model in the backward pass, each with its own sums for the bias."""
Kind = Literal["sigmoid", "logsigmoid", "softplus"]
KINDS: tuple[Kind, ...] = ("sigmoid", "logsigmoid", "softplus")


def per_head(
    x: Float[Tensor, "batch time heads"], bias: Float[Tensor, " heads"] | None, kind: Kind, *, scale: float = 1.0
) -> Float[Tensor, "batch heads time"]:
    return per_channel(x, bias, kind, heads=x.shape[-1], scale=scale).squeeze(-1)


def per_channel(x: Inner, bias: Channels | None, kind: Kind, *, heads: int, scale: float = 1.0) -> Heads:
    own = None if bias is None else bias[None]
    return _Gates.apply(x[None], own, heads, KINDS.index(kind), scale).squeeze(0)


class _Gates(Kernels):
    own = 2

    @staticmethod
    def forward(x: Tensor, bias: Tensor | None, heads: int, kind: int, scale: float) -> Tensor:
        x = dense(x)
        models, sequences, time, channels = x.shape
        y = torch.empty(models, sequences, heads, time, channels // heads, device=x.device)
        width, rows = block_of(channels, numbers=NUMBERS, most=128)
        _gates[(models * sequences, triton.cdiv(time, rows))](
            x, x if bias is None else bias.contiguous(), y, *x.stride()[:3], sequences, time, channels,
            channels // heads, scale, width, rows, kind, bias is not None,
        )  # fmt: skip
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, bias), (heads, kind, scale) = ctx.saved_tensors, ctx.options
        x = dense(x)
        models, sequences, time, channels = x.shape
        width, rows = block_of(channels, numbers=NUMBERS, most=128)
        blocks = triton.cdiv(time, rows)
        programs = min(PROGRAMS, sequences * blocks)
        dx = torch.empty(x.shape, device=x.device, dtype=x.dtype)
        sums = torch.empty(models, channels, programs, device=x.device)  # torch adds up neighbours fast
        _gates_back[(programs, models)](
            x, x if bias is None else bias.contiguous(), gradient.contiguous(), dx, sums, *x.stride()[:3], sequences,
            blocks, time, channels, channels // heads, scale, width, rows, kind, bias is not None,
        )  # fmt: skip
        return dx, None if bias is None else sums.sum(dim=-1).to(bias.dtype), None, None, None


@triton.jit
def softplus(z):
    """Return log(1 + e^z) = max(z, 0) + log(1 + s), s = e^-|z|. 1 + s would lose the digits of a small s, so the
    logarithm is 2 atanh(t) of t = s / (2 + s) <= 1/3, whose series is good to 1e-8 after seven terms."""
    small = tl.exp(-tl.abs(z))
    t = small / (2.0 + small)
    u = t * t
    series = 1.0 / 7 + u * (1.0 / 9 + u * (1.0 / 11 + u / 13.0))
    return tl.maximum(z, 0.0) + 2.0 * t * (1.0 + u * (1.0 / 3 + u * (1.0 / 5 + u * series)))


@triton.jit(do_not_specialize=["sequences", "time"])
def _gates(x, bias, y, x_model, x_sequence, x_row, sequences, time, channels, d, scale, WIDTH: tl.constexpr,
           ROWS: tl.constexpr, KIND: tl.constexpr, BIASED: tl.constexpr):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    model = sequence // sequences
    rows, own = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (rows < time)[:, None] & (own < channels)[None, :]
    x += model * x_model + (sequence % sequences) * x_sequence
    z = tl.load(x + rows[:, None] * x_row + own[None, :], mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        z += tl.load(bias + model * channels + own, mask=own < channels, other=0.0).to(tl.float32)[None, :]
    if KIND == 0:
        found = tl.sigmoid(z)
    elif KIND == 1:
        found = -softplus(-z)
    else:
        found = softplus(z)
    at = sequence * time * channels + (own // d * time * d + own % d)[None, :] + rows[:, None] * d
    tl.store(y + at, scale * found, mask=inside)


@triton.jit(do_not_specialize=["sequences", "blocks", "time"])
def _gates_back(x, bias, gradient, dx, sums, x_model, x_sequence, x_row, sequences, blocks, time, channels, d, scale,
                WIDTH: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr, BIASED: tl.constexpr):  # fmt: skip
    """Compute the gradients of `_gates`. Each of n programs has every n-th block of a model's rows."""
    program, programs, model = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    own = tl.arange(0, WIDTH)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    x += model * x_model
    for block in range(program, sequences * blocks, programs):
        place = (block // blocks).to(tl.int64)
        start = (model * sequences + place) * time * channels
        rows = (block % blocks) * ROWS + tl.arange(0, ROWS)
        inside = (rows < time)[:, None] & (own < channels)[None, :]
        given = x + place * x_sequence + rows[:, None] * x_row + own[None, :]
        z = tl.load(given, mask=inside, other=0.0).to(tl.float32)
        if BIASED:
            z += tl.load(bias + model * channels + own, mask=own < channels, other=0.0).to(tl.float32)[None, :]
        in_heads = start + (own // d * time * d + own % d)[None, :] + rows[:, None] * d
        pull = scale * tl.load(gradient + in_heads, mask=inside, other=0.0).to(tl.float32)
        share = tl.sigmoid(z)
        if KIND == 0:
            pull = pull * share * tl.sigmoid(-z)
        elif KIND == 1:
            pull = pull * tl.sigmoid(-z)
        else:
            pull = pull * share
        tl.store(dx + start + rows[:, None] * channels + own[None, :], pull, mask=inside)
        total += pull
    tl.store(sums + (model * channels + own) * programs + program, tl.sum(total, axis=0), mask=own < channels)
