"""A gated linear recurrence that never forgets: its gate is 1 for every token.

S_t = S_{t-1} + k_t v_t^T;   o_t = S_t^T q_t / sqrt(d_k)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.retention import FadingMemory, Retention
from assay.nn.axes import Tokens
from assay.nn.scan import Keys, Values


class LastingMemory(FadingMemory):
    def written(self, x: Tokens, q: Keys, k: Keys, v: Values, *beside: Tensor) -> tuple[Tensor, ...]:
        q, k, v, log_decay = super().written(x, q, k, v, *beside)
        return q, k, v, torch.zeros_like(log_decay)


@mixers.register("no_decay")
@dataclass(frozen=True, kw_only=True)
class NoDecay(Retention):
    """Retention whose heads keep everything."""

    conv: int = 4

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return LastingMemory(self.projections(d_model), d_model)
