"""A gated recurrent unit (Cho et al. 2014), as wide as the model, is the classical baseline.

    r, z = sigmoid(W x_t + U h + b);   n = tanh(W_n x_t + r * (U_n h + c));   h <- (1 - z) n + z h;   y_t = h

The new state depends on the old one through tanh, so there is no parallel form: `forward` loops over time, and only
the products with W are taken all at once. State: h, d_model scalars.

Differs from the paper: the reset gate r multiplies U_n h + c, as in torch and cuDNN, where the paper multiplies h
before U_n; there are biases, two for each gate. Weights and biases start uniform in +-1/sqrt(d_model), as in torch.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule
from assay.nn.axes import Token, Tokens
from assay.nn.scan import in_float32


@mixers.register("gru")
@dataclass(frozen=True, kw_only=True)
class GRU(Mixer):
    """A gated recurrent unit, as wide as the model."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return GatedUnit(d_model)

    def core_state(self, d_model: int, length: int) -> int:
        return d_model


class GatedUnit(MixerModule):
    """nn.GRU with its initialisation, the recurrence written out: nn.GRU cannot be vmapped, nor run with float32
    inside autocast."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.input, self.recurrent = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, 3 * d_model)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(d_model**-0.5), d_model**-0.5)

    def forward(self, x: Tokens) -> Tokens:
        return run(self.input(x), self.init_state(len(x)), self.recurrent.weight, self.recurrent.bias)

    def init_state(self, batch: int) -> Token:
        return self.recurrent.weight.new_zeros(batch, self.recurrent.in_features)

    def step(self, x: Token, state: Token) -> tuple[Token, Token]:
        h = run(self.input(x[:, None]), state, self.recurrent.weight, self.recurrent.bias).squeeze(1)
        return h, h


@in_float32
def run(
    driven: Float[Tensor, "batch time gates"],
    h: Token,
    weight: Float[Tensor, "gates d_model"],
    bias: Float[Tensor, " gates"],
) -> Tokens:
    """Return the states after each token; `driven` holds the inputs of the three gates. Few and wide operations per
    step: on a GPU each is a launch."""
    width, states = h.shape[-1], []
    for brought in driven.unbind(1):
        held = linear(h, weight, bias)
        reset, keep = torch.sigmoid(brought[..., : 2 * width] + held[..., : 2 * width]).chunk(2, -1)
        h = torch.lerp(torch.tanh(torch.addcmul(brought[..., 2 * width :], reset, held[..., 2 * width :])), h, keep)
        states.append(h)
    return torch.stack(states, dim=1)
