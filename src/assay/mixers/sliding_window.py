"""A sliding window (Beltagy et al. 2020) is softmax attention to the last `window` tokens, the present one included.

    o_t = sum_{t - window < s <= t} softmax_s(q_t . k_s / sqrt(d)) v_s        per head, d = d_model / num_heads

State: the keys and values of the last window - 1 tokens, all that the next token will see besides itself.

Differs from the paper: one window of 16 tokens for all heads and layers, where its language models have windows that
grow with depth, and are dilated in some heads of the upper layers; no tokens with global attention.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from torch import Tensor

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import SoftmaxHeads
from assay.nn.attention import HeadProjections, causal_attention, window_attention
from assay.nn.axes import Token, Tokens
from assay.nn.rotary import rotate

Cache = tuple[Tensor, Tensor]


@mixers.register("sliding_window")
@dataclass(frozen=True, kw_only=True)
class SlidingWindow(SoftmaxHeads):
    """Softmax attention to the last `window` tokens."""

    other_names: ClassVar[tuple[str, ...]] = ("swa",)

    window: int = 16
    """Tokens in sight, the present one included."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return WindowAttention(self.projections(d_model), window=self.window, rotary=self.rotary)

    def core_state(self, d_model: int, length: int) -> int:
        return self.cache_size(d_model, min(length, self.window - 1))


class WindowAttention(MixerModule):
    def __init__(self, heads: HeadProjections, *, window: int, rotary: bool) -> None:
        super().__init__()
        self.heads, self.window, self.rotary = heads, window, rotary

    def forward(self, x: Tokens) -> Tokens:
        o = window_attention(*self.heads.split(x), window=self.window, rotary=self.rotary)
        return self.heads.merge(o)

    def init_state(self, batch: int) -> Cache:
        return self.heads.empty_cache(batch)

    def step(self, x: Token, state: Cache) -> tuple[Token, Cache]:
        q, k, v = self.heads.split(x[:, None])
        keys, values = (torch.cat([old, new], dim=2) for old, new in zip(state, (k, v), strict=True))
        first = max(0, keys.shape[2] - self.window + 1)
        state = keys[:, :, first:], values[:, :, first:]
        if self.rotary:  # keys are cached unrotated and rotated by their place in the window: only distances matter
            q, keys = rotate(q, start=keys.shape[2] - 1), rotate(keys)
        y = self.heads.merge(causal_attention(q, keys, values))
        return rearrange(y, "b 1 d -> b d"), state
