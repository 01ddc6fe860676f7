"""A window (Beltagy et al. 2020, arXiv 2004.05150) keeps the latest k keys and the query's own: it evicts the oldest.

    slots=2     query 0  #
                      1  # #
                      2  # # #
                      3  . # # #
                      4  . . # # #

On models whose first tokens serve as attention sinks it collapses as soon as these leave the cache (Xiao et al. 2023).

Differs from the paper: one window for every layer and head, neither dilated nor with global tokens, put on models that
were trained without it.
"""

from dataclasses import dataclass

from assay.attention import attention
from assay.attention.base import Key, Pattern, Query, Sees


@attention.register("window")
@dataclass(frozen=True, kw_only=True)
class Window(Pattern):
    """Keeps the latest keys alone."""

    def sees(self, query: Query, key: Key, *, time: int, slots: int) -> Sees:
        return query - key <= slots

    def cache(self, slots: int) -> tuple[int, int] | None:
        return 0, slots
