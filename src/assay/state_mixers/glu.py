"""A gated linear unit (Dauphin et al. 2017) multiplies a linear map of the token by a gate between 0 and 1.

    y = W_3 (sigmoid(W_1 x) * W_2 x)

No bias; 8 d_model / 3 hidden channels, rounded up to a multiple of 16.

Differs from the paper: this is its feed-forward form (Shazeer 2020), with W_3 and without biases; the paper gates a
convolution over several tokens, with biases and no W_3. Hidden channels are rounded up to a multiple of 16.
"""

from dataclasses import dataclass

import torch
from torch import nn

from assay.nn.gated import Gated, two_thirds
from assay.state_mixers import state_mixers
from assay.state_mixers.base import StateMixer


@state_mixers.register("glu")
@dataclass(frozen=True, kw_only=True)
class GLU(StateMixer):
    """A linear layer gated by a sigmoid."""

    inner: int = 0
    """Hidden channels; 0: 8 d_model / 3, rounded up to a multiple of 16."""

    def build(self, d_model: int) -> nn.Module:
        return Gated(d_model, self.inner or two_thirds(d_model), gate=torch.sigmoid)
