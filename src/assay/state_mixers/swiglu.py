"""SwiGLU (Shazeer 2020) is a gated linear unit whose gate is x sigmoid(x).

    y = W_3 (silu(W_1 x) * W_2 x)

No bias; 8 d_model / 3 hidden channels, rounded up to a multiple of 16.

Differs from the paper: hidden channels are rounded up to a multiple of 16.
"""

from dataclasses import dataclass
from typing import ClassVar

from assay.state_mixers import state_mixers
from assay.state_mixers.base import Act, GatedStateMixer


@state_mixers.register("swiglu")
@dataclass(frozen=True, kw_only=True)
class SwiGLU(GatedStateMixer):
    """A linear layer gated by a SiLU."""

    act: ClassVar[Act] = "silu"
