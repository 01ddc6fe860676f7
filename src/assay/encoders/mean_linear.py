"""A linear map of the mean token is the baseline that needs no architecture.

    code = W mean_t(x_t) + b

The global factors stand in every filled token, so averaging the noise away and keeping everything else linear loses
little of them: an encoder with a lower R2 than this one loses it by its own nonlinearity.

No paper: it is a baseline.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from einops.layers.torch import Reduce
from torch import nn

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
        sizes = [d_in, *([self.width] if self.width else []), d_code]
        return nn.Sequential(Reduce("b t d -> b d", "mean"), *(nn.Linear(a, b) for a, b in pairwise(sizes)))
