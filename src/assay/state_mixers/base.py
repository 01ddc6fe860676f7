"""A state mixer works on each position alone: the feed-forward half of a layer (not the recurrent state)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu

from assay.core.plugin import Registry, Sized
from assay.nn.fused import fused, gated_unit_kernels
from assay.state_mixers import state_mixers

Act = Literal["none", "sigmoid", "silu"]
ACTS = {"none": lambda x: x, "sigmoid": torch.sigmoid, "silu": silu}


class StateMixer(Sized):
    """Base of state_mixers/<name>.py. The promises are in assay.contracts.state_mixers."""

    registry: ClassVar[Registry] = state_mixers

    def build(self, d_model: int) -> nn.Module:
        """Build a module (batch, time, d_model) -> the same shape, position by position."""
        raise NotImplementedError(f"{type(self).__name__}.build")


@dataclass(frozen=True, kw_only=True)
class GatedStateMixer(StateMixer):
    """y = W_3 (act(W_1 x) * W_2 x), without bias (Shazeer 2020); a state mixer names its act."""

    act: ClassVar[Act]

    inner: int = 0
    """Hidden channels; 0: 8 d_model / 3, rounded up to a multiple of 16."""

    def build(self, d_model: int) -> nn.Module:
        # Rounded up: three matrices of this width weigh as much as two of width 4 d_model.
        return Gated(d_model, self.inner or 16 * -(-8 * d_model // 48), act=self.act)


class Gated(nn.Module):
    """The layer; W_1 and W_2 are the two halves of one matrix."""

    def __init__(self, d_model: int, inner: int, *, act: Act) -> None:
        super().__init__()
        self.act: Act = act
        self.into = nn.Linear(d_model, 2 * inner, bias=False)
        self.out = nn.Linear(inner, d_model, bias=False)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        both = self.into(x)
        if fused("units"):
            return self.out(gated_unit_kernels.gated_unit(both, self.act))
        gates, values = both.chunk(2, dim=-1)
        return self.out(ACTS[self.act](gates) * values)
