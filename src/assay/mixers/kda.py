"""Kimi Delta Attention (Kimi Linear; Kimi Team 2025) has the delta rule, and a decay for every key channel.

    S <- diag(a_t) S_{t-1};   S_t = S + b_t k_t (v_t - S^T k_t)^T;   o_t = S_t^T q_t / sqrt(d_k)          per head
    q, k, v = swish(conv(W x)), q and k then of length 1;   b_t = beta_max * sigmoid(W_b x_t)
    log a_t = -exp(A) softplus(W_2 W_1 x_t + c);   y = W_o (RMSNorm(o) * sigmoid(W_4 W_3 x + e))

It is gated_delta_net with a decay per channel for its decay per head.
State: S, d_k x d_v scalars per head, whatever the length, and 9 d_model of the convolution.

The layer is the authors': keys and values of d_model channels, a convolution of 4 tokens on q, k and v, W_2 W_1 and
W_4 W_3 of a head's width for a rank; at the start, exp(A) is in 1 to 16 and softplus(c) in .001 to .1.

Differs from the paper: 4 heads whatever the width, where its models have heads of 128 channels. Those models have a
layer of attention after every third of these: `hybrid:pattern=kda+kda+kda+attention`.
"""

from dataclasses import dataclass
from typing import cast

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import DeltaHeads, DeltaMemory
from assay.nn.attention import HeadProjections
from assay.nn.axes import Read, Tokens
from assay.nn.fused import fused, gate_kernels
from assay.nn.norm import LAYER_EPS, Norm
from assay.nn.recurrence import initial_decay
from assay.nn.scan import Keys, PerChannel, Values


@mixers.register("kda")
@dataclass(frozen=True, kw_only=True)
class KDA(DeltaHeads):
    """The delta rule with a data-dependent decay for every key channel."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return ChannelDecayMemory(self.projections(d_model), d_model, beta_max=self.beta_max)


class ChannelDecayMemory(DeltaMemory):
    def __init__(self, heads: HeadProjections, d_model: int, *, beta_max: float) -> None:
        super().__init__(heads, d_model, beta_max=beta_max)
        rank = heads.value_dim
        self.decay = ChannelDecay(d_model, heads.heads, heads.heads * heads.key_dim, rank=rank)
        self.gate = nn.Sequential(nn.Linear(d_model, rank, bias=False), nn.Linear(rank, heads.heads * rank))
        self.norm = Norm(heads.value_dim, eps=LAYER_EPS)

    @property
    def beside(self) -> tuple[nn.Linear, ...]:
        return self.beta, cast(nn.Linear, self.decay.project[0])

    def written(self, x: Tokens, q: Keys, k: Keys, v: Values, *beside: Tensor) -> tuple[Tensor, ...]:
        beta, low = beside
        return *super().written(x, q, k, v, beta), self.decay(low)

    def read(self, o: Read, x: Tokens) -> Tokens:
        return self.heads.out(self.norm.of_heads(o, self.gate(x), act="sigmoid"))


class ChannelDecay(nn.Module):
    """Computes log a = -exp(A) softplus(W_2 W_1 x + c), A per head; softplus(c) starts in .001 to .1, exp(A) in 1 to
    16."""

    def __init__(self, d_model: int, heads: int, channels: int, *, rank: int) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(d_model, rank, bias=False), nn.Linear(rank, channels, bias=False))
        self.bias, self.log_rate = initial_decay(channels, heads)

    def forward(self, low: Float[Tensor, "batch time rank"]) -> PerChannel:
        """Return log a, given W_1 x."""
        projected, heads = self.project[1](low), len(self.log_rate)
        if fused("gates"):
            dt = gate_kernels.per_channel(projected, self.bias, "softplus", heads=heads)
        else:
            dt = rearrange(softplus(projected.to(self.bias.dtype) + self.bias), "b t (h d) -> b h t d", h=heads)
        return -self.log_rate.exp()[:, None, None] * dt
