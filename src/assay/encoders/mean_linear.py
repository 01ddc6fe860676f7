"""A linear map of the mean token is the baseline that needs no architecture.

    code = W mean_t(x_t) + b

The global factors stand in every filled token, so averaging the noise away and keeping everything else linear loses
little of them: an encoder with a lower R2 than this one loses it by its own nonlinearity.

No paper: it is a baseline.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from assay.encoders import encoders
from assay.encoders.base import Encoder


@encoders.register("mean_linear")
@dataclass(frozen=True, kw_only=True)
class MeanLinear(Encoder):
    """A linear map of the mean token: the baseline without an architecture."""

    aliases: ClassVar[tuple[str, ...]] = ("MeanLinear",)

    width: int = 0
    """Width of a second linear map in between, only to meet a parameter budget; 0: none."""

    def build(self, length: int, d_in: int, d_code: int) -> nn.Module:
        return LinearOfMean(d_in, d_code, width=self.width)


class LinearOfMean(nn.Module):
    def __init__(self, d_in: int, d_code: int, *, width: int) -> None:
        super().__init__()
        self.code = (
            nn.Sequential(nn.Linear(d_in, width), nn.Linear(width, d_code)) if width else nn.Linear(d_in, d_code)
        )

    def forward(self, x: Float[Tensor, "batch time d_in"]) -> Float[Tensor, "batch d_code"]:
        return self.code(x.mean(dim=1))
