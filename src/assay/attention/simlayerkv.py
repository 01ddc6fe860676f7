"""SimLayerKV (Zhang et al. 2024, arXiv 2410.13846) cuts down lazy layers, those that attend to little but sinks and the
latest keys; other layers keep everything.

    laziness = attention of the last `last_queries` queries of the prefix to its first num_sink_tokens keys and its
               latest k - num_sink_tokens, in the mean over heads and queries
    lazy     laziness > threshold: these keys are kept, and no others

    k=3, num_sink_tokens=1, threshold=0.65     weights  .3 .1 .1 .2 .3     .3 + .2 + .3 = .8: lazy, keys 0, 3 and 4
                                                        .2 .4 .3 .0 .1     .2 + .0 + .1 = .3: every key

A threshold decides how much is kept, and k is what a lazy layer has: rows say so, and are to be read by what is
realised. The authors have thresholds of 0.9 (Llama 3), 0.8 (Mistral) and 0.65 (Llama 2).

Differs from the paper: the latest keys are those that k leaves, where the authors have 1,024; and the end of the prefix
decides, as in their form for prefilling, whose 32 queries are fewer here.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from assay.attention import attention
from assay.attention.base import Budget, HeadSlots, Layer, Prefix, PrefixScores
from assay.core.errors import UserError


@attention.register("simlayerkv")
@dataclass(frozen=True, kw_only=True)
class SimLayerKV(Prefix):
    """Keeps sinks and the latest keys of a prefix in lazy layers, and everything in the others."""

    bounded: ClassVar[bool] = False
    departure = "k in lazy layers"

    num_sink_tokens: int = 4
    """First keys that a lazy layer keeps."""
    last_queries: int = 8
    """Last queries of the prefix, whose attention decides."""
    threshold: float = 0.65
    """Share of the attention beyond which a layer is lazy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold <= 1:
            raise UserError(f"{self.name}: threshold is a share, from 0 to 1, and last_queries is at least 1.")

    def score(self, layer: Layer, length: int) -> PrefixScores:
        place = layer.place[:, :length]
        found = place.to(layer.wide).masked_fill(place < self.num_sink_tokens, float("inf"))
        return found[:, None].expand(-1, layer.k.shape[1], -1)

    def budgets(self, layer: Layer, length: int, slots: int) -> HeadSlots:
        lazy = self.laziness(layer, length, slots) > self.threshold
        own = torch.where(lazy, min(slots, length), length)
        return own[:, None].expand(-1, layer.k.shape[1]).contiguous()

    def laziness(self, layer: Layer, length: int, slots: int) -> Float[Tensor, " rows"]:
        """Return the share of attention that the keys of a lazy layer have."""
        first = max(0, length - self.last_queries)
        place = layer.place[:, :length]
        kept = (place < self.num_sink_tokens) | (place >= length - layer.start[:, None] - slots + self.num_sink_tokens)
        weights = layer.weights_between(first, length) * kept[:, None, None, None]
        return weights.sum(-1).mean((1, 2, 3))

    def check(self, time: int, budget: Budget) -> None:
        self.require(time, budget, self.num_sink_tokens + 1, f"no more than its {self.num_sink_tokens} sinks")
