"""BatchTopK (Bussmann et al. 2024): a batch keeps its k x rows largest units, so that rows share them as they need.

a = top_{k rows}(relu(W_enc (x - b_dec) + b_enc)) over the batch,   |x - x'|^2
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import CountedCoder, Terms
from assay.sparse_coders.batch_cut import BatchCut


class Module(BatchCut):
    def loss(self, x: Float[Tensor, "groups batch d_in"]) -> Terms:
        a = self.batch_code(x)
        mse = self.reconstruction_error(x, self.decode(a))
        return {"total": mse, "mse": mse}


@sparse_coders.register("batch_topk")
@dataclass(frozen=True, kw_only=True)
class BatchTopK(CountedCoder):
    """A batch keeps its k x rows largest units; rows alone are cut at the average threshold."""

    module: ClassVar = Module

    threshold_rate: float = 0.01
    """How fast the threshold for rows alone follows the batches."""
