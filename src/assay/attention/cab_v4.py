"""CAB V4 ("hybrid") chooses blocks of keys by attention weight first, then by curvature: see curvature.py.

    magnitude_ratio of the blocks besides the own one go to the highest weight that any query of the block before gave
    to any key of the block; the others, not chosen yet, by curvature

    query block 4, 3 blocks, magnitude_ratio=0.5     weight     0: .1   1: .6   2: .3   3: .2      -> 1
                                                     curvature  0: .7   1: .9   2: .5   3: .4      -> 0      4 1 0

Differs from the spec: nothing reads the future (rows say `causal`), as for cab_v3; weights too are those of the block
before. Each row has a budget of its own, as in V3, where the code behind the spec lets the whole matrix compete for
one; and a block that both rules choose is made up for by another, so that the budget is spent.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from assay.attention import attention, flex
from assay.attention.base import Layer
from assay.attention.curvature import Among, Count, CurvatureSelect, Scores, tiles
from assay.attention.layer import Blocks
from assay.core.convert import added
from assay.core.errors import UserError


@attention.register("cab_v4")
@dataclass(frozen=True, kw_only=True)
class CabV4(CurvatureSelect):
    """Chooses blocks of keys by attention weight, then by curvature."""

    aliases: ClassVar[tuple[str, ...]] = ("cab",)

    magnitude_ratio: float = 0.5
    """Share of the blocks chosen by attention weight."""
    queries: int = added(0)
    """Last queries of the block before whose weights count; 0: all. Few make choosing cheaper."""

    @property
    def label(self) -> str:
        return self.name + super().label.removeprefix("cab")  # the alias `cab` does not say which version it is

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.magnitude_ratio <= 1:
            raise UserError(f"{self.name}: magnitude_ratio={self.magnitude_ratio} is a share, from 0 to 1.")
        if not 0 <= self.queries <= self.block_size:
            raise UserError(f"{self.name}: queries={self.queries} of a block of {self.block_size}; 0 is all.")

    def in_blocks_of(self, size: int) -> "CabV4":
        return replace(self, block_size=size, queries=min(self.queries, size))

    def vectors_read(self, visible: float, attended: float) -> float:
        """Every key is read by each query whose weights count: they are those of dense attention."""
        return visible * (self.queries or self.block_size) / self.block_size + attended

    def choose(self, layer: Layer, curvature: Scores, count: Count, among: Among) -> Blocks:
        magnitude = pad(self.magnitude(layer)[:, :, :-1], (0, 0, 1, 0))
        heavy = 1 + (self.magnitude_ratio * (count - 1)).round().long()
        chosen = self.highest(layer, magnitude, heavy.minimum(count), among)
        return self.highest(layer, curvature.masked_fill(chosen, float("inf")), count, among)

    def magnitude(self, layer: Layer) -> Scores:
        """Return the highest weight that any query of a block, or any of its last `queries`, gives to any key of
        another. Computed one block of queries at a time, since the whole matrix of a long sequence fits into no
        memory."""
        if (found := flex.block_weights(layer, self.block_size, self.queries)) is not None:
            return found
        blocks, rows = -(-layer.time // self.block_size), list[Tensor]()
        for start in range(0, layer.time, self.block_size):
            end = min(start + self.block_size, layer.time)
            first = start + self.block_size - (self.queries or self.block_size)
            if first >= end:  # a last block that is cut short, and by which no other is chosen
                rows.append(torch.zeros_like(rows[-1]) if rows else layer.q.new_zeros(*layer.q.shape[:2], 1, blocks))
                continue
            row = tiles(layer.weights_between(first, end).flatten(1, 2), self.block_size)
            rows.append(pad(row, (0, blocks - row.shape[-1])))
        return torch.cat(rows, dim=2)
