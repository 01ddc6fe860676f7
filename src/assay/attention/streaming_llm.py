"""StreamingLLM (Xiao et al. 2023, arXiv 2309.17453) keeps the first tokens, as sinks, and the latest.

    slots=3, num_sink_tokens=1     query 0  #
                                         1  # #
                                         2  # # #
                                         3  # # # #
                                         4  # . # # #
                                         5  # . . # # #

This file says which keys are attended to. In the published form positions are also counted inside the cache, which
whoever turns queries and keys by their positions has to do. A model with a sliding window of its own (Mistral, the
local layers of Gemma 3) then counts it inside the cache too, so that the sinks stay in sight while the cache is shorter
than that window. With positions of the text the window passes them by, and what is left is a plain window: rows say so.

Differs from the paper: positions are those of the text unless `--positions cache` is given, and rows say so. The window
is what the sinks leave of the budget, where the authors' code has 512. The 4 sinks, and attending to the cache and the
new token before anything leaves, are as published.
"""

from dataclasses import dataclass
from typing import ClassVar

from assay.attention import attention
from assay.attention.base import Budget, Key, Pattern, Query, Sees, cache_density


@attention.register("streaming_llm")
@dataclass(frozen=True, kw_only=True)
class StreamingLLM(Pattern):
    """Keeps sinks and the latest keys."""

    published_in_cache: ClassVar[bool] = True
    when_hidden: ClassVar[str] = "a plain window where the model's own hides the sinks"

    num_sink_tokens: int = 4
    """First keys that are never evicted; the paper finds 4 enough."""
    window_size: int = 0
    """Most latest keys, even where the budget allows more; 0: all that the sinks leave of the budget."""

    def sees(self, query: Query, key: Key, *, time: int, slots: int) -> Sees:
        return (key < self.num_sink_tokens) | (query - key <= self._window(slots))

    def cache(self, slots: int) -> tuple[int, int] | None:
        return self.num_sink_tokens, self._window(slots)

    def expected_density(self, time: int, budget: Budget) -> float | None:
        return cache_density(time, self.num_sink_tokens + self._window(budget.cache(time)))

    def check(self, time: int, budget: Budget) -> None:
        self.require(time, budget, self.num_sink_tokens, f"fewer than its {self.num_sink_tokens} sinks")

    def _window(self, slots: int) -> int:
        left = slots - self.num_sink_tokens
        return min(left, self.window_size) if self.window_size else left
