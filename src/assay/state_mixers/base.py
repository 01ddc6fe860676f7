"""A state mixer works on each position alone: the feed-forward half of a layer (not the recurrent state)."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from assay.core.plugin import Registry, Sized
from assay.state_mixers import state_mixers


class StateMixer(Sized):
    """Base of state_mixers/<name>.py. The promises are in assay.contracts.state_mixers."""

    registry: ClassVar[Registry] = state_mixers

    def build(self, d_model: int) -> nn.Module:
        """Build a module (batch, time, d_model) -> the same shape, position by position."""
        raise NotImplementedError(f"{type(self).__name__}.build")


@dataclass(frozen=True, kw_only=True)
class GatedStateMixer(StateMixer):
    """y = W_3 (gate(W_1 x) * W_2 x), without bias (Shazeer 2020); a state mixer has a gate."""

    inner: int = 0
    """Hidden channels; 0: 8 d_model / 3, rounded up to a multiple of 16."""

    def gate(self) -> nn.Module:
        raise NotImplementedError(f"{type(self).__name__}.gate")

    def build(self, d_model: int) -> nn.Module:
        # Rounded up: three matrices of this width weigh as much as two of width 4 d_model.
        return Gated(d_model, self.inner or 16 * -(-8 * d_model // 48), gate=self.gate())


class Gated(nn.Module):
    """The layer; W_1 and W_2 are the two halves of one matrix."""

    def __init__(self, d_model: int, inner: int, *, gate: nn.Module) -> None:
        super().__init__()
        self.gate = gate
        self.into = nn.Linear(d_model, 2 * inner, bias=False)
        self.out = nn.Linear(inner, d_model, bias=False)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        gates, values = self.into(x).chunk(2, dim=-1)
        return self.out(self.gate(gates) * values)
