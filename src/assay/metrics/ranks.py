"""Rank correlation says whether two numbers order things alike, whatever their scales."""

from collections.abc import Sequence
from statistics import correlation
from typing import Any

from assay.core.on_use import Later

stats: Any = Later("scipy.stats")


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the correlation of ranks, those of ties averaged; 0 where one side is constant."""
    if len(set(xs)) == 1 or len(set(ys)) == 1:
        return 0.0
    return correlation(stats.rankdata(xs).tolist(), stats.rankdata(ys).tolist())
