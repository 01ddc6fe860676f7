"""Dilated causal convolutions with residuals (van den Oord et al. 2016; Bai et al. 2018) are read at the last step.

    h^0_t = W_e x_t;   h^{i+1}_t = h^i_t + ReLU(W_i [h^i_{t - 2^i}, h^i_t] + b_i);   code = ReLU(W h^n_L)

Kernel 2 and dilations 1, 2, 4, ...: n = ceil(log2 L) layers see L steps. Read at the last step only, layer i is needed
at every 2^i-th step, so it is a kernel that merges neighbours, and the length halves from layer to layer:

    x1 x2 x3 x4 x5 x6 x7 x8   ->   x12 x34 x56 x78   ->   x1234 x5678   ->   x12345678

Differs from the paper (Bai et al. 2018): one convolution in each residual block, not two; no weight normalisation and
no dropout; as many layers as the length asks for. WaveNet's gates and skip connections are left out.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from assay.encoders import encoders
from assay.encoders.base import Encoder


@encoders.register("causal_conv")
@dataclass(frozen=True, kw_only=True)
class CausalConv(Encoder):
    """Dilated causal convolutions that see the whole sequence, read at the last step."""

    aliases: ClassVar[tuple[str, ...]] = ("CausalConv",)

    width: int = 47
    """Channels of every convolution."""

    def build(self, length: int, d_in: int, d_code: int) -> nn.Module:
        return LastStepConvolution(d_in, d_code, width=self.width, layers=(length - 1).bit_length())


class LastStepConvolution(nn.Module):
    """A stack of dilated causal convolutions, computed at its last step alone; it sees 2^layers steps."""

    def __init__(self, d_in: int, d_code: int, *, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(d_in, width)
        self.merge = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.code = nn.Linear(width, d_code)

    def forward(self, x: Float[Tensor, "batch time d_in"]) -> Float[Tensor, "batch d_code"]:
        missing = 2 ** len(self.merge) - x.shape[1]
        h = self.embed(pad(x, (0, 0, missing, 0)))  # zeros before the first token
        for merge in self.merge:
            pairs = rearrange(h, "b (t two) d -> b t (two d)", two=2)
            h = h[:, 1::2] + torch.relu(merge(pairs))
        return torch.relu(self.code(rearrange(h, "b 1 d -> b d")))
