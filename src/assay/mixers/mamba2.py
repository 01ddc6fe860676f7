"""Mamba-2 (Dao and Gu 2024) is a state space model with one data-dependent decay per head.

    u, B, C = swish(conv(W x) + b);   u is cut into heads, which share B and C
    dt = softplus(W_t x + c);   S_t = exp(-exp(A) dt_t) S_{t-1} + B_t (dt_t u_t)^T;   o_t = S_t^T C_t + D u_t
    y = W_o RMSNorm(o * swish(W_z x))

State: S, expand * d_model * d_state scalars, whatever the length, and 3 (expand * d_model + 2 d_state) of the
convolution.

The layer is the authors': heads of 64 channels, d_state 128, a convolution of 4 tokens on u, B and C with a bias; at
the start, exp(A) is in 1 to 16 and dt in .001 to .1. Zoology's sweeps of recall have a d_state of 8 to 24.

Differs from the paper's layer:
- widths that 64 does not divide have fewer and wider heads, where the authors' layer refuses them; `num_heads` sets
  their number instead
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import InnerConvolution, MixerModule
from assay.nn.attention import head_dim
from assay.nn.axes import Read, Token, Tokens
from assay.nn.convolution import short_convolution
from assay.nn.fused import Part, Plan, fused, head_kernels, mamba2_kernels, scan_kernels
from assay.nn.joint import joint
from assay.nn.norm import LAYER_EPS, Norm, precision
from assay.nn.recurrence import SelectiveDecay
from assay.nn.scan import MatrixState, outer_loop, outer_scan


@mixers.register("mamba2")
@dataclass(frozen=True, kw_only=True)
class Mamba2(InnerConvolution):
    """A state space model with one data-dependent decay per head."""

    other_names: ClassVar[tuple[str, ...]] = ("mamba_2", "mamba-2")
    version: ClassVar[int] = 2

    conv: int = 4
    """Tokens that the short convolution on u, B and C sees, as published; 0: none. Its recall comes from there
    (arXiv 2505.15105)."""
    head_dim: int = 64
    """Channels of a head, at least; fewer where the layer has fewer."""
    num_heads: int = 0
    """Heads; 0: as many as head_dim gives."""
    expand: float = 2.0
    """Channels that are mixed, as a multiple of d_model."""
    d_state: int = 128
    """Scalars kept per channel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expand <= 0:
            raise UserError(f"mamba2: expand={self.expand} must be above 0.")

    def core(self, d_model: int, max_len: int) -> MixerModule:
        heads, width = self.heads(d_model)
        return StateSpace(d_model, heads, width=width, d_state=self.d_state, conv=self.inner_kernel)

    def core_state(self, d_model: int, length: int) -> int:
        return math.prod(self.heads(d_model)) * self.d_state

    def matrices(self, d_model: int) -> tuple[int, int, int]:
        return 1, self.d_state, math.prod(self.heads(d_model))  # heads share their keys: one matrix

    def convolved_channels(self, d_model: int) -> int:
        return math.prod(self.heads(d_model)) + 2 * self.d_state

    def heads(self, d_model: int) -> tuple[int, int]:
        """Return the number of heads and the channels of each."""
        channels = int(self.expand * d_model)
        fit = range(max(1, channels // self.head_dim), 0, -1)
        heads = self.num_heads or next(heads for heads in fit if channels % heads == 0)
        return heads, head_dim(channels, heads)


class StateSpace(MixerModule):
    def __init__(self, d_model: int, heads: int, *, width: int, d_state: int, conv: int) -> None:
        super().__init__()
        self.heads, self.state_shape = heads, (heads, d_state, width)
        self.sizes = [heads * width, d_state, d_state]
        self.project = nn.Linear(d_model, heads * width + sum(self.sizes), bias=False)
        self.convolution = short_convolution(sum(self.sizes), conv, bias=True)
        self.decay = SelectiveDecay(d_model, heads)
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = Norm(heads * width, eps=LAYER_EPS)
        self.out = nn.Linear(heads * width, d_model, bias=False)

    def forward(self, x: Tokens) -> Tokens:
        if fused("mamba2"):
            return self._fused(x)
        z, ubc = self._projected(x)
        u, written = self._written(x, self.convolution(ubc))
        o, _ = outer_scan(*written)
        return self._read(o, u, z)

    def init_state(self, batch: int) -> tuple[Any, MatrixState]:
        return self.convolution.init_state(batch), self.out.weight.new_zeros(batch, *self.state_shape)

    def step(self, x: Token, state: tuple[Any, MatrixState]) -> tuple[Token, tuple[Any, MatrixState]]:
        seen, memory = state
        z, ubc = self._projected(x[:, None])
        convolved, seen = self.convolution.step(ubc.squeeze(1), seen)
        u, written = self._written(x[:, None], convolved[:, None])
        o, memory = outer_loop(*written, state=memory)
        return self._read(o, u, z).squeeze(1), (seen, memory)

    def _fused(self, x: Tokens) -> Tokens:
        """Return the same by kernels: that of the scan takes dt and D too."""
        width, own = self.heads * self.state_shape[2], sum(self.sizes)
        gate, written = self.project.weight.split([self.project.out_features - own, own])
        projected, _ = joint(x, written, self.decay.project.weight)
        shared = (Part(width + i * self.sizes[1], 1, self.sizes[1]) for i in range(2))
        plan = Plan((Part(0, self.heads, self.state_shape[2]), *shared), swish=True)
        u, b, c, rest = head_kernels.heads(projected, self.convolution.weight, self.convolution.bias, None, plan)
        dt, log_decay = self.decay(rest[..., : self.heads])
        o, _ = scan_kernels.outer_scan(c, b, u, log_decay, strength=dt, skip=self.skip)
        read = mamba2_kernels.gate_then_norm(
            o, linear(x, gate), self.norm.weight, eps=LAYER_EPS, dtype=precision(self.norm.weight)
        )
        return self.out(read)

    def _projected(self, x: Tokens) -> tuple[Float[Tensor, "batch time width"], Float[Tensor, "batch time ubc"]]:
        """Return the gate's input, and u, B and C before the convolution."""
        z, ubc = self.project(x).split([self.project.out_features - sum(self.sizes), sum(self.sizes)], dim=-1)
        return z, ubc

    def _written(self, x: Tokens, convolved: Float[Tensor, "batch time ubc"]) -> tuple[Read, tuple[Tensor, ...]]:
        """Return the heads' inputs, and the arguments of the scan."""
        u, b, c = silu(convolved).split(self.sizes, dim=-1)
        u = rearrange(u, "b t (h d) -> b h t d", h=self.heads)
        dt, log_decay = self.decay(self.decay.project(x))
        return u, (c[:, None], b[:, None], dt[..., None] * u, log_decay)

    def _read(self, o: Read, u: Read, z: Float[Tensor, "batch time width"]) -> Tokens:
        o = rearrange(o + self.skip[:, None, None] * u, "b h t d -> b t (h d)")
        return self.out(self.norm(o.to(self.norm.weight.dtype) * silu(z)))
