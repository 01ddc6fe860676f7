"""A perceptron on each token, averaged over time, is blind to order (Deep Sets, Zaheer et al. 2017).

    code = ReLU(W mean over t of ReLU(W_2 ReLU(W_1 x_t + b_1) + b_2) + b)

25,112 parameters at d_in 24, d_code 32.

Differs from the paper: tokens are averaged, where the paper adds them up; what follows is one linear map and a ReLU.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from assay.encoders import encoders
from assay.encoders.base import Encoder


@encoders.register("mean_mlp")
@dataclass(frozen=True, kw_only=True)
class MeanMLP(Encoder):
    """A perceptron on each token, averaged over time."""

    aliases: ClassVar[tuple[str, ...]] = ("MeanMLP",)

    width: int = 132

    def build(self, length: int, d_in: int, d_code: int) -> nn.Module:
        return AveragedPerceptron(d_in, d_code, width=self.width)


class AveragedPerceptron(nn.Module):
    def __init__(self, d_in: int, d_code: int, *, width: int) -> None:
        super().__init__()
        self.token = nn.Sequential(nn.Linear(d_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.code = nn.Linear(width, d_code)

    def forward(self, x: Float[Tensor, "batch time d_in"]) -> Float[Tensor, "batch d_code"]:
        return torch.relu(self.code(reduce(self.token(x), "b t d -> b d", "mean")))
