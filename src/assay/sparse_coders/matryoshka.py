"""Matryoshka (Bussmann et al. 2025) is BatchTopK whose first units must reconstruct on their own.

The loss is the mean of |x - x'_n|^2 over nested prefixes of the units, x'_n decoded from the first n alone: 1/16, 1/8,
1/4, 1/2 and all of them. By the authors, general features come first, and are absorbed less by specific ones.

AuxK, as for TopK (sparse_coders.auxiliary), works on what all of them together missed.

Differs from the paper: its prefixes are 1/32, 3/32, 7/32, 15/32 and all of the units; their errors are summed in its
formula, and averaged here as in the authors' code. The threshold of rows alone, AuxK, b_dec at the start and the
gradient of decoder rows differ as for batch_topk.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import Rows, Terms
from assay.sparse_coders.batch_cut import BatchCut, BatchCutCoder

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)


class Module(BatchCut):
    def __init__(self, models: int, d_in: int, d_code: int, **options: Any) -> None:
        super().__init__(models, d_in, d_code, **options)
        self.prefixes = sorted({max(1, round(share * d_code)) for share in SHARES})

    def loss(self, x: Rows) -> Terms:
        z = self.preactivations(x)
        a = self.batch_code(z)
        error = self.residual(x, self.b_dec[:, None].expand(-1, a.shape[1], -1))
        errors, start = [], 0
        for end in self.prefixes:  # each prefix adds its units to the one before
            error = error - torch.bmm(a[:, :, start:end], self.W_dec[:, start:end])
            errors.append(error.square().sum(dim=2).mean(dim=1))
            start = end
        aux = self.auxiliary(z, a, error)
        return {"total": torch.stack(errors).mean(dim=0) + self.auxk * aux, "mse": errors[-1], "aux": aux}


@sparse_coders.register("matryoshka")
@dataclass(frozen=True, kw_only=True)
class Matryoshka(BatchCutCoder):
    """BatchTopK whose first units must reconstruct on their own."""

    version: ClassVar[int] = 2
    module: ClassVar = Module
