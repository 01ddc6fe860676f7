"""One layer of softmax self-attention (Vaswani et al. 2017) is read at the last token: the spec's SelfAttn.

    h_t = W_e x_t;   o = W_o concat over heads of sum_t softmax_t(q_L . k_t / sqrt(d)) v_t
    code = ReLU(W LayerNorm(o))

No positions, no residual, no mask: the last token sees every token. 25,304 parameters at d_in 24, d_code 32.

As in the spec.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from assay.encoders import encoders
from assay.encoders.base import Encoder


@encoders.register("self_attn")
@dataclass(frozen=True, kw_only=True)
class SelfAttn(Encoder):
    """Softmax self-attention without positions, read at the last token."""

    aliases: ClassVar[tuple[str, ...]] = ("SelfAttn",)

    width: int = 72
    """Channels of the vectors that attention works on, over all heads."""
    heads: int = 8
    """Parts of width / heads channels, each of which attends by itself."""

    def build(self, length: int, d_in: int, d_code: int) -> nn.Module:
        return LastTokenAttention(d_in, d_code, width=self.width, heads=self.heads)


class LastTokenAttention(nn.Module):
    """nn.MultiheadAttention between two linear maps, with its weights' layout and initialisation. Only the last query
    is computed, since only its answer is read: a third of the time at length 32, the same output."""

    def __init__(self, d_in: int, d_code: int, *, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # Widths that the heads do not divide are allowed, so that a parameter budget can be met.
        inner = heads * max(1, width // heads)
        self.embed = nn.Linear(d_in, width)
        self.qkv = nn.Linear(width, 3 * inner)
        self.out = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)
        self.code = nn.Linear(width, d_code)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Float[Tensor, "batch time d_in"]) -> Float[Tensor, "batch d_code"]:
        h = self.embed(x)
        inner = self.out.in_features
        q = linear(h[:, -1], self.qkv.weight[:inner], self.qkv.bias[:inner])
        kv = linear(h, self.qkv.weight[inner:], self.qkv.bias[inner:])
        q = rearrange(q, "b (h d) -> b h d", h=self.heads)
        k, v = rearrange(kv, "b t (two h d) -> two b h t d", two=2, h=self.heads)
        scores = torch.einsum("bhd,bhtd->bht", q, k) / math.sqrt(q.shape[-1])
        read = torch.einsum("bht,bhtd->bhd", torch.softmax(scores, dim=-1), v)
        o = self.norm(self.out(rearrange(read, "b h d -> b (h d)")))
        return torch.relu(self.code(o))
