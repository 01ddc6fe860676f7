"""Triton kernels compute what stands between the two products of a gated linear unit: each number is read once and
written once.

    y = act(g) * v        g and v: the two halves of the channels; act: silu, sigmoid, or none
    dv = act(g) dy;   dg = act'(g) v dy
"""

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.head_blocks import Kernels, sigmoid

COLUMNS = 1024
"""Channels that a program holds, of one token."""
Act = Literal["none", "sigmoid", "silu"]
ACTS = ("none", "sigmoid", "silu")


def gated_unit(x: Float[Tensor, "*batch both"], act: Act) -> Float[Tensor, "*batch inner"]:
    return _GatedUnit.apply(x[None], ACTS.index(act)).squeeze(0)


class _GatedUnit(Kernels):
    own = 1

    @staticmethod
    def forward(x: Tensor, act: int) -> Tensor:
        x, inner = x.contiguous(), x.shape[-1] // 2
        y = x.new_empty(*x.shape[:-1], inner)
        _unit[(y.numel() // inner, triton.cdiv(inner, COLUMNS))](x, y, inner, act, COLUMNS)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,), (act,) = ctx.saved_tensors, ctx.options
        x, dx, inner = x.contiguous(), torch.empty(x.shape, device=x.device, dtype=x.dtype), x.shape[-1] // 2
        _unit_back[(x.numel() // x.shape[-1], triton.cdiv(inner, COLUMNS))](
            x, gradient.contiguous(), dx, inner, act, COLUMNS
        )
        return dx, None


@triton.jit
def _unit(x, y, inner, ACT: tl.constexpr, COLUMNS: tl.constexpr):
    row, own = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    gates = x + row * 2 * inner + own
    g = tl.load(gates, mask=own < inner, other=0.0).to(tl.float32)
    found = tl.load(gates + inner, mask=own < inner, other=0.0).to(tl.float32)
    if ACT > 0:
        found *= sigmoid(g)
    if ACT != 1:
        found *= g
    tl.store(y + row * inner + own, found, mask=own < inner)


@triton.jit
def _unit_back(x, gradient, dx, inner, ACT: tl.constexpr, COLUMNS: tl.constexpr):
    row, own = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    gates, to = x + row * 2 * inner + own, dx + row * 2 * inner + own
    g = tl.load(gates, mask=own < inner, other=0.0).to(tl.float32)
    v = tl.load(gates + inner, mask=own < inner, other=0.0).to(tl.float32)
    pull = tl.load(gradient + row * inner + own, mask=own < inner, other=0.0).to(tl.float32)
    share, slope = g, 1.0
    if ACT > 0:
        share = sigmoid(g)
        slope = share * (1.0 - share)
    if ACT == 2:
        slope = share * (1.0 + g * (1.0 - share))
        share = share * g
    tl.store(to, pull * v * slope, mask=own < inner)
    tl.store(to + inner, pull * share, mask=own < inner)
