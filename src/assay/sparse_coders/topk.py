"""TopK (Makhzani & Frey 2013; Gao et al. 2024): each row keeps its k largest units.

    a = top_k(relu(W_enc (x - b_dec) + b_enc)),   |x - x'|^2 + auxk |e - e'|^2

AuxK keeps units alive: e = x - x' is what the code missed, e' its reconstruction by the d_in / 2 most active units
among those that have not fired for `dead_after` steps.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import relu

from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import CountedCoder, DecoderModule, Terms


class Module(DecoderModule):
    k: Tensor
    silent: Tensor

    def __init__(self, models: int, d_in: int, d_code: int, *, auxk: float, dead_after: int, k: Tensor) -> None:
        super().__init__(models, d_in, d_code)
        self.auxk, self.dead_after = auxk, dead_after
        self.most = int(k.max())
        self.register_buffer("k", k)
        self.register_buffer("silent", torch.zeros(models, d_code))

    def encode(self, x: Float[Tensor, "groups batch d_in"]) -> Float[Tensor, "models batch d_code"]:
        return self._kept(relu(self.preactivations(x)))

    def _kept(self, z: Float[Tensor, "models batch d_code"]) -> Float[Tensor, "models batch d_code"]:
        values, units = z.topk(self.most, dim=2)
        mine = torch.arange(self.most, device=z.device) < self.k[:, None, None]
        return torch.zeros_like(z).scatter(2, units, values * mine)

    def loss(self, x: Float[Tensor, "groups batch d_in"]) -> Terms:
        z = relu(self.preactivations(x))
        a = self._kept(z)
        error = self.residual(x, self.decode(a))
        mse = error.square().sum(dim=2).mean(dim=1)
        with torch.no_grad():
            self.silent.add_(1).mul_((a == 0).all(dim=1))
        aux = self._auxiliary(z, error.detach())
        return {"total": mse + self.auxk * aux, "mse": mse, "aux": aux}

    def _auxiliary(
        self, z: Float[Tensor, "models batch d_code"], error: Float[Tensor, "models batch d_in"]
    ) -> Float[Tensor, " models"]:
        """How much of the error the silent units fail to explain, weighted by how many they are. Without a branch on
        how many there are: the host never waits for the device."""
        dead = self.silent > self.dead_after
        most = min(max(1, self.d_in // 2), self.d_code)
        values, units = z.mul(dead[:, None]).topk(most, dim=2)
        revived = torch.zeros_like(z).scatter(2, units, values)
        share = (dead.sum(dim=1) / most).clamp(max=1)
        return share * (error - torch.bmm(revived, self.W_dec)).square().sum(dim=2).mean(dim=1)


@sparse_coders.register("topk")
@dataclass(frozen=True, kw_only=True)
class TopK(CountedCoder):
    """Each row keeps its k largest units; silent units learn from what the code missed."""

    module: ClassVar = Module

    auxk: float = 1 / 32
    """Weight of the silent units' share of the error."""
    dead_after: int = 200
    """Steps without firing after which a unit counts as silent."""
