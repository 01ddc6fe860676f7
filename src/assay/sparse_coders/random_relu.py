"""Random ReLU features are the encoder nobody trained, the floor under every trained one.

a = relu(W x + b),   W and b as nn.Linear draws them

No paper: it is a control.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from assay.nn.random import initialised_from
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import FittedCoder, FittedModule


@sparse_coders.register("random_relu")
@dataclass(frozen=True, kw_only=True)
class RandomReLU(FittedCoder):
    """An untrained encoder: the floor under every trained one."""

    rectified: ClassVar[bool] = True

    def fit(self, x: Float[Tensor, "n d_in"], d_code: int, seed: int) -> FittedModule:
        with initialised_from(seed, "init"):
            layer = nn.Linear(x.shape[1], d_code)
        return FittedModule(layer.weight.detach().to(x), layer.bias.detach().to(x), rectified=True)
