"""The cut that BatchTopK and Matryoshka share: a batch keeps its k x rows largest units.

In training the cut is the batch's own. To code rows one by one afterwards, the smallest activation that was kept,
averaged over steps, is the threshold of every unit: a > threshold.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import relu

from assay.sparse_coders.auxiliary import RevivingModule
from assay.sparse_coders.base import Codes, CountedCoder, PerModel, Rows


class BatchCut(RevivingModule):
    """Rows of a training batch share k x rows active units; rows alone are cut at the average threshold."""

    k: Tensor
    threshold: Tensor

    def __init__(
        self, models: int, d_in: int, d_code: int, *, threshold_rate: float, auxk: float, dead_after: int, k: Tensor
    ) -> None:
        super().__init__(models, d_in, d_code, auxk=auxk, dead_after=dead_after)
        self.threshold_rate, self.most = threshold_rate, int(k.max())
        self.register_buffer("k", k)
        self.register_buffer("threshold", torch.full((models,), -1.0))

    def encode(self, x: Rows) -> Codes:
        z = relu(self.preactivations(x))
        return z * (z > self.threshold[:, None, None])

    def batch_code(self, z: Codes) -> Codes:
        """Code a training batch from its pre-activations, cut by the batch; updates the threshold."""
        rows = z.shape[1]
        flat = rearrange(relu(z), "m b k -> m (b k)")
        values, places = flat.topk(self.most * rows, dim=1)
        kept = values * (torch.arange(self.most * rows, device=z.device) < self.k[:, None] * rows)
        with torch.no_grad():
            self._follow(torch.where(kept > 0, kept, torch.inf).amin(dim=1))
        return rearrange(torch.zeros_like(flat).scatter(1, places, kept), "m (b k) -> m b k", b=rows)

    def _follow(self, least: PerModel) -> None:
        """Update the threshold's moving average from the first batch on; skips batches without active units."""
        moved = torch.where(self.threshold < 0, least, torch.lerp(self.threshold, least, self.threshold_rate))
        self.threshold.copy_(torch.where(least.isfinite(), moved, self.threshold))


@dataclass(frozen=True, kw_only=True)
class BatchCutCoder(CountedCoder):
    """The options of coders that cut by the batch."""

    weights: ClassVar = ("auxk",)
    scales: ClassVar = ("threshold_rate",)

    threshold_rate: float = 0.01
    """How fast the threshold for rows alone follows the batches."""
    auxk: float = 1 / 32
    """Weight of the silent units' share of the error."""
    dead_after: int = 200
    """Steps without firing after which a unit counts as silent."""
