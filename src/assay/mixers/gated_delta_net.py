"""Gated DeltaNet (Yang et al. 2025) has the delta rule for one key, and a decay for all of them at once.

    S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T;   o_t = S_t^T q_t / sqrt(d_k)     per head
    q, k, v = swish(conv(W x)), q and k then of length 1;   b_t = beta_max * sigmoid(W_b x_t)
    a_t = exp(-exp(A) softplus(W_a x_t + c));   y = W_o (RMSNorm(o) * swish(W_g x))

State: S, d_k x d_v scalars per head, whatever the length, and 9 d_model of the convolution.

Differs from the paper:
- the widths are those of delta_net, so that the two differ by the decay and the gate alone: keys and values of d_model
  channels in 4 heads; published are keys of .75 d_model and values twice as wide (expand_v=2), in heads of 256 channels
- exp(A) starts in 1 to 16, the authors' in 0 to 16; 1e-6 in the norm, not 1e-5
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import DeltaHeads, DeltaMemory, GatedReading
from assay.nn.attention import HeadProjections
from assay.nn.axes import Tokens
from assay.nn.norm import Norm
from assay.nn.recurrence import SelectiveDecay
from assay.nn.scan import Keys, Values


@mixers.register("gated_delta_net")
@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet(DeltaHeads):
    """DeltaNet that can also forget everything at once, by a data-dependent decay per head."""

    version: ClassVar[int] = 2

    conv: int = 4
    """As published; 0 goes without the short convolution."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return GatedOverwritingMemory(self.projections(d_model), d_model, beta_max=self.beta_max)


class GatedOverwritingMemory(GatedReading, DeltaMemory):
    def __init__(self, heads: HeadProjections, d_model: int, *, beta_max: float) -> None:
        super().__init__(heads)
        self.beta_max = beta_max
        self.beta = nn.Linear(d_model, heads.heads, bias=False)
        self.decay = SelectiveDecay(d_model, heads.heads)
        self.gate = nn.Linear(d_model, heads.heads * heads.value_dim, bias=False)
        self.norm = Norm(heads.value_dim)

    def written(self, x: Tokens, q: Keys, k: Keys, v: Values) -> tuple[Tensor, ...]:
        _, log_decay = self.decay(x)
        return *super().written(x, q, k, v), log_decay
