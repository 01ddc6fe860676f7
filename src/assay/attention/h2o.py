"""H2O (Zhang et al. 2023, arXiv 2306.14048) keeps heavy hitters and the latest keys.

    score_j = sum of the attention that key j has received from every query since it came
    evict   argmin of score_j, the latest `recent` of the slots excepted

    slots=2, recent=0.5     query 0   weights 1             scores 1
                                  1   weights .9 .1         scores 1.9 .1
                                  2   weights .2 .5 .3      scores 2.1 .6 .3    3 keys in 2 slots: 2 is recent, 1 goes
                                  3   attends to 0, 2 and 3

Sums are over attention within the cache, half of the slots are for the latest keys, and a query attends before anything
leaves: as in the paper's algorithm.

Differs from the paper: it evicts from the first token on, where the paper reads a prompt densely and sums up its scores
first (protocol `prefix` does). The paper decides per head; where query heads share keys, the sum over the group decides
for the KV head, since nothing smaller can be evicted from a cache. k slots are kept besides the new key, where the
authors' simulation counts it among the latest. Of equal scores the oldest key goes.
"""

from dataclasses import dataclass

from assay.attention import attention
from assay.attention.base import Evict, SlotScores, Step
from assay.core.errors import UserError


@attention.register("h2o")
@dataclass(frozen=True, kw_only=True)
class H2O(Evict):
    """Keeps heavy hitters and the latest keys."""

    recent: float = 0.5
    """Share of the slots reserved for the latest keys."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.recent <= 1:
            raise UserError(f"{self.name}: recent={self.recent} is a share of the slots, from 0 to 1.")

    def score(self, before: SlotScores, step: Step) -> SlotScores:
        return before + step.weights.sum((2, 3))

    def protected(self, slots: int) -> tuple[int, int]:
        return 0, int(self.recent * slots)
