"""Based (Arora et al. 2024) has, for its global half, linear attention with the exponential to second order.

    w_ts = 1 + a + a^2 / 2,  a = q_t . k_s / sqrt(feature_dim);   o_t = sum_{s <= t} w_ts v_s / sum_{s <= t} w_ts

State: 1 + f + f(f+1)/2 features (153 for f = 16) x (d_v + 1) scalars per head, whatever the length. Its local half, a
sliding window, is a mixer of its own: `hybrid:pattern=sliding_window+based` puts them together.

The layer is the authors', with the one head of their sweeps of recall (their language models have 12 or 16).

Differs from the paper's layer:
- neither the window nor the gated short convolutions that its models alternate with this layer
- each product of two channels is kept once, not twice: the same weights from 153 features, where the authors have 273
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule
from assay.nn.attention import HeadProjections, divided, head_dim, linear_attention, linear_attention_step, with_ones
from assay.nn.axes import Memory, Token, Tokens
from assay.nn.feature_maps import Taylor
from assay.nn.fused import based_kernels, fused

SQUARED = 4096
"""Tokens up to which the kernels compute every weight; longer sequences are cut into chunks, which carry the state."""
FLOOR = 1e-12
"""Added to the denominator, which is at least 1/2: the authors' constant."""


@mixers.register("based")
@dataclass(frozen=True, kw_only=True)
class Based(Mixer):
    """Linear attention with the Taylor expansion of the exponential, and its denominator."""

    version: ClassVar[int] = 2
    ordered: ClassVar[bool] = False

    num_heads: int = 1
    """Heads: parts of the channels, each with a state of its own."""
    feature_dim: int = 16
    """Channels of a head's queries and keys; the state grows with its square."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        n, values = self.num_heads, head_dim(d_model, self.num_heads)
        return TaylorMemory(HeadProjections(d_model, heads=n, kv_heads=n, key_dim=self.feature_dim, value_dim=values))

    def core_state(self, d_model: int, length: int) -> int:
        return self.num_heads * Taylor.features(self.feature_dim) * (head_dim(d_model, self.num_heads) + 1)


class TaylorMemory(MixerModule):
    def __init__(self, heads: HeadProjections) -> None:
        super().__init__()
        self.heads, self.taylor = heads, Taylor(heads.key_dim)

    def forward(self, x: Tokens) -> Tokens:
        if fused("based") and x.shape[1] <= SQUARED:
            q, k, v = self.heads.split(x)
            scale = self.heads.key_dim**-0.5
            return self.heads.merge(based_kernels.taylor_attention(q * scale, k, v, floor=FLOOR))
        q, k, v = self._written(x)
        o = linear_attention(q, k, v, kernel=self.taylor.kernel, features=self.taylor)
        return self.heads.merge(divided(o, floor=FLOOR))

    def init_state(self, batch: int) -> Memory:
        shape = batch, self.heads.heads, self.taylor.dim_out, self.heads.value_dim + 1
        return self.heads.out.weight.new_zeros(shape)

    def step(self, x: Token, state: Memory) -> tuple[Token, Memory]:
        q, k, v = self._written(x[:, None])
        o, state = linear_attention_step(self.taylor(q), self.taylor(k), v, state)
        return self.heads.merge(divided(o, floor=FLOOR)).squeeze(1), state

    def _written(self, x: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.heads.split(x)
        return q * self.heads.key_dim**-0.5, k, with_ones(v)
