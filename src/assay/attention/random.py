"""Random attention draws keys for each query, from all it may see: the floor for every Select method.

    sparsity=0.5     query 0  #                 query t attends to its own key and a random choice among the others,
                           1  . #               drawn anew for each query and each head
                           2  # . #
                           3  . # . #

The draw depends on the seed, the layer, the head and the places of query and key, counted from the sequence's start;
not on what the sequences hold. A number is a hash of these, so that it is the same on every device, for every length,
and whichever others are drawn with it.

As in the spec. The query's own key is kept besides.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.attention import attention
from assay.attention.base import Budget, Layer, Select, best_in_parts
from assay.core.seeds import derive

WORD = 2**32 - 1


@attention.register("random")
@dataclass(frozen=True, kw_only=True)
class Random(Select):
    """Draws keys at random for each query."""

    version: ClassVar[int] = 3

    seed: int = 0
    """Seed of the choice: another one draws other keys."""

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads query key"]:
        device = layer.q.device
        # Without a mask all sequences start at 0, and one draw serves them all.
        start = layer.start if layer.mask is not None else torch.zeros(1, dtype=torch.long, device=device)
        place = rearrange(torch.arange(layer.time, device=device) - start[:, None], "r t -> r 1 t")
        head = torch.arange(layer.q.shape[1], device=device)[:, None]

        def score(first: int, end: int) -> Float[Tensor, "#rows heads query key"]:
            # Two numbers for each query: with one, two queries might draw the same sequence of keys, shifted.
            one, two = (self.drawn(layer.index, part, head, place[..., first:end])[..., None] for part in (0, 1))
            mixed = hashed(hashed(place[..., None, :end] + one) + two)
            return (mixed >> 8).float()  # 24 bits, which float32 represents exactly

        return best_in_parts(score, layer, budget)

    def drawn(self, layer: int, part: int, head: Int[Tensor, "heads 1"], place: Tensor) -> Int[Tensor, "..."]:
        """Return a number for each head and query."""
        return hashed(hashed(head + derive(self.seed, "attention", self.name, layer, part) % WORD) + place)


def hashed(x: Int[Tensor, "*numbers"]) -> Int[Tensor, "*numbers"]:
    """Mix the 32 low bits of integers one to one (https://github.com/skeeto/hash-prospector); 64 bits hold every
    product, so that nothing overflows."""
    x = x & WORD
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97 - 2**32)):
        x = ((x ^ x >> shift) * factor) & WORD
    return x ^ x >> 15
