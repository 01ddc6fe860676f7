"""A bilinear layer is a gated linear unit without its nonlinearity (Shazeer 2020; Pearce et al. 2024).

    y = W_3 (W_1 x * W_2 x)

Each output is a quadratic form of x. No bias; 8 d_model / 3 hidden channels, rounded up to a multiple of 16.

Differs from the paper: hidden channels are rounded up to a multiple of 16, as for glu and swiglu.
"""

from dataclasses import dataclass
from typing import ClassVar

from assay.state_mixers import state_mixers
from assay.state_mixers.base import Act, GatedStateMixer


@state_mixers.register("bilinear")
@dataclass(frozen=True, kw_only=True)
class Bilinear(GatedStateMixer):
    """The product of two linear layers."""

    act: ClassVar[Act] = "none"
