"""Gated (Rajamanoharan et al. 2024) decides by one linear map which units fire, by a rescaled copy of it how strongly.

    p = W_enc (x - b_dec),   gate = 1[p + b_enc > 0],   size = relu(exp(r_mag) p + b_mag),   a = gate size
    |x - x'|^2 + l1 sum_j relu(p + b_enc)_j + |x - stop(decoder)(relu(p + b_enc))|^2

The penalty falls on the gate alone, so sizes do not shrink; the third term gives the gate its gradient.

Differs from the paper: the gradient of decoder rows along themselves is not removed (rows are brought back to length 1
after each step), and dead units are not drawn anew. At the start b_dec is the mean of the training rows, and encoder
rows are min(1, 2 d_in / d_code) times those of the decoder.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu

from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import Codes, DecoderModule, Rows, Terms, TrainedCoder, steady


class Module(DecoderModule):
    l1: Tensor
    half_fires: ClassVar[bool] = True

    def __init__(self, models: int, d_in: int, d_code: int, *, l1: Tensor) -> None:
        super().__init__(models, d_in, d_code)
        self.r_mag, self.b_mag = (nn.Parameter(torch.zeros(models, d_code)) for _ in range(2))
        self.register_buffer("l1", l1.float())

    def fresh(self, mean: Float[Tensor, " d_in"]) -> dict[str, Tensor]:
        return {**super().fresh(mean), "r_mag": torch.zeros(self.d_code), "b_mag": torch.zeros(self.d_code)}

    def encode(self, x: Rows) -> Codes:
        return self._code(self.preactivations(x))

    def _code(self, gate: Codes) -> Codes:
        size = steady(torch.exp, self.r_mag)[:, None] * (gate - self.b_enc[:, None]) + self.b_mag[:, None]
        return (gate > 0) * relu(size)

    def loss(self, x: Rows) -> Terms:
        gate = self.preactivations(x)
        mse = self.reconstruction_error(x, self.decode(self._code(gate)))
        opened = relu(gate)
        frozen = torch.baddbmm(self.b_dec[:, None].detach(), opened, self.W_dec.detach())
        aux = self.reconstruction_error(x, frozen)
        sizes = opened.sum(dim=2).mean(dim=1)
        return {"total": mse + self.l1 * sizes + aux, "mse": mse, "l1": sizes, "aux": aux}


@sparse_coders.register("gated")
@dataclass(frozen=True, kw_only=True)
class Gated(TrainedCoder):
    """A unit's gate and its size are computed separately."""

    version: ClassVar[int] = 2
    module: ClassVar = Module
    columns: ClassVar = ("l1",)
    level_option: ClassVar = "l1"
    weights: ClassVar = ("l1",)

    l1: float = 0.3
    """Weight of the penalty on the gates: more of it makes codes sparser."""
