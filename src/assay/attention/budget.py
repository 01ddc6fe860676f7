"""A budget says how many keys a method may keep; densities say what share of the keys in sight that is."""

from collections.abc import Sequence
from dataclasses import dataclass

from assay.core.errors import UserError


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
