"""Q-Filters (Godey et al. 2025, arXiv 2503.02812) keep the keys that lie along the main direction of the queries.

    u       = first right singular vector of the queries, turned so that queries lie along it on average
    score_j = k_j . u          where query heads share keys, u is the mean over the group

    queries near (2, 1)     keys (1, 0)  (0, 1)  (-1, 0)     scores .9  .4  -.9

No weight of attention is computed: queries of a head lie to one side of the origin, so one direction tells which keys
they favour.

Differs from the paper: u is that of the prefix's own queries, at their positions, where the authors compute it once for
a model from other texts and store it. A stored one would have to be made for every model first.
"""

from dataclasses import dataclass

import torch
from einops import reduce

from assay.attention import attention
from assay.attention.base import Layer, Prefix, PrefixScores


@attention.register("qfilter")
@dataclass(frozen=True, kw_only=True)
class QFilter(Prefix):
    """Keeps the keys of a prefix that lie along the main direction of its queries."""

    departure = "direction of the prefix's own queries"

    def score(self, layer: Layer, length: int) -> PrefixScores:
        q = layer.q[:, :, :length].to(layer.wide) * layer.exists[:, None, :length, None]
        _, directions = torch.linalg.eigh(q.mT @ q)  # in ascending order: the last is the first singular vector
        main = directions[..., -1]
        along = (q @ main[..., None]).sum((2, 3))
        main = main * along.sign()[..., None]
        mean = reduce(main, "r (h g) d -> r h 1 d", "mean", g=layer.group)
        return (layer.k[:, :, :length].to(layer.wide) * mean).sum(-1)
