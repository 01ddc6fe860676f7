"""Error bars come from resampling clusters (articles, blocks of a book), each with all its tokens.

Two things scored on the same clusters are compared on the same draws, so that what makes a cluster hard cancels.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, wraps
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.seeds import derive
from assay.metrics.intervals import Interval

LEAST = 20
"""With fewer clusters there is no interval."""
DRAWS, LEVEL = 4000, 0.95
Result = TypeVar("Result")


@cache
def draws(clusters: int) -> Float[Tensor, "draws clusters"]:
    """Return how often each cluster comes up in each draw of as many clusters."""
    rng = torch.Generator().manual_seed(derive(0, "bootstrap", clusters))
    chosen = torch.randint(clusters, (DRAWS, clusters), generator=rng)
    return torch.zeros(DRAWS, clusters, dtype=torch.float64).scatter_add_(
        1, chosen, torch.ones(DRAWS, clusters, dtype=torch.float64)
    )


def _once(function: Callable[..., Result]) -> Callable[..., Result]:
    """Cache by the sums' values, one per cluster: tables, charts and files ask for the same intervals."""
    known = lru_cache(maxsize=4096)(function)
    return wraps(function)(lambda *sums: known(*map(tuple, sums)))


def ratio(total: Sequence[float], count: Sequence[float]) -> Interval:
    """Return sum(total) / sum(count) over clusters, such as the loss per token."""
    return ratio_difference(total, count, [0.0] * len(total), [1.0] * len(total))


@_once
def ratio_difference(
    total: Sequence[float], count: Sequence[float], other_total: Sequence[float], other_count: Sequence[float]
) -> Interval:
    """Return the first ratio less the second, over the same clusters."""
    sums = [torch.tensor(values, dtype=torch.float64) for values in (total, count, other_total, other_count)]
    mean = (sums[0].sum() / sums[1].sum() - sums[2].sum() / sums[3].sum()).item()
    if len(total) < LEAST:
        return Interval(mean, None, None, len(total))
    low, high = quantiles(_drawn_differences(sums), (1 - LEVEL) / 2, (1 + LEVEL) / 2)
    return Interval(mean, low, high, len(total))


def quantiles(values: Float[Tensor, " draws"], *levels: float) -> list[float]:
    """Return what `torch.quantile` gives. That sorts all values; numpy selects those beside each level."""
    import numpy as np

    return np.quantile(values.numpy(), torch.tensor(levels).double().numpy()).tolist()


@_once
def ratio_difference_p(
    total: Sequence[float], count: Sequence[float], other_total: Sequence[float], other_count: Sequence[float]
) -> float:
    """Return the two-sided p of no difference from the draws of `ratio_difference`: twice the share beyond 0. Where
    none is, the normal tail at the draws' spread gives it, since Holm over many pairs needs a number above 0."""
    if len(total) < LEAST:
        return 1.0
    found = _drawn_differences([torch.tensor(v, dtype=torch.float64) for v in (total, count, other_total, other_count)])
    spread, n = found.std().item(), len(found)
    if spread == 0:  # every cluster has the same difference: p of as many signs that agree by chance
        return 1.0 if found[0] == 0 else 2.0 ** (1 - len(total))
    beyond = min((found <= 0).sum().item(), (found >= 0).sum().item())
    counted = min(1.0, 2 * (beyond + 1) / (n + 1))
    return counted if beyond else min(counted, math.erfc(abs(found.mean().item()) / spread / math.sqrt(2)))


def _drawn_differences(sums: Sequence[Float[Tensor, " clusters"]]) -> Float[Tensor, " draws"]:
    a, b, c, d = (draws(len(sums[0])) @ torch.stack(list(sums), dim=1)).unbind(1)
    found = a / b - c / d
    return found[found.isfinite()]
