"""A budget says how many keys a method may keep, a density what share of the keys in sight that is; and those with the
highest scores are chosen, as many as a budget allows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.attention.layer import Layer
from assay.core.errors import UserError

SCORES_AT_ONCE = 2**22  # query-key pairs sorted together


class BudgetTooSmall(UserError):
    """The budget leaves a method too few keys to work as defined; a table shows this in place of a number."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The number of keys that may be kept, given in one of two ways.

    sparsity s   k = (1 - s) T slots for Pattern and Evict; (1 - s) of the keys in sight, per query, for Select
    slots k      k slots, read together with the query's own key; for Select the best k keys and the query's own
    """

    sparsity: float | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        if (self.sparsity is None) == (self.slots is None):
            raise UserError("a budget is either a sparsity or a number of slots: give one of them.")
        if self.sparsity is not None and not 0 <= self.sparsity < 1:
            raise UserError(f"sparsity={self.sparsity}: it is the share left out, at least 0 and below 1.")
        if self.slots is not None and self.slots < 1:
            raise UserError(f"slots={self.slots}: keep at least 1.")

    def cache(self, time: int) -> int:
        """Return the number k of cache slots for `time` tokens."""
        return self.slots if self.slots is not None else self._share(time)

    def keys(self, visible: int) -> int:
        """Return how many keys a Select method reads for a query that may see `visible`, its own included."""
        return min(self.slots + 1, visible) if self.slots is not None else self._share(visible)

    def _share(self, of: int) -> int:
        assert self.sparsity is not None
        return max(1, round((1 - self.sparsity) * of))

    def __str__(self) -> str:
        return f"slots={self.slots}" if self.slots is not None else f"sparsity={self.sparsity}"


def density_of(keys: list[int]) -> float:
    """Return keys attended over keys in sight, where query t attends to keys[t] of its t + 1."""
    return sum(keys) / (len(keys) * (len(keys) + 1) / 2)


def block_density(time: int, size: int, blocks: list[int]) -> float:
    """Return `density_of` where query t attends to blocks[t] blocks of `size` keys, the last of them its own."""
    return density_of([(n - 1) * size + t % size + 1 for t, n in enumerate(blocks)])


def cache_density(time: int, slots: int) -> float:
    """Return the density of a full cache and the query's own key: near s^2, not s, for (1 - s) T slots."""
    return density_of([min(t, slots) + 1 for t in range(time)])


def shared_out(total: int, shares: Sequence[float], *, most: int) -> list[int]:
    """Return whole numbers in proportion to the shares, none above `most` and together no more than `total`; what one
    has too much goes to the others, in proportion again."""
    given: dict[int, int] = {}
    while len(given) < len(shares):
        rest = [place for place in range(len(shares)) if place not in given]
        unit = (total - sum(given.values())) / sum(shares[place] for place in rest)
        full = [place for place in rest if shares[place] * unit >= most]
        # The tiny amount keeps 3 x 0.1 / 0.3 from becoming 0.
        given |= dict.fromkeys(full, most) or {place: int(shares[place] * unit + 1e-9) for place in rest}
    return [given[place] for place in range(len(shares))]


def best(
    score: Float[Tensor, "rows heads query key"], layer: Layer, budget: Budget
) -> Bool[Tensor, "rows heads query key"]:
    """Return a mask of each query's own key and its highest-scoring keys, as many as the budget allows."""
    return best_in_parts(lambda first, end: score[:, :, first:end, :end], layer, budget)


def best_in_parts(
    score: Callable[[int, int], Float[Tensor, "#rows heads query key"]], layer: Layer, budget: Budget
) -> Bool[Tensor, "rows heads query key"]:
    """Return the same as `best`, where `score(first, end)` scores the keys before `end` for the queries first..end-1.
    It is called for some queries at a time, since scores for all of them would fill memory."""
    counts = torch.tensor([0] + [budget.keys(n + 1) for n in range(layer.time)], device=layer.q.device)
    allowed = counts[layer.visible.sum(-1)][:, None, :, None]
    own = torch.eye(layer.time, dtype=torch.bool, device=layer.q.device)
    kept = torch.zeros(layer.rows, layer.q.shape[1], *own.shape, dtype=torch.bool, device=own.device)
    at_once = max(1, SCORES_AT_ONCE // (layer.rows * layer.q.shape[1] * layer.time))
    for first in range(0, layer.time, at_once):
        end = min(first + at_once, layer.time)
        given = score(first, end).masked_fill(own[first:end, :end], float("inf")).expand(layer.rows, -1, -1, -1)
        kept[:, :, first:end, :end] = highest(given, allowed[:, :, first:end], layer.visible[:, None, first:end, :end])
    return kept


def highest(
    score: Float[Tensor, "*rows choice"], count: Int[Tensor, "*#rows 1"], among: Bool[Tensor, "*#rows choice"]
) -> Bool[Tensor, "*rows choice"]:
    """Return a mask of the `count` highest-scoring choices in each row; among equals, the first."""
    score = score.masked_fill(~among, float("-inf"))
    order = score.argsort(dim=-1, descending=True, stable=True)
    taken = torch.arange(score.shape[-1], device=score.device) < count
    return torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, taken.expand(order.shape)) & among
