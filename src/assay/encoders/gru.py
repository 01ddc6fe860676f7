"""A gated recurrent unit (Cho et al. 2014) is read after the last token.

    r, z = sigmoid(W x_t + U h + b);   n = tanh(W_n x_t + r * (U_n h + c_n));   h <- (1 - z) n + z h
    code = ReLU(W_c h_L)

25,157 parameters at d_in 24, d_code 32.

Differs from the paper: the reset gate r multiplies U_n h + c_n, as in torch and cuDNN, where the paper multiplies h
before U_n; there are biases, two for each gate.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from assay.encoders import encoders
from assay.encoders.base import Encoder


@encoders.register("gru")
@dataclass(frozen=True, kw_only=True)
class GRU(Encoder):
    """A gated recurrent unit, read after the last token."""

    aliases: ClassVar[tuple[str, ...]] = ("GRU",)

    width: int = 75
    """Channels of the recurrent state."""

    def build(self, length: int, d_in: int, d_code: int) -> nn.Module:
        return LastStateGRU(d_in, d_code, width=self.width)


class LastStateGRU(nn.Module):
    """nn.GRU with its weights' layout and initialisation, the recurrence written out: nn.GRU cannot be vmapped, which
    the Jacobian probe needs (torch 2.13), and is no more than 15 % faster on a CPU at these sizes."""

    def __init__(self, d_in: int, d_code: int, *, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(d_in, 3 * width)
        self.recurrent = nn.Linear(width, 3 * width)
        self.code = nn.Linear(width, d_code)
        for parameter in (*self.input.parameters(), *self.recurrent.parameters()):
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    def forward(self, x: Float[Tensor, "batch time d_in"]) -> Float[Tensor, "batch d_code"]:
        width = self.recurrent.in_features
        h = x.new_zeros(len(x), width)
        # Time first, so that each step reads one contiguous block.
        for driven in self.input(rearrange(x, "b t d -> t b d")):
            fed = self.recurrent(h)
            gates = torch.sigmoid(driven[:, : 2 * width] + fed[:, : 2 * width])
            reset, keep = gates.chunk(2, dim=-1)
            new = torch.tanh(driven[:, 2 * width :] + reset * fed[:, 2 * width :])
            h = torch.lerp(new, h, keep)
        return torch.relu(self.code(h))
