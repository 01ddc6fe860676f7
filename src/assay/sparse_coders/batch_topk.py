"""BatchTopK (Bussmann et al. 2024) keeps the k x rows largest units of a batch, so that rows share them as they need.

a = top_{k rows}(relu(W_enc (x - b_dec) + b_enc)) over the batch,   |x - x'|^2 + auxk |e - e'|^2

The second term is AuxK, as for TopK (sparse_coders.auxiliary).

Differs from the paper: the threshold for rows alone is a moving average of the batches', not an average taken after
training. A unit is silent after 200 steps without firing, where the authors' code has 5 batches of 4,096 rows; AuxK is
weighted by the share of silent units, and counts them below 0 too. b_dec starts at the mean of the training rows, not
at 0; the gradient of decoder rows along themselves is not removed.
"""

from dataclasses import dataclass
from typing import ClassVar

from assay.sparse_coders import sparse_coders
from assay.sparse_coders.batch_cut import BatchCut, BatchCutCoder


@sparse_coders.register("batch_topk")
@dataclass(frozen=True, kw_only=True)
class BatchTopK(BatchCutCoder):
    """A batch keeps its k x rows largest units; rows alone are cut at the average threshold."""

    version: ClassVar[int] = 2
    module: ClassVar = BatchCut
