"""This state mixer is none: f(x) = 0, so that a residual layer x + f(x) passes x on.

No paper: recall sweeps such as zoology's have an identity here, which in their residual layer adds the normalised x to
x once more; this one adds nothing.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.state_mixers import state_mixers
from assay.state_mixers.base import StateMixer


@state_mixers.register("none")
@dataclass(frozen=True, kw_only=True)
class Nothing(StateMixer):
    """Adds nothing: a model of sequence mixers alone."""

    def build(self, d_model: int) -> nn.Module:
        return Zeros()


class Zeros(nn.Module):
    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return torch.zeros_like(x)
