"""Keys drawn at random for each query, from all it may see: the floor for every Select method.

    sparsity=0.5     query 0  #                 query t attends to its own key and a random choice among the others,
                           1  . #               drawn anew for each query and each head
                           2  # . #
                           3  . # . #

The draw depends on the seed, the layer, the head, the query and the key; not on what the sequences hold.
"""

from dataclasses import dataclass

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

    seed: int = 0

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads query key"]:
        # Drawn on the CPU, so that every device gives the same choice.
        rng = stream(self.seed, "attention", self.name, layer.index)
        worth = torch.rand(layer.q.shape[1], layer.time, layer.time, generator=rng).to(layer.q.device)
        return best(worth.expand(layer.rows, -1, -1, -1), layer, budget)
