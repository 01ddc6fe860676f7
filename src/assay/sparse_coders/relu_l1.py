"""The standard sparse autoencoder (Bricken et al. 2023) has ReLU units under an L1 penalty.

    a = relu(W_enc (x - b_dec) + b_enc),   x' = a W_dec + b_dec
    |x - x'|^2 + l1 sum_j a_j |W_dec_j|          the norm closes the way out of growing W_dec

`form=spec` is the baseline of the paper on decoder-free coders: no norm in the penalty, both terms averaged over their
units (mean |x - x'|^2 + l1 mean |a|), untied layers as nn.Linear makes them, b_dec not taken from the input.

Differs from the paper: decoder rows are free and their norms weigh the penalty, as the same group has it since 2024
(Templeton et al.), where the paper keeps them at length 1. Dead units are not drawn anew. At the start b_dec is the
mean of the training rows, not their geometric median, and encoder rows are min(1, 2 d_in / d_code) times those of the
decoder, not drawn by themselves. `form=spec` is as in the spec.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu

from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import Codes, DecoderModule, Rows, Terms, TrainedCoder, project


class Module(DecoderModule):
    l1: Tensor
    unit_rows: ClassVar[bool] = False
    half_fires: ClassVar[bool] = True

    def __init__(self, models: int, d_in: int, d_code: int, *, form: str, l1: Tensor) -> None:
        super().__init__(models, d_in, d_code)
        self.form = form
        self.register_buffer("l1", l1.float())

    def fresh(self, mean: Float[Tensor, " d_in"]) -> dict[str, Tensor]:
        if self.form == "norm_weighted":
            return super().fresh(mean)
        encoder, decoder = nn.Linear(self.d_in, self.d_code), nn.Linear(self.d_code, self.d_in)
        return {"W_enc": encoder.weight, "b_enc": encoder.bias, "W_dec": decoder.weight.T, "b_dec": decoder.bias}

    def encode(self, x: Rows) -> Codes:
        return relu(self.preactivations(x) if self.form == "norm_weighted" else project(x, self.W_enc, self.b_enc))

    def loss(self, x: Rows) -> Terms:
        a = self.encode(x)
        mse = self.reconstruction_error(x, self.decode(a))
        if self.form == "norm_weighted":
            sizes = torch.einsum("mbk,mk->mb", a, self.W_dec.norm(dim=2)).mean(dim=1)
        else:
            mse, sizes = mse / self.d_in, a.mean(dim=(1, 2))
        return {"total": mse + self.l1 * sizes, "mse": mse, "l1": sizes}


@sparse_coders.register("relu_l1")
@dataclass(frozen=True, kw_only=True)
class ReluL1(TrainedCoder):
    """The standard sparse autoencoder: ReLU units under an L1 penalty."""

    version: ClassVar[int] = 2
    module: ClassVar = Module
    columns: ClassVar = ("l1",)
    level_option: ClassVar = "l1"
    weights: ClassVar = ("l1",)

    l1: float = 0.3
    """Weight of the penalty: more of it makes codes sparser."""
    form: Literal["norm_weighted", "spec"] = "norm_weighted"
    """`norm_weighted`: decoder norms count in the penalty; `spec`: the spec's baseline, whose terms are means."""
