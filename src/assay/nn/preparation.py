"""A preparation is what a data set does to its rows before a coder sees them: rows = (raw - mean) / scale."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Preparation:
    """Centres rows and divides them by one number, so that a coder's options mean the same for every model."""

    mean: Float[Tensor, " d_in"]
    scale: float

    def prepare(self, raw: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_in"]:
        return (raw - self.mean) / self.scale

    def restore(self, rows: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_in"]:
        return rows * self.scale + self.mean
