"""Gated linear attention (Yang et al. 2023) is linear attention that forgets, each key channel at its own rate.

    S_t = diag(a_t) S_{t-1} + k_t v_t^T;   o_t = S_t^T q_t / sqrt(d_k)                  per head
    log a_t = logsigmoid(W_2 W_1 x_t + b) / 16;   y = W_o (RMSNorm(o) * swish(W_g x))

State: S, d_k x d_v scalars per head, whatever the length.

The layer is the authors': keys of d_model / 2 channels, values of d_model, the gate's rank and divisor, RMSNorm where
the paper's formula has LayerNorm, no convolution; `conv=4` is their option, on q, k and v with a SiLU after it.

Differs from the paper's layer:
- 2 heads, as in zoology's sweeps of recall, not 4: at the widths of this benchmark the keys of 4 would be narrow
- weights start as torch starts a linear layer
"""

from dataclasses import dataclass
from typing import ClassVar, cast

from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import ConvolvedHeads, GatedReading
from assay.nn.attention import Finish, HeadProjections
from assay.nn.axes import Tokens
from assay.nn.fused import fused, gate_kernels
from assay.nn.norm import LAYER_EPS, Norm
from assay.nn.recurrence import OuterRecurrence
from assay.nn.scan import Keys, Values


@mixers.register("gated_linear_attn")
@dataclass(frozen=True, kw_only=True)
class GatedLinearAttn(ConvolvedHeads):
    """Every key channel of this linear attention forgets at its own, data-dependent rate."""

    other_names: ClassVar[tuple[str, ...]] = ("gla",)
    version: ClassVar[int] = 3
    finish: ClassVar[Finish] = "scaled"

    num_heads: int = 2
    expand_k: float = 0.5
    gate_normalizer: float = 16.0
    """Divides the log decay, so that a new model remembers for about 20 tokens instead of 1."""
    gate_low_rank: int = 16
    """Channels that a token is narrowed to before the decays are made of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.gate_normalizer, self.gate_low_rank) <= 0:
            raise UserError(f"{self}: gate_normalizer and gate_low_rank must be above 0.")

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return GatedMemory(self.projections(d_model), d_model, rank=self.gate_low_rank, normalizer=self.gate_normalizer)


class GatedMemory(GatedReading, OuterRecurrence, MixerModule):
    def __init__(self, heads: HeadProjections, d_model: int, *, rank: int, normalizer: float) -> None:
        super().__init__(heads)
        self.normalizer = normalizer
        decays = nn.Linear(rank, heads.heads * heads.key_dim)
        self.decay = nn.Sequential(nn.Linear(d_model, rank, bias=False), decays)
        self.gate = nn.Linear(d_model, heads.heads * heads.value_dim, bias=False)
        self.norm = Norm(heads.value_dim, eps=LAYER_EPS)

    @property
    def beside(self) -> tuple[nn.Linear, ...]:
        return (cast(nn.Linear, self.decay[0]),)

    def written(self, x: Tokens, q: Keys, k: Keys, v: Values, *beside: Tensor) -> tuple[Tensor, ...]:
        if fused("gates"):
            up = cast(nn.Linear, self.decay[1])
            shares = {"heads": self.heads.heads, "scale": 1 / self.normalizer}
            return q, k, v, gate_kernels.per_channel(linear(beside[0], up.weight), up.bias, "logsigmoid", **shares)
        # In the weights' precision, also under autocast: bf16 has no decay between .996 and 1.
        decay = logsigmoid(self.decay[1](beside[0]).to(self.norm.weight.dtype)) / self.normalizer
        return q, k, v, rearrange(decay, "b t (h d) -> b h t d", h=self.heads.heads)
