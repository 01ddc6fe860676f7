"""Quest (Tang et al. 2024, arXiv 2406.10774) reads the pages of keys that may hold the highest scores.

    page p has the elementwise bounds m_p <= k <= M_p of its keys, so that for every key in it
    q . k  <=  sum_d max(q_d m_d, q_d M_d)          the page's score: an upper bound of its best score

    page_size=2, 2 pages:     query 6   # # . . . . #       the query's own page, and the best other one

Everything stays in memory, with two vectors per page on top; what is read shrinks. The first layers stay dense. Pages
of 16 keys, 3 of them at least, two dense layers and a choice per query head are the authors'.

Differs from the paper: the query's own page is always among those read, where the authors' code lets it compete; a
budget that is no multiple of the page is rounded up to pages, theirs down. Every query chooses, from the first token
on, where the paper reads a prompt densely.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from assay.attention import attention
from assay.attention.base import Budget, Layer, Select, block_density, highest


@attention.register("quest")
@dataclass(frozen=True, kw_only=True)
class Quest(Select):
    """Reads the pages whose bound on the scores is highest."""

    may_be_none: ClassVar[tuple[str, ...]] = ("dense_layers",)

    page_size: int = 16
    """Keys of a page, which are read together or not at all."""
    min_pages: int = 3
    """Least number of pages read, the query's own included."""
    dense_layers: int = 2
    """First layers of the model, which attend to everything."""

    def as_mixer(self) -> "Quest":
        """Return the method without dense layers, which are the first of a deep model."""
        return replace(self, dense_layers=0)

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads query key"]:
        if layer.index < self.dense_layers:
            return layer.visible[:, None].expand(-1, layer.q.shape[1], -1, -1)
        missing = -layer.time % self.page_size
        in_sight = reduce(pad(layer.visible, (0, missing)), "r q (p s) -> r q p", "max", s=self.page_size)
        counts = torch.tensor([0] + [self.pages(n + 1, budget) for n in range(layer.time)], device=layer.q.device)
        place = torch.arange(layer.time, device=layer.q.device)
        # Count from the start of the first page in sight: a sliding window may begin inside one.
        first = layer.visible.int().argmax(-1) // self.page_size * self.page_size
        allowed = counts[(place + 1 - first).where(layer.visible.any(-1), 0)]
        own = place[:, None] // self.page_size == torch.arange(in_sight.shape[-1], device=layer.q.device)
        score = self.bounds(layer).masked_fill(own, float("inf"))
        chosen = highest(score, allowed[:, None, :, None], in_sight[:, None])
        return repeat(chosen, "r h q p -> r h q (p s)", s=self.page_size)[..., : layer.time] & layer.visible[:, None]

    def pages(self, visible: int, budget: Budget) -> int:
        return max(self.min_pages, -(-budget.keys(visible) // self.page_size))

    def bounds(self, layer: Layer) -> Float[Tensor, "rows heads query page"]:
        """Return the score of each page for each query; meaningless for incomplete pages and padding."""
        keys, exists, missing = layer.k.to(layer.wide), layer.exists[:, None, :, None], -layer.time % self.page_size
        ends = [(keys.masked_fill(~exists, -sign * torch.inf), sign) for sign in (1, -1)]
        high, low = (
            sign * reduce(pad(sign * k, (0, 0, 0, missing)), "r h (p s) d -> r h p d", "max", s=self.page_size)
            for k, sign in ends
        )
        high, low = (x.nan_to_num(0.0, 0.0, 0.0) for x in (high, low))
        q = rearrange(layer.q.to(layer.wide), "r (h g) t d -> r h (g t) d", g=layer.group)
        score = q.clamp(min=0) @ high.mT + q.clamp(max=0) @ low.mT
        return rearrange(score, "r h (g t) p -> r (h g) t p", g=layer.group)

    def vectors_read(self, visible: float, attended: float) -> float:
        """The bounds of every page are read besides."""
        return 2 * attended + 2 * visible / self.page_size

    def vectors_stored(self, resident: float) -> float:
        return 2 * resident * (1 + 1 / self.page_size)

    def expected_density(self, time: int, budget: Budget) -> float | None:
        """Return the density of a layer that is not dense."""
        pages = [min(t // self.page_size + 1, self.pages(t + 1, budget)) for t in range(time)]
        return block_density(time, self.page_size, pages)
