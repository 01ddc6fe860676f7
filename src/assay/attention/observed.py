"""Observed attention keeps the keys of a prompt that received the most attention, on average over those who saw them.

    score_j = sum of the attention of queries j..n-1 to key j / (n - j)

    n=3     weights  1              scores  (1 + .6 + .2) / 3 = .6
                     .6 .4                  (.4 + .3) / 2     = .35
                     .2 .3 .5               .5 / 1            = .5      2 slots: 0 and 2

H2O's sum, divided by the number of queries that could see the key, so that late keys are not at a disadvantage; and no
part of the slots is for the latest keys.

No paper: the form that kvpress gives to H2O (Zhang et al. 2023) after a dense prompt; `h2o` under `--protocol prefix`
is the paper's own.
"""

from dataclasses import dataclass

import torch

from assay.attention import attention
from assay.attention.base import Layer, Prefix, PrefixScores

QUERIES_AT_ONCE = 64
"""Weights of so many queries are in memory together."""


@attention.register("observed")
@dataclass(frozen=True, kw_only=True)
class Observed(Prefix):
    """Keeps the keys of a prefix with the highest mean attention."""

    def score(self, layer: Layer, length: int) -> PrefixScores:
        total = torch.zeros(layer.rows, layer.k.shape[1], length, dtype=layer.wide, device=layer.k.device)
        for first in range(0, length, QUERIES_AT_ONCE):
            end = min(first + QUERIES_AT_ONCE, length)
            total[..., :end] += layer.weights_between(first, end).mean(2).sum(2)
        return total / layer.visible[:, None, :length, :length].sum(2).clamp(min=1)
