"""Retention (RetNet; Sun et al. 2023) is linear attention that forgets at a fixed rate per head, with rotary positions.

    S_t = g_h R S_{t-1} + k_t v_t^T;   o_t = S_t^T q_t / sqrt(d_k);   g_h = 1 - 2^(-5-h), h = 0, 1, ...
    y = W_o (RMSNorm(o) * swish(W_g x)),  the norm head by head

R turns the pairs of key channels back by one token. In parallel, queries and keys are turned by their own positions,
which gives the same scores: the state needs no position. State: S, d_k x d_v scalars per head, whatever the length.

The layer is flash-linear-attention's: keys of d_model channels, values of twice as many, RMSNorm where the paper's
formula has GroupNorm, no convolution; `conv=4` is that layer's option, on q, k and v with a SiLU after it.

Differs from the paper's layer:
- 4 heads, not 8 (the paper's models have heads of 256 key channels): at the widths of this benchmark the keys of 8
  would be narrow. So ours forget at four rates, the slowest by half in 177 tokens.
- weights start as torch starts a linear layer, not from Xavier's law with the gain 2^-2.5
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from einops import rearrange
from torch import Tensor, nn

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import ConvolvedHeads, GatedReading
from assay.nn.attention import Finish, HeadProjections, head_dim
from assay.nn.axes import Token, Tokens
from assay.nn.norm import LAYER_EPS, Norm
from assay.nn.recurrence import OuterRecurrence
from assay.nn.rotary import rotate
from assay.nn.scan import Keys, MatrixState, Values


@mixers.register("retention")
@dataclass(frozen=True, kw_only=True)
class Retention(ConvolvedHeads):
    """Linear attention whose heads forget at fixed rates, from 32 tokens on, each twice as long."""

    other_names: ClassVar[tuple[str, ...]] = ("retnet",)
    version: ClassVar[int] = 2
    finish: ClassVar[Finish] = "rotary"

    expand_v: float = 2.0

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return FadingMemory(self.projections(d_model), d_model)

    def key_dim(self, d_model: int) -> int:
        return 2 * head_dim(int(self.expand_k * d_model), 2 * self.num_heads)  # even, since channels rotate in pairs


class FadingMemory(GatedReading, OuterRecurrence, MixerModule):
    log_decay: Tensor

    def __init__(self, heads: HeadProjections, d_model: int) -> None:
        super().__init__(heads)
        self.gate = nn.Linear(d_model, heads.heads * heads.value_dim, bias=False)
        self.norm = Norm(heads.value_dim, eps=LAYER_EPS)
        forgotten = torch.exp2(-5 - torch.arange(heads.heads, dtype=torch.float64))
        # Kept, since a GPU takes as long to start a kernel as to run one on so few numbers, and five make these.
        self.register_buffer("log_decay", torch.log1p(-forgotten).float(), persistent=False)

    def written(self, x: Tokens, q: Keys, k: Keys, v: Values, *beside: Tensor) -> tuple[Tensor, ...]:
        return q, k, v, self.log_decay[:, None].expand(*v.shape[:3])

    def step(self, x: Token, state: tuple[Any, MatrixState]) -> tuple[Token, tuple[Any, MatrixState]]:
        seen, memory = state
        keys = rearrange(memory, "b h k v -> b h v 1 k")
        # A single token is at position 0 and not rotated; instead the state is, by one token back.
        return super().step(x, (seen, rearrange(rotate(keys, start=-1), "b h v 1 k -> b h k v")))
