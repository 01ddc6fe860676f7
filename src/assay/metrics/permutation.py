"""Tests of matrices of similarities by permutation: pairs share models, so no formula for independent values holds.

What is permuted is the models, never the pairs; p is (1 + as extreme or more) / (1 + permutations), so never 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from assay.core.errors import UserError
from assay.metrics.distances import correlation

Square = Float[np.ndarray, "N N"]


@dataclass(frozen=True)
class Mantel:
    """The correlation of two matrices over pairs, and how often permuted models give one as large, either way."""

    r: float
    p: float


@dataclass(frozen=True)
class Contrast:
    """Means over the pairs of one group and over all other pairs; p: of so large a difference, either way."""

    within: float
    between: float
    p: float

    @property
    def difference(self) -> float:
        return self.within - self.between


def mantel(one: Square, other: Square, *, rng: np.random.Generator, permutations: int = 999) -> Mantel:
    """Mantel (1967)."""
    if len(one) < 3:
        raise UserError(f"{len(one)} models: matrices of 3 or more can be compared.")
    pairs = np.triu_indices(len(one), k=1)
    first = one[pairs]

    def statistic(order: Any) -> float:
        return correlation(first, other[np.ix_(order, order)][pairs])

    found = statistic(np.arange(len(one)))
    return Mantel(found, _p(found, [statistic(rng.permutation(len(one))) for _ in range(permutations)]))


def contrast(
    matrix: Square,
    groups: Sequence[Any],
    *,
    rng: np.random.Generator,
    permutations: int = 999,
    ignore: Bool[np.ndarray, "N N"] | None = None,
) -> Contrast | None:
    """Pairs of one group against all others, models permuted among the groups; None where a side has no pair.
    `ignore` takes pairs out of both sides, and moves with the labels."""
    labels = np.unique(np.asarray([str(group) for group in groups]), return_inverse=True)[1]
    upper = np.triu_indices(len(matrix), k=1)
    same = labels[:, None] == labels
    counted = np.ones_like(same) if ignore is None else ~ignore
    inside, outside = (same & counted)[upper], (~same & counted)[upper]
    if not inside.any() or not outside.any():
        return None

    def means(order: Any) -> tuple[float, float]:
        values = matrix[np.ix_(order, order)][upper]
        return float(values[inside].mean()), float(values[outside].mean())

    within, between = means(np.arange(len(matrix)))
    others = [means(rng.permutation(len(matrix))) for _ in range(permutations)]
    return Contrast(within, between, _p(within - between, [x - y for x, y in others]))


def _p(found: float, others: Sequence[float]) -> float:
    # Permutations that change nothing must count as equal, whatever the order of the sum did to the last bit.
    extreme = np.abs(others) >= abs(found) * (1 - 1e-12)
    return float((1 + extreme.sum()) / (1 + len(others)))
