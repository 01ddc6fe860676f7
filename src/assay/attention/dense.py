"""Dense attention reads every key that the model itself lets a query see: what the others are compared with.

query 0  #
      1  # #
      2  # # #
      3  # # # #        whatever the budget

No paper: it is the model as it comes.
"""

from dataclasses import dataclass

import torch

from assay.attention import attention
from assay.attention.base import Budget, Key, Pattern, Query, Sees


@attention.register("dense")
@dataclass(frozen=True, kw_only=True)
class Dense(Pattern):
    """Attends to every key, whatever the budget."""

    def sees(self, query: Query, key: Key, *, time: int, slots: int) -> Sees:
        return torch.ones_like(query >= key)

    def expected_density(self, time: int, budget: Budget) -> float | None:
        return 1.0
