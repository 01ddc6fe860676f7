"""Mamba-2 that never forgets: its decay is 1 for every token, whatever dt is.

S_t = S_{t-1} + B_t (dt_t u_t)^T;   o_t = S_t^T C_t + D u_t
"""

import math
from dataclasses import dataclass

import torch

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.mamba2 import Mamba2, StateSpace
from assay.nn.recurrence import SelectiveDecay


class NoForgetting(SelectiveDecay):
    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__(d_model, heads)
        del self.log_rate  # not learned: log a = -exp(A) dt is 0 for A of minus infinity
        self.register_buffer("log_rate", torch.full((heads,), -math.inf))


@mixers.register("no_decay")
@dataclass(frozen=True, kw_only=True)
class NoDecay(Mamba2):
    """Mamba-2 whose heads keep everything."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        module = super().core(d_model, max_len)
        assert isinstance(module, StateSpace)
        module.decay = NoForgetting(d_model, module.heads)
        return module
