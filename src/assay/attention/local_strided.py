"""The latest keys and every stride-th one before them (Sparse Transformer, Child et al. 2019, arXiv 1904.10509).

    local_window=1, stride=3     query 0  #
                                       1  # #
                                       2  # # #
                                       3  # . # #
                                       4  # . . # #
                                       5  # . . # # #
                                       6  # . . # . # #

An option left at 0 follows from the budget of k slots: half of it is the window, and the stride is the smallest whose
columns fit into the rest at the end of the sequence. So T has to be known, as it has for any budget in parts of T.
"""

from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall, Pattern, density_of
from assay.core.errors import UserError


@attention.register("local_strided")
@dataclass(frozen=True, kw_only=True)
class LocalStrided(Pattern):
    """The latest keys and every stride-th."""

    local_window: int = 0
    """Latest keys, the query's own not counted; 0: half of the budget, or what the stride leaves."""
    stride: int = 0
    """Distance of the columns, the first key among them; 0: what the window leaves of the budget decides."""

    def as_mixer(self) -> "LocalStrided":
        if not (self.local_window and self.stride):
            raise UserError(f"{self.label} has to be given a local_window and a stride, such as 16 and 8.")
        return self

    def sees(
        self, query: Int[Tensor, "*q 1"], key: Int[Tensor, "*k"], *, time: int, slots: int
    ) -> Bool[Tensor, "*rows query key"]:
        window, stride = self.shape(time, slots)
        return (query - key <= window) | (key % stride == 0)

    def shape(self, time: int, slots: int) -> tuple[int, int]:
        """Window and stride for a budget: ceil((time - 1 - window) / stride) columns lie before the last window."""
        window = self.local_window or (slots // 2 if not self.stride else max(0, slots - columns(time, self.stride)))
        stride = self.stride or -(-max(1, time - 1 - window) // max(1, slots - window))
        return window, stride

    def expected_density(self, time: int, budget: Budget) -> float | None:
        window, stride = self.shape(time, budget.cache(time))
        return density_of([min(t, window) + 1 + columns(t - window, stride) for t in range(time)])

    def check(self, time: int, budget: Budget) -> None:
        slots = budget.cache(time)
        window, stride = self.shape(time, slots)
        needed = min(time - 1, window + columns(time - 1 - window, stride))
        if needed > slots:
            raise BudgetTooSmall(
                f"{self.name}: {budget} gives {slots} slots at {time} tokens, and a window of {window} with every "
                f"{stride}th key takes {needed}."
            )


def columns(keys: int, stride: int) -> int:
    """How many of the first `keys` keys are multiples of the stride."""
    return -(-max(0, keys) // stride)
