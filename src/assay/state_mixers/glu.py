"""A gated linear unit (Dauphin et al. 2017) multiplies a linear map of the token by a gate between 0 and 1.

    y = W_3 (sigmoid(W_1 x) * W_2 x)

No bias; 8 d_model / 3 hidden channels, rounded up to a multiple of 16.

Differs from the paper: this is its feed-forward form (Shazeer 2020), with W_3 and without biases; the paper gates a
convolution over several tokens, with biases and no W_3. Hidden channels are rounded up to a multiple of 16.
"""

from dataclasses import dataclass
from typing import ClassVar

from assay.state_mixers import state_mixers
from assay.state_mixers.base import Act, GatedStateMixer


@state_mixers.register("glu")
@dataclass(frozen=True, kw_only=True)
class GLU(GatedStateMixer):
    """A linear layer gated by a sigmoid."""

    act: ClassVar[Act] = "sigmoid"
