"""A perceptron on each token, averaged over time, is blind to order (Deep Sets, Zaheer et al. 2017).

    code = ReLU(W mean over t of ReLU(W_2 ReLU(W_1 x_t + b_1) + b_2) + b)

25,112 parameters at d_in 24, d_code 32.

Differs from the paper: tokens are averaged, where the paper adds them up; what follows is one linear map and a ReLU.
"""

from dataclasses import dataclass
from typing import ClassVar

from einops.layers.torch import Reduce
from torch import nn

from assay.encoders import encoders
from assay.encoders.base import Encoder


@encoders.register("mean_mlp")
@dataclass(frozen=True, kw_only=True)
class MeanMLP(Encoder):
    """A perceptron on each token, averaged over time."""

    aliases: ClassVar[tuple[str, ...]] = ("MeanMLP",)

    width: int = 132
    """Channels of both layers of the perceptron."""

    def build(self, length: int, d_in: int, d_code: int) -> nn.Module:
        token = (nn.Linear(d_in, self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.ReLU())
        return nn.Sequential(*token, Reduce("b t d -> b d", "mean"), nn.Linear(self.width, d_code), nn.ReLU())
