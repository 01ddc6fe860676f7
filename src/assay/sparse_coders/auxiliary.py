"""AuxK (Gao et al. 2024), which keeps units alive; shared by TopK, BatchTopK and Matryoshka.

    auxk |e - e'|^2,   e = x - x' what the code missed,   e' = top_{d_in / 2}(z of silent units) W_dec

A unit is silent if it has not fired for `dead_after` steps. Its z counts as it is, below 0 too: a unit that is below 0
on every row has no gradient through a ReLU, and would be silent for good.

Departures from the paper: the term is not divided by the variance of e; its weight is scaled by the share of the
d_in / 2 places that silent units can fill, as in SAELens; a step counts as one, whatever its rows, where the paper
counts tokens (10 million of them).
"""

import torch
from torch import Tensor

from assay.nn.largest import largest
from assay.sparse_coders.base import Codes, DecoderModule, Guesses, PerModel, Rows, Terms


class RevivingModule(DecoderModule):
    """A decoder module that counts for how many steps each unit has been silent."""

    silent: Tensor

    def batch_code(self, z: Codes) -> Codes:
        """Code a training batch from its pre-activations."""
        raise NotImplementedError(f"{type(self).__name__}.batch_code")

    def __init__(self, models: int, d_in: int, d_code: int, *, auxk: float, dead_after: int) -> None:
        super().__init__(models, d_in, d_code)
        self.auxk, self.dead_after = auxk, dead_after
        self.register_buffer("silent", torch.zeros(models, d_code))

    def loss(self, x: Rows) -> Terms:
        z = self.preactivations(x)
        a = self.batch_code(z)
        error = self.residual(x, self.decode(a))
        mse = error.square().sum(dim=2).mean(dim=1)
        aux = self.auxiliary(z, a, error)
        return {"total": mse + self.auxk * aux, "mse": mse, "aux": aux}

    def auxiliary(self, z: Codes, a: Codes, error: Guesses) -> PerModel:
        """Compute the error that silent units fail to explain, weighted by their number; also counts silent steps.
        There is no branch on how many are silent, so the host never waits for the device."""
        with torch.no_grad():
            self.silent.add_(1).mul_((a == 0).all(dim=1))
        dead = self.silent > self.dead_after
        most = min(max(1, self.d_in // 2), self.d_code)
        revived = largest(z, torch.full((len(z),), most, device=z.device), most, dead)
        share = (dead.sum(dim=1) / most).clamp(max=1)
        return share * (error.detach() - torch.bmm(revived, self.W_dec)).square().sum(dim=2).mean(dim=1)
