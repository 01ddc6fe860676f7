"""Rank correlation says whether two numbers order things alike, whatever their scales."""

from typing import Any

from assay.core.on_use import Later

numpy: Any = Later("numpy")
stats: Any = Later("scipy.stats")


def spearman(xs: Any, ys: Any) -> Any:
    """Return the correlation of ranks along the last axis, those of ties averaged; 0 where one side is constant."""
    one, other = (stats.rankdata(values, axis=-1) for values in (xs, ys))
    one, other = (ranks - ranks.mean(-1, keepdims=True) for ranks in (one, other))
    size = numpy.sqrt((one**2).sum(-1) * (other**2).sum(-1))
    return (one * other).sum(-1) / numpy.where(size > 0, size, 1)
