"""Layers stand around the recurrences of nn/scan.py: in parallel by their scans, token by token by their loops."""

import math
from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from assay.nn.attention import HeadProjections
from assay.nn.axes import Token, Tokens
from assay.nn.fused import fused, gate_kernels
from assay.nn.random import for_shapes_alone
from assay.nn.scan import Keys, MatrixState, PerHead, Values, delta_loop, delta_scan, outer_loop, outer_scan


class Recurrence(nn.Module):
    """Stands around a recurrence: `written` maps tokens, their heads and what the layers of `beside` make of them to
    its arguments, `read` maps its outputs to tokens. The state is what the convolution on the heads has seen, and the
    recurrence's matrix."""

    scan: Callable[..., tuple[Tensor, Tensor]]
    loop: Callable[..., tuple[Tensor, Tensor]]

    def __init__(self, heads: HeadProjections) -> None:
        super().__init__()
        self.heads = heads

    @property
    def beside(self) -> tuple[nn.Linear, ...]:
        """Small layers without a bias, which may run as one product with the heads' projections."""
        return ()

    def written(self, x: Tokens, q: Keys, k: Keys, v: Values, *beside: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError(f"{type(self).__name__}.written")

    def read(self, o: Values, x: Tokens) -> Tokens:
        raise NotImplementedError(f"{type(self).__name__}.read")

    def forward(self, x: Tokens) -> Tokens:
        heads, beside = self.heads.split_beside(x, self.beside)
        o, _ = self.scan(*self.written(x, *heads, *beside))
        return self.read(o, x)

    def init_state(self, batch: int) -> tuple[Any, MatrixState]:
        heads = self.heads
        memory = heads.out.weight.new_zeros(batch, heads.heads, heads.key_dim, heads.value_dim)
        return heads.convolution.init_state(batch), memory

    def step(self, x: Token, state: tuple[Any, MatrixState]) -> tuple[Token, tuple[Any, MatrixState]]:
        token, (seen, memory) = x[:, None], state
        qkv, seen = self.heads.split_next(x, seen)
        beside = (layer(token) for layer in self.beside)
        o, memory = self.loop(*self.written(token, *qkv, *beside), state=memory)
        return self.read(o, token).squeeze(1), (seen, memory)


class OuterRecurrence(Recurrence):
    scan, loop = staticmethod(outer_scan), staticmethod(outer_loop)


class DeltaRecurrence(Recurrence):
    scan, loop = staticmethod(delta_scan), staticmethod(delta_loop)


class SelectiveDecay(nn.Module):
    """A step size and a decay per head that depend on the token (Gu and Dao 2023), initialised as in Mamba-2.

    dt = softplus(W x + b);   log a = -exp(A) dt        dt starts near .001 to .1, exp(A) in `slowest` to 16
    """

    def __init__(self, d_model: int, heads: int, *, slowest: float = 1.0) -> None:
        super().__init__()
        self.project = nn.Linear(d_model, heads, bias=False)
        self.bias, self.log_rate = initial_decay(heads, heads, slowest=slowest)

    def forward(self, projected: Float[Tensor, "batch time heads"]) -> tuple[PerHead, PerHead]:
        """Return dt and log a, given W x."""
        if fused("gates"):
            dt = gate_kernels.per_head(projected, self.bias, "softplus")
        else:
            dt = rearrange(softplus(projected.to(self.bias.dtype) + self.bias), "b t h -> b h t")
        return dt, -self.log_rate.exp()[:, None] * dt


def initial_decay(channels: int, heads: int, *, slowest: float = 1.0) -> tuple[nn.Parameter, nn.Parameter]:
    """Return a bias per channel whose softplus is in .001 to .1, and the logarithm of a rate per head up to 16."""
    bias, rate = torch.empty(channels), torch.empty(heads)
    if not for_shapes_alone():
        dt = bias.uniform_(math.log(1e-3), math.log(1e-1)).exp()
        bias = dt + torch.log(-torch.expm1(-dt))  # the inverse of softplus
        rate = rate.uniform_(slowest, 16).clamp_(min=1e-4).log_()  # 0 has no logarithm
    return nn.Parameter(bias), nn.Parameter(rate)
