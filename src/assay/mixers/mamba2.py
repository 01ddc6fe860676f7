"""Mamba-2 (Dao and Gu 2024) is a state space model with one data-dependent decay per head.

    u = swish(W_u x), cut into heads;   B = swish(W_B x), C = swish(W_C x), shared by the heads
    dt = softplus(W_t x + c);   S_t = exp(-exp(A) dt_t) S_{t-1} + B_t (dt_t u_t)^T;   o_t = S_t^T C_t + D u_t
    y = W_o RMSNorm(o * swish(W_z x))

State: S, expand * d_model * d_state scalars, whatever the length, and 3 d_model of the convolution.

Differs from the paper:
- one convolution of 4 tokens in front of the layer, x + conv(x), so that the gate and dt see it too; published is one
  on u, B and C alone, with a bias, before the SiLU, from which its recall comes (arXiv 2505.15105)
- 4 heads whatever the width, where the authors' layer has heads of 64 channels; d_state 16, theirs 128
- 1e-6 in the norm, not 1e-5
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule
from assay.nn.attention import head_dim
from assay.nn.axes import Read, Token, Tokens
from assay.nn.norm import Norm
from assay.nn.scan import MatrixState, SelectiveDecay, outer_loop, outer_scan


@mixers.register("mamba2")
@dataclass(frozen=True, kw_only=True)
class Mamba2(Mixer):
    """A state space model with one data-dependent decay per head."""

    conv: int = 4
    """As published; 0 goes without the short convolution."""
    num_heads: int = 4
    expand: float = 2.0
    """Channels that are mixed, as a multiple of d_model."""
    d_state: int = 16
    """Scalars kept per channel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expand <= 0:
            raise UserError(f"mamba2: expand={self.expand} must be above 0.")

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return StateSpace(d_model, self.num_heads, width=self.head_width(d_model), d_state=self.d_state)

    def core_state(self, d_model: int, length: int) -> int:
        return self.num_heads * self.d_state * self.head_width(d_model)

    def head_width(self, d_model: int) -> int:
        return head_dim(int(self.expand * d_model), self.num_heads)


class StateSpace(MixerModule):
    def __init__(self, d_model: int, heads: int, *, width: int, d_state: int) -> None:
        super().__init__()
        self.heads, self.state_shape = heads, (heads, d_state, width)
        self.sizes = [heads * width, heads * width, d_state, d_state]
        self.project = nn.Linear(d_model, sum(self.sizes), bias=False)
        self.decay = SelectiveDecay(d_model, heads)
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = Norm(heads * width)
        self.out = nn.Linear(heads * width, d_model, bias=False)

    def forward(self, x: Tokens) -> Tokens:
        z, u, written = self._written(x)
        o, _ = outer_scan(*written)
        return self._read(o, u, z)

    def init_state(self, batch: int) -> MatrixState:
        return self.out.weight.new_zeros(batch, *self.state_shape)

    def step(self, x: Token, state: MatrixState) -> tuple[Token, MatrixState]:
        z, u, written = self._written(x[:, None])
        o, state = outer_loop(*written, state=state)
        return self._read(o, u, z).squeeze(1), state

    def _written(self, x: Tokens) -> tuple[Float[Tensor, "batch time width"], Read, tuple[Tensor, ...]]:
        """Return the gate, the heads' inputs, and the arguments of the scan."""
        z, *parts = self.project(x).split(self.sizes, dim=-1)
        u, b, c = map(silu, parts)
        u = rearrange(u, "b t (h d) -> b h t d", h=self.heads)
        dt, log_decay = self.decay(x)
        return z, u, (c[:, None], b[:, None], dt[..., None] * u, log_decay)

    def _read(self, o: Read, u: Read, z: Float[Tensor, "batch time width"]) -> Tokens:
        o = rearrange(o + self.skip[:, None, None] * u, "b h t d -> b t (h d)")
        return self.out(self.norm(o.to(self.norm.weight.dtype) * silu(z)))
