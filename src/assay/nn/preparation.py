"""A preparation is what a data set does to raw rows before a coder sees them: those far longer than the others are left
out, and rows = (raw - mean) / scale."""

import math
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Preparation:
    """Centres rows and divides them by one number, so that a coder's options mean the same for every model."""

    mean: Float[Tensor, " d_in"]
    scale: float
    limit: float = math.inf
    """The largest norm of a raw row that is kept."""

    @classmethod
    def of(cls, raw: Float[Tensor, "n d_in"], longest: float) -> "Preparation":
        """Measure raw training rows; `longest` is in median lengths, 0 keeps all."""
        lengths = raw.norm(dim=1)
        limit = longest * float(lengths.median()) if longest else math.inf
        kept = raw[lengths <= limit]
        mean = kept.mean(dim=0)
        return cls(mean, float((kept - mean).square().mean().sqrt()), limit)

    def usual(self, raw: Float[Tensor, "*n d_in"]) -> Bool[Tensor, "*n"]:
        """Tell which raw rows are kept."""
        return raw.norm(dim=-1) <= self.limit

    def prepare(self, raw: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_in"]:
        # A tensor, for CUDA multiplies by the reciprocal of a number, which rounds differently.
        return (raw - self.mean.to(raw)) / raw.new_tensor(self.scale)

    def restore(self, rows: Float[Tensor, "n d_in"]) -> Float[Tensor, "n d_in"]:
        return rows * self.scale + self.mean.to(rows)
