"""The mLSTM (xLSTM; Beck et al. 2024) is a gated matrix memory whose input gate is an exponential, without a bound.

    C_t = f_t C_{t-1} + i_t k_t v_t^T;   n_t = f_t n_{t-1} + i_t k_t;   o_t = C_t^T q_t / max(|n_t^T q_t|, 1)
    u, z = W x;   c = swish(conv(u));   q, k sqrt(d), v = block-diagonal maps of c, c, u;   d channels per head
    f = sigmoid(W_f (q, k, v) + b_f);   i = exp(W_i (q, k, v) + b_i);   y = W_o ((LayerNorm(o) + s * c) * swish(z))

A later token can outweigh all earlier ones, however sure those were. So that no exponential overflows, C and n are kept
divided by exp(m), m_t = max(m_{t-1} + log f_t, log i_t), which cancels: 1 becomes exp(-m_t) in the denominator.

State: C, n and m, d (d + 1) + 1 scalars per head, whatever the length, and 3 expand d_model of the convolution.

The layer is the authors' mLSTM block, with the up-projection inside: 4 heads, twice as wide as the model, blocks of 4
channels, a convolution of 4 tokens, with a bias, on what q and k are made of; the gates' weights start at 0, with
forget biases of 3 to 6.

Differs from the paper: other weights start as torch starts a linear layer; the width is not rounded up to a multiple of
64, and where 4 does not divide it, blocks are smaller. A state mixer may follow, where xLSTM has none.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, logsigmoid, silu

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import InnerConvolution, MixerModule
from assay.nn.attention import head_dim, with_ones
from assay.nn.axes import Token, Tokens
from assay.nn.convolution import short_convolution
from assay.nn.fused import Part, Plan, fused, head_kernels, mlstm_kernels, scan_kernels
from assay.nn.joint import ALIGNED
from assay.nn.random import for_shapes_alone
from assay.nn.scan import MatrixState, PerHead, outer_loop, outer_scan

Scale = Float[Tensor, "batch heads"]
State = tuple[Any, MatrixState, Scale]
Inner = Float[Tensor, "batch time inner"]
PUBLISHED_BLOCK = 4


@mixers.register("mlstm")
@dataclass(frozen=True, kw_only=True)
class MLSTM(InnerConvolution):
    """A gated matrix memory whose input gate is an exponential, with a normaliser."""

    conv: int = 4
    """Tokens that the short convolution on what queries and keys are made of sees, as published; 0: none."""
    num_heads: int = 4
    """Heads: parts of the channels, each with a state of its own."""
    expand: float = 2.0
    """Channels that are mixed, as a multiple of d_model."""
    qkv_block: int = PUBLISHED_BLOCK
    """Channels that one block of the maps to queries, keys and values sees."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expand <= 0:
            raise UserError(f"mlstm: expand={self.expand} must be above 0.")

    def check_width(self, d_model: int) -> None:
        """Refuse blocks that do not divide the channels evenly, but for the published 4, smaller where 4 does not."""
        super().check_width(d_model)
        inner = self.num_heads * self.width(d_model)
        if self.qkv_block != PUBLISHED_BLOCK and inner % self.qkv_block:
            fit = ", ".join(str(block) for block in range(1, inner + 1) if inner % block == 0)
            raise UserError(
                f"mlstm: blocks of {self.qkv_block} do not divide the {inner} channels of model_dim={d_model}. "
                f"qkv_block may be {fit}."
            )

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return ExponentialMemory(
            d_model, self.num_heads, width=self.width(d_model), block=self.qkv_block, conv=self.inner_kernel
        )

    def core_state(self, d_model: int, length: int) -> int:
        return self.num_heads * (self.width(d_model) * (self.width(d_model) + 1) + 1)

    def matrices(self, d_model: int) -> tuple[int, int, int]:
        return self.num_heads, self.width(d_model), self.width(d_model)

    def convolved_channels(self, d_model: int) -> int:
        return self.num_heads * self.width(d_model)

    def width(self, d_model: int) -> int:
        """Return the channels of a head."""
        return head_dim(int(self.expand * d_model), self.num_heads)


class ExponentialMemory(MixerModule):
    def __init__(self, d_model: int, heads: int, *, width: int, block: int, conv: int) -> None:
        super().__init__()
        inner = heads * width
        self.heads, self.width, self.swish = heads, width, conv > 0
        self.up, self.out = nn.Linear(d_model, 2 * inner, bias=False), nn.Linear(inner, d_model, bias=False)
        self.convolution = short_convolution(inner, conv, bias=True)
        block = math.gcd(block, inner)  # smaller than asked for only where `check_width` allows it, or is not called
        self.blocks = nn.Parameter(torch.empty(3, inner // block, block, block))
        nn.init.uniform_(self.blocks, -(block**-0.5), block**-0.5)
        self.gates = nn.Linear(3 * inner, 2 * heads)
        self.norm = nn.Parameter(torch.ones(heads, 1, width))
        self.skip = nn.Parameter(torch.ones(inner))
        if not for_shapes_alone():
            nn.init.zeros_(self.gates.weight)
            forget = torch.linspace(3.0, 6.0, heads)
            self.gates.bias = nn.Parameter(torch.cat([forget, 0.1 * torch.randn(heads)]))

    def forward(self, x: Tokens) -> Tokens:
        if fused("mlstm"):
            return self._fused(x)
        u, z = self.up(x).chunk(2, dim=-1)
        convolved = self._after(self.convolution(u))
        q, k, v, log_f, log_i = self._written(convolved, u)
        m, shrunk = shrinking(log_f, log_i)
        o, _ = outer_scan(q, k * torch.exp(log_i - m)[..., None], v, shrunk)
        return self._read(o, m, convolved, z)

    def _fused(self, x: Tokens) -> Tokens:
        """Return the same by kernels. The block-diagonal maps are dense matrices here, which a GPU multiplies faster,
        and the gates, which are linear in q, k and v, stand beside them."""
        inner, size = self.heads * self.width, self.heads * 2
        u, z = (linear(x, weight) for weight in self.up.weight.chunk(2))
        convolved = u
        if self.swish:
            one = Plan((Part(0, 1, inner),), swish=True)
            convolved, _ = head_kernels.heads(u, self.convolution.weight, self.convolution.bias, None, one)
            convolved = rearrange(convolved, "b 1 t d -> b t d")
        to_q, to_k, to_v = self._dense()
        with torch.autocast(x.device.type, enabled=False):
            of_q, of_k, of_v = self.gates.weight.split(inner, dim=1)
            of_convolved, of_u = of_q @ to_q + of_k @ to_k, of_v @ to_v
        empty = to_q.new_zeros(-size % ALIGNED, inner)
        part = Part(0, self.heads, self.width)
        projected = linear(convolved, torch.cat([to_q, to_k, of_convolved, empty]))
        keys = Part(inner, self.heads, self.width, scale=self.width**-0.5)
        q, k, gates = head_kernels.heads(projected, None, None, None, Plan((part, keys), swish=False))
        projected = linear(u, torch.cat([to_v, of_u, empty]))
        v, more = head_kernels.heads(projected, None, None, None, Plan((part,), swish=False))
        m, shrunk, strength = mlstm_kernels.gated(gates, more, self.gates.bias)
        o, n = scan_kernels.normed_scan(q, k, v, shrunk, strength=strength)
        gains = rearrange(self.norm, "h 1 d -> (h d)")
        return self.out(mlstm_kernels.held(o, n, m, convolved, z, gains, self.skip))

    def _dense(self) -> Float[Tensor, "three inner inner"]:
        """Return the maps to queries, keys and values as matrices."""
        count = self.blocks.shape[1]
        eye = torch.eye(count, dtype=self.blocks.dtype, device=self.blocks.device)
        spread = self.blocks[:, :, :, None, :] * eye[:, None, :, None]
        return rearrange(spread, "three n o m i -> three (n o) (m i)")

    def init_state(self, batch: int) -> State:
        memory = self.skip.new_zeros(batch, self.heads, self.width, self.width + 1)
        return self.convolution.init_state(batch), memory, memory[..., 0, 0]

    def step(self, x: Token, state: State) -> tuple[Token, State]:
        seen, memory, before = state
        u, z = self.up(x).chunk(2, dim=-1)
        convolved, seen = self.convolution.step(u, seen)
        convolved = self._after(convolved)[:, None]
        q, k, v, log_f, log_i = self._written(convolved, u[:, None])
        m = torch.maximum(log_f + before[..., None], log_i)
        o, memory = outer_loop(q, k * torch.exp(log_i - m)[..., None], v, log_f + before[..., None] - m, state=memory)
        return self._read(o, m, convolved, z[:, None]).squeeze(1), (seen, memory, m.squeeze(-1))

    def _after(self, convolved: Float[Tensor, "*axes inner"]) -> Float[Tensor, "*axes inner"]:
        return silu(convolved) if self.swish else convolved

    def _written(self, convolved: Inner, u: Inner) -> tuple[Tensor, Tensor, Tensor, PerHead, PerHead]:
        """Return queries, keys, values with a channel of ones for n, and the logarithms of both gates."""
        size = self.blocks.shape[-1]
        sources = (rearrange(source, "b t (n i) -> b t n i", i=size) for source in (convolved, convolved, u))
        q, k, v = (
            rearrange(torch.einsum("btni,noi->btno", source, weight), "b t n o -> b t (n o)")
            for source, weight in zip(sources, self.blocks, strict=True)
        )
        gates = self.gates(torch.cat([q, k, v], dim=-1)).to(self.norm.dtype)
        forget, log_i = rearrange(gates, "b t (two h) -> two b h t", two=2)
        q, k, v = (rearrange(part, "b t (h d) -> b h t d", h=self.heads) for part in (q, k, v))
        return q, k * self.width**-0.5, with_ones(v), logsigmoid(forget), log_i

    def _read(self, o: Float[Tensor, "batch heads time d_and_1"], m: PerHead, convolved: Inner, z: Inner) -> Tokens:
        # 1e-6 as in the authors' code: with m large, exp(-m) vanishes.
        held = o[..., :-1] / (torch.maximum(o[..., -1:].abs(), torch.exp(-m)[..., None]) + 1e-6)
        normed = layer_norm(held.to(self.norm.dtype), (self.width,)) * self.norm
        return self.out((rearrange(normed, "b h t d -> b t (h d)") + self.skip * convolved) * silu(z))


def shrinking(log_f: PerHead, log_i: PerHead) -> tuple[PerHead, PerHead]:
    """Return m, and the log decay of what is kept divided by exp(m)."""
    m = stabiliser(log_f, log_i)
    return m, log_f + (torch.cat([torch.zeros_like(m[..., :1]), m[..., :-1]], dim=-1) - m)


def stabiliser(log_f: PerHead, log_i: PerHead) -> PerHead:
    """Return m_t = max(m_{t-1} + log f_t, log i_t), m_0 = 0, of all tokens at once. Whatever m is it cancels, so it has
    no gradient, and the rounding of a long sum does no harm."""
    total = log_f.detach().cumsum(-1)
    return total + (log_i.detach() - total).cummax(-1).values.clamp(min=0)
