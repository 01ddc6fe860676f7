"""Gated DeltaNet (Yang et al. 2025) has the delta rule for one key, and a decay for all of them at once.

    S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T;   o_t = S_t^T q_t / sqrt(d_k)     per head
    q, k, v = swish(conv(W x)), q and k then of length 1;   b_t = beta_max * sigmoid(W_b x_t)
    a_t = exp(-exp(A) softplus(W_a x_t + c));   y = W_o (RMSNorm(o) * swish(W_g x))

State: S, d_k x d_v scalars per head, whatever the length, and 12 d_model of the convolution.

The layer is the authors': values twice as wide as keys, a convolution of 4 tokens on q, k and v, exp(A) from 0 to 16 at
the start. Zoology's sweeps of recall leave out the gate: `use_gate=False:num_heads=2`.

Differs from the paper's layer:
- keys of d_model channels and values of 2 d_model, as in zoology; with the gate the authors' models have .75 and 1.5,
  which is `expand_k=0.75:expand_v=1.5`
- 4 heads whatever the width, where those models have heads of 256 key channels
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import DeltaHeads, DeltaMemory, GatedReading
from assay.nn.attention import HeadProjections
from assay.nn.axes import Tokens
from assay.nn.norm import LAYER_EPS, Norm
from assay.nn.recurrence import SelectiveDecay
from assay.nn.scan import Keys, Values


@mixers.register("gated_delta_net")
@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet(DeltaHeads):
    """DeltaNet that can also forget everything at once, by a data-dependent decay per head."""

    other_names: ClassVar[tuple[str, ...]] = ("gated_deltanet", "gdn")
    version: ClassVar[int] = 2

    expand_v: float = 2.0
    use_gate: bool = True
    """Multiply what is read by swish(W_g x)."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        heads = self.projections(d_model)
        return GatedOverwritingMemory(heads, d_model, beta_max=self.beta_max, use_gate=self.use_gate)


class GatedOverwritingMemory(GatedReading, DeltaMemory):
    def __init__(self, heads: HeadProjections, d_model: int, *, beta_max: float, use_gate: bool) -> None:
        super().__init__(heads, d_model, beta_max=beta_max)
        self.decay = SelectiveDecay(d_model, heads.heads, slowest=0.0)
        self.gate = nn.Linear(d_model, heads.heads * heads.value_dim, bias=False) if use_gate else None
        self.norm = Norm(heads.value_dim, eps=LAYER_EPS)

    @property
    def beside(self) -> tuple[nn.Linear, ...]:
        return self.decay.project, self.beta

    def written(self, x: Tokens, q: Keys, k: Keys, v: Values, *beside: Tensor) -> tuple[Tensor, ...]:
        decay, beta = beside
        _, log_decay = self.decay(decay)
        return *super().written(x, q, k, v, beta), log_decay
