"""A perceptron on the flattened sequence has weights of its own for every position: the spec's StaticMLP.

    width 0      code = ReLU(W vec(x) + b)                      24,608 parameters at L 32, d_in 24, d_code 32
    width > 0    code = ReLU(W_2 ReLU(W_1 vec(x) + b_1) + b_2)

Its size grows with L; the others' does not, but for a layer of causal_conv per doubling.

As in the spec. A hidden layer (width > 0) is ours.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import nn

from assay.encoders import encoders
from assay.encoders.base import Encoder


@encoders.register("static_mlp")
@dataclass(frozen=True, kw_only=True)
class StaticMLP(Encoder):
    """A perceptron on the flattened sequence, with one hidden layer where width > 0."""

    aliases: ClassVar[tuple[str, ...]] = ("StaticMLP",)

    width: int = 0
    """Channels of the hidden layer; 0: there is none."""

    def build(self, length: int, d_in: int, d_code: int) -> nn.Module:
        sizes = [length * d_in, *([self.width] if self.width else []), d_code]
        layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
        return nn.Sequential(nn.Flatten(), *(module for layer in layers for module in layer))
