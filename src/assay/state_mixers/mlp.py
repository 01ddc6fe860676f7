"""A perceptron with one hidden layer is the spec's default.

    y = W_2 gelu(W_1 x + b_1) + b_2

4 d_model hidden channels; gelu in its tanh form.

Differs from the spec: weights start as torch starts a linear layer; the code behind the spec has N(0, .02^2).
"""

from dataclasses import dataclass

from torch import nn

from assay.state_mixers import state_mixers
from assay.state_mixers.base import StateMixer


@state_mixers.register("mlp")
@dataclass(frozen=True, kw_only=True)
class MLP(StateMixer):
    """A perceptron with one hidden layer of GELUs."""

    inner: int = 0
    """Hidden channels; 0: 4 d_model."""

    def build(self, d_model: int) -> nn.Module:
        inner = self.inner or 4 * d_model
        return nn.Sequential(nn.Linear(d_model, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, d_model))
