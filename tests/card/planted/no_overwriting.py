"""DeltaNet without its overwriting: what a key held before stays, and the new value is added to it.

S_t = S_{t-1} + b_t k_t v_t^T;   o_t = S_t^T q_t / sqrt(d_k)
"""

from dataclasses import dataclass

from einops import rearrange
from torch import Tensor

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.delta_net import DeltaNet, OverwritingMemory
from assay.nn.axes import Tokens
from assay.nn.recurrence import OuterRecurrence
from assay.nn.scan import Keys, Values


class AddingMemory(OuterRecurrence, OverwritingMemory):
    def written(self, x: Tokens, q: Keys, k: Keys, v: Values, *beside: Tensor) -> tuple[Tensor, ...]:
        q, k, v, beta = super().written(x, q, k, v, *beside)
        return q, k, rearrange(beta, "b h t -> b h t 1") * v, beta.new_zeros(beta.shape)


@mixers.register("no_overwriting")
@dataclass(frozen=True, kw_only=True)
class NoOverwriting(DeltaNet):
    """DeltaNet that adds where it should overwrite."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return AddingMemory(self.projections(d_model), d_model, beta_max=self.beta_max)
