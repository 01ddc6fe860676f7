"""Keys drawn at random for each query, from all it may see: the floor for every Select method.

    sparsity=0.5     query 0  #                 query t attends to its own key and a random choice among the others,
                           1  . #               drawn anew for each query and each head
                           2  # . #
                           3  . # . #

The draw depends on the seed, the layer, the head, the query and the key; not on what the sequences hold.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from assay.attention import attention
from assay.attention.base import Budget, Layer, Select, best
from assay.nn.random import stream


@attention.register("random")
@dataclass(frozen=True, kw_only=True)
class Random(Select):
    """A random choice per query."""

    version: ClassVar[int] = 2

    seed: int = 0

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads query key"]:
        # Drawn on the CPU, the same choice on every device, and query after query, the same for every length.
        rng, heads, time = stream(self.seed, "attention", self.name, layer.index), layer.q.shape[1], layer.time
        drawn = torch.rand(time * (time + 1) // 2, heads, generator=rng)
        worth = torch.zeros(heads, time, time)
        worth[:, torch.ones(time, time, dtype=torch.bool).tril()] = drawn.mT
        return best(worth.to(layer.q.device).expand(layer.rows, -1, -1, -1), layer, budget)
