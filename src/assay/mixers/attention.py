"""Causal softmax attention (Vaswani et al. 2017) lets each token read every token before it, and itself.

    o_t = sum_{s <= t} softmax_s(q_t . k_s / sqrt(d)) v_s        per head, d = d_model / num_heads

State: every key and value so far, 2 * num_kv_heads * d scalars per token. Without positions it knows the order of
tokens only through the mask; positions learned per token belong to the sequence model's embedding. `num_kv_heads` gives
grouped queries (Ainslie et al. 2023).

Differs from the paper: no dropout; no sinusoids, but positions learned in the embedding, or rotary ones (Su et al.
2021). Groups of queries are trained from the start, not averaged out of a model with a key per head.
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import SoftmaxHeads
from assay.nn.attention import HeadProjections, causal_attention
from assay.nn.axes import Token, Tokens
from assay.nn.rotary import rotate

Cache = tuple[Tensor, Tensor]


@mixers.register("attention")
@dataclass(frozen=True, kw_only=True)
class Attention(SoftmaxHeads):
    """Causal softmax attention; its state grows with the sequence."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return CachedAttention(self.projections(d_model), rotary=self.rotary)

    def core_state(self, d_model: int, length: int) -> int:
        return self.cache_size(d_model, length)


class CachedAttention(MixerModule):
    def __init__(self, heads: HeadProjections, *, rotary: bool) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary

    def forward(self, x: Tokens) -> Tokens:
        q, k, v = self.heads.split_turned(x) if self.rotary else self.heads.split(x)
        return self.heads.merge(causal_attention(q, k, v))

    def init_state(self, batch: int) -> Cache:
        return self.heads.empty_cache(batch)

    def step(self, x: Token, state: Cache) -> tuple[Token, Cache]:
        q, k, v = self.heads.split(x[:, None])
        keys, values = state
        if self.rotary:  # keys are cached after rotation, so the cache's length is the position
            q, k = (rotate(part, start=keys.shape[2]) for part in (q, k))
        keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        y = self.heads.merge(causal_attention(q, keys, values))
        return rearrange(y, "b 1 d -> b d"), (keys, values)
