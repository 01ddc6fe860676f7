"""TopK (Makhzani & Frey 2013; Gao et al. 2024) keeps the k largest units of each row.

    a = top_k(relu(W_enc (x - b_dec) + b_enc)),   |x - x'|^2 + auxk |e - e'|^2

AuxK (sparse_coders.auxiliary) keeps units alive: silent ones learn from what the code missed.

Differs from the paper of 2024:
- at the start b_dec is the mean of the training rows, not their geometric median, and the encoder is not scaled
- the error is summed over inputs, not divided by that of the mean
- the gradient of decoder rows along themselves is not removed (rows are brought back to length 1 after each step)
- AuxK as sparse_coders.auxiliary says: a silent unit counts below 0 too, and is silent after 200 steps
- no average of the weights over steps, no second loss with more units (multi-TopK)
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import relu

from assay.nn.largest import largest
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.auxiliary import RevivingModule
from assay.sparse_coders.base import Codes, CountedCoder, Rows


class Module(RevivingModule):
    k: Tensor

    def __init__(self, models: int, d_in: int, d_code: int, *, auxk: float, dead_after: int, k: Tensor) -> None:
        super().__init__(models, d_in, d_code, auxk=auxk, dead_after=dead_after)
        self.most = int(k.max())
        self.register_buffer("k", k)

    def encode(self, x: Rows) -> Codes:
        return self.batch_code(self.preactivations(x))

    def batch_code(self, z: Codes) -> Codes:
        return largest(relu(z), self.k, self.most)


@sparse_coders.register("topk")
@dataclass(frozen=True, kw_only=True)
class TopK(CountedCoder):
    """Each row keeps its k largest units; silent units learn from what the code missed."""

    version: ClassVar[int] = 2
    module: ClassVar = Module
    weights: ClassVar = ("auxk",)

    auxk: float = 1 / 32
    """Weight of the silent units' share of the error."""
    dead_after: int = 200
    """Steps without firing after which a unit counts as silent."""
