"""Feature maps of linear attention put phi(q) . phi(k) in place of softmax attention's exp(q . k).

    elementwise_product  (W1 x + b1) * (W2 x + b2)                       d     may be negative
    hedgehog             softmax([W x + b, -(W x + b)]), W = I at first  2d    Zhang et al. 2024
    t2r                  relu(W x)                                       d     Kasai et al. 2021
    dpfp                 u = relu([x, -x]); u * roll(u, j), j = 1..4     8d    Schlag et al. 2021
    elu                  elu(x) + 1                                      d     Katharopoulos et al. 2020
    relu                 relu(x)                                         d
    identity             x                                               d     may be negative
    taylor               [1, x, x_i x_j]                   1 + d + d(d+1)/2    Arora et al. 2024

They act on one head's channels and are shared by the heads.
"""

import math
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import elu

from assay.nn.random import for_shapes_alone

FeatureMapName = Literal["elementwise_product", "hedgehog", "t2r", "dpfp", "elu", "relu", "identity"]


class FeatureMap(nn.Module):
    """Maps d channels to `dim_out` features."""

    signed: ClassVar[bool] = False
    """Whether a feature can be negative; then phi(q) . phi(k) is no weight, and its sum no denominator."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim_out = self.features(dim)

    @staticmethod
    def features(dim: int) -> int:
        """Return `dim_out` for d = dim, without building the map."""
        return dim


class ElementwiseProduct(FeatureMap):
    signed = True

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.one, self.other = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return self.one(x) * self.other(x)


class Hedgehog(FeatureMap):
    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.linear = nn.Linear(dim, dim)
        nn.init.eye_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    @staticmethod
    def features(dim: int) -> int:
        return 2 * dim

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch features"]:
        y = self.linear(x)
        return torch.softmax(torch.cat([y, -y], dim=-1), dim=-1)


class T2R(FeatureMap):
    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.linear = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return torch.relu(self.linear(x))


class DPFP(FeatureMap):
    rolls: ClassVar[int] = 4

    @staticmethod
    def features(dim: int) -> int:
        return 2 * DPFP.rolls * dim

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch features"]:
        halves = torch.relu(torch.cat([x, -x], dim=-1))
        return torch.cat([halves * halves.roll(j, dims=-1) for j in range(1, self.rolls + 1)], dim=-1)


class ELU(FeatureMap):
    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return elu(x) + 1


class ReLU(FeatureMap):
    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return torch.relu(x)


class Identity(FeatureMap):
    signed = True

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return x


class Taylor(FeatureMap):
    """phi(q) . phi(k) = 1 + q.k + (q.k)^2 / 2, the exponential to second order, which is at least 1/2.

    Each product x_i x_j is kept once: half the features of the full outer product, the same kernel.
    """

    signed = True

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        pairs = torch.empty(2, dim * (dim + 1) // 2, dtype=torch.long)
        self.register_buffer("pairs", pairs if for_shapes_alone() else torch.triu_indices(dim, dim), persistent=False)

    @staticmethod
    def features(dim: int) -> int:
        return 1 + dim + dim * (dim + 1) // 2

    @staticmethod
    def kernel(a: Tensor) -> Tensor:
        """Return 1 + a + a^2 / 2."""
        return 1 + a * (1 + a / 2)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch features"]:
        i, j = self.pairs  # type: ignore[misc]
        halved = 1 - (1 - math.sqrt(0.5)) * (i == j).to(x.dtype)  # squares count half: each product occurs twice
        products = x[..., i] * x[..., j] * halved
        return torch.cat([torch.ones_like(x[..., :1]), x, products], dim=-1)


FEATURE_MAPS: dict[FeatureMapName, type[FeatureMap]] = {
    "elementwise_product": ElementwiseProduct,
    "hedgehog": Hedgehog,
    "t2r": T2R,
    "dpfp": DPFP,
    "elu": ELU,
    "relu": ReLU,
    "identity": Identity,
}
"""The choices of the mixer linear_attention; taylor belongs to based."""
