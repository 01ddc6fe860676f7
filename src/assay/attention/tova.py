"""TOVA (Oren et al. 2024, arXiv 2401.06104) evicts the key that the present query attends to least.

score_j = attention of the present query to key j, averaged over all heads of the layer
evict   argmin of score_j; nothing is protected, so that the newest key itself may go

slots=2     query 2   weights .2 .5 .3    key 0 goes, however much earlier queries cared for it
                  3   attends to 1, 2 and 3

As published. Of equal scores, on which the paper is silent, the oldest key goes.
"""

from dataclasses import dataclass
from typing import Literal

from assay.attention import attention
from assay.attention.base import Evict, SlotScores, Step


@attention.register("tova")
@dataclass(frozen=True, kw_only=True)
class Tova(Evict):
    """Evicts the key that the present query attends to least."""

    granularity: Literal["kv_head", "layer"] = "layer"

    def score(self, before: SlotScores, step: Step) -> SlotScores:
        return step.weights[:, :, :, -1].mean(2)
