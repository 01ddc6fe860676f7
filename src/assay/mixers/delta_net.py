"""DeltaNet (Schlag et al. 2021; in parallel: Yang et al. 2024) erases what a key held before as it is written anew.

    S_t = (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T;   o_t = S_t^T q_t / sqrt(d_k)         per head
    q, k, v = swish(conv(W x)), q and k then of length 1;   b_t = beta_max * sigmoid(W_b x_t);   y = W_o RMSNorm(o)

The transition has the eigenvalue 1 - b_t along k_t and 1 elsewhere. With beta_max=2 it can be negative, down to a
reflection at b_t = 2: parity can then be tracked, and not otherwise (Grazzi et al. 2024).
State: S, d_k x d_v scalars per head, whatever the length, and 9 d_model of the convolution.

The layer is that of Yang et al. 2024: keys and values of d_model channels, 4 heads, a convolution of 4 tokens on q, k
and v, the SiLU after it also where there is no convolution (conv=0).

Differs from the paper's layer:
- 4 heads whatever the width, where the paper's models have heads of 128 channels
"""

from dataclasses import dataclass
from typing import ClassVar

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import DeltaHeads, DeltaMemory, GatedReading
from assay.nn.attention import HeadProjections
from assay.nn.norm import LAYER_EPS, Norm


@mixers.register("delta_net")
@dataclass(frozen=True, kw_only=True)
class DeltaNet(DeltaHeads):
    """Linear attention that overwrites: a key's old value is erased as the new one is written."""

    other_names: ClassVar[tuple[str, ...]] = ("deltanet",)
    version: ClassVar[int] = 2

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return OverwritingMemory(self.projections(d_model), d_model, beta_max=self.beta_max)


class OverwritingMemory(GatedReading, DeltaMemory):
    def __init__(self, heads: HeadProjections, d_model: int, *, beta_max: float) -> None:
        super().__init__(heads, d_model, beta_max=beta_max)
        self.gate, self.norm = None, Norm(heads.value_dim, eps=LAYER_EPS)
