"""Local and strided attention reads the latest keys and every stride-th one before them (after Child et al. 2019).

    local_window=1, stride=3     query 0  #                  pattern=strided     #
                                       1  # #                                    # #
                                       2  # # #                                  . # #
                                       3  # . # #                                # . # #
                                       4  # . . # #                              . # . # #
                                       5  # . . # # #                            . . # . # #
                                       6  # . . # . # #                          # . . # . # #

`fixed`, the spec's form, reads the same columns for every query: key j where j mod stride is 0. An option left at 0
follows from the budget of k slots: half of it is the window, and the stride is the smallest whose columns fit into the
rest at the end of the sequence. So T has to be known, as it has for any budget in parts of T.

`strided` is the pattern of the Sparse Transformer (arXiv 1904.10509): key j where (i - j) mod stride is 0, and window
and stride are one number. Without options it is the smallest that fits into the slots: sqrt(T) where these are few, as
in the paper, and below about 2 sqrt(T) slots there is none. A key left out comes back later, so that everything has to
stay in memory; what is read shrinks.

Differs from the paper: by default the columns are fixed, which rows say. The paper's own "fixed" pattern is another: a
query reads its block of l tokens, and the last c places of every block before. Both parts of a pattern are read by
every head, where the paper also gives them to different heads or layers; and the models were trained without them. Of
the spec's code: there half of `local_window` is the window.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import ClassVar, Literal

from assay.attention import attention
from assay.attention.base import Budget, Key, Pattern, Query, Sees, density_of
from assay.core.errors import UserError


@attention.register("local_strided")
@dataclass(frozen=True, kw_only=True)
class LocalStrided(Pattern):
    """Attends to the latest keys and every stride-th one before."""

    when_hidden: ClassVar[str] = "a plain window where the model's own hides the columns"

    local_window: int = 0
    """Latest keys, the query's own not counted; 0: half of the budget, or what the stride leaves; for `strided`, the
    stride."""
    stride: int = 0
    """Distance of the columns, the first key among them; 0: what the window leaves of the budget decides; for
    `strided`, the window."""
    pattern: Literal["fixed", "strided"] = "fixed"
    """Whether the keys before the window are the same columns for every query, or multiples of the stride before the
    query, as published."""

    @property
    def departure(self) -> str:
        if self.pattern == "fixed":
            return "fixed columns"
        return "" if self.local_window in (0, self.stride) or not self.stride else "window unlike the stride"

    @property
    def forgets(self) -> bool:
        return self.pattern == "fixed"

    def as_mixer(self) -> "LocalStrided":
        if not self.forgets:
            raise UserError(f"{self.label} comes back to keys that it has left out: as a mixer, use pattern=fixed.")
        if not (self.local_window and self.stride):
            raise UserError(f"{self.label} has to be given a local_window and a stride, such as 16 and 8.")
        return self

    def sees(self, query: Query, key: Key, *, time: int, slots: int) -> Sees:
        window, stride = self.shape(time, slots)
        counted = key if self.pattern == "fixed" else query - key
        return (query - key <= window) | (counted % stride == 0)

    def shape(self, time: int, slots: int) -> tuple[int, int]:
        """Return window and stride for a budget."""
        if self.pattern == "strided":
            length = self.stride or self.local_window or finest(time, slots)
            return self.local_window or length, self.stride or length
        # ceil((time - 1 - window) / stride) columns lie before the last window.
        window = self.local_window or (slots // 2 if not self.stride else max(0, slots - columns(time, self.stride)))
        stride = self.stride or -(-max(1, time - 1 - window) // max(1, slots - window))
        return window, stride

    def keys_before(self, t: int, window: int, stride: int) -> int:
        """Return how many keys query t sees besides its own."""
        near = min(t, window)
        return near + (columns(t - window, stride) if self.pattern == "fixed" else t // stride - near // stride)

    def expected_density(self, time: int, budget: Budget) -> float | None:
        window, stride = self.shape(time, budget.cache(time))
        return density_of([1 + self.keys_before(t, window, stride) for t in range(time)])

    def check(self, time: int, budget: Budget) -> None:
        window, stride = self.shape(time, budget.cache(time))
        needed = self.keys_before(time - 1, window, stride)
        short = f"and a window of {window} with every {stride}th key takes {needed}"
        self.require(time, budget, needed, short)


def columns(keys: int, stride: int) -> int:
    """Return how many of the first `keys` keys are multiples of the stride."""
    return -(-max(0, keys) // stride)


@lru_cache(maxsize=256)
def finest(time: int, slots: int) -> int:
    """Return the smallest l for which the latest l keys, and every l-th before them, fit into the slots; if none does,
    the one that takes the fewest. Cached: every layer asks."""
    last = time - 1
    return next((size for size in range(1, time) if size + last // size - 1 <= slots), max(1, isqrt(last)))
