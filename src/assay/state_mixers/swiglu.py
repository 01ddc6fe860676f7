"""SwiGLU (Shazeer 2020) is a gated linear unit whose gate is x sigmoid(x).

    y = W_3 (silu(W_1 x) * W_2 x)

No bias; 8 d_model / 3 hidden channels, rounded up to a multiple of 16.

Differs from the paper: hidden channels are rounded up to a multiple of 16.
"""

from dataclasses import dataclass

from torch import nn
from torch.nn.functional import silu

from assay.nn.gated import Gated, two_thirds
from assay.state_mixers import state_mixers
from assay.state_mixers.base import StateMixer


@state_mixers.register("swiglu")
@dataclass(frozen=True, kw_only=True)
class SwiGLU(StateMixer):
    """A linear layer gated by a SiLU."""

    inner: int = 0
    """Hidden channels; 0: 8 d_model / 3, rounded up to a multiple of 16."""

    def build(self, d_model: int) -> nn.Module:
        return Gated(d_model, self.inner or two_thirds(d_model), gate=silu)
