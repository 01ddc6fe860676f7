"""AdaKV (Feng et al. 2024, arXiv 2407.11550) lets the heads of a layer compete for its slots, when a prompt ends.

    pooled_h = how many of the layer's H (k - w) highest scores, over all heads, are head h's
    slots_h  = w + (1 - safeguard) pooled_h + safeguard (k - w)

    k=4, w=0, safeguard=0.25, two heads     scores  9 8 7 6 5     pooled 5 of 8     slots  3.75 + 1 -> 4
                                                    4 3 2 1 0            3 of 8            2.25 + 1 -> 3

Scores are those of `method`, by default SnapKV's, whose window of w queries every head keeps; a head then keeps its own
highest ones. `ada:method=pyramid` shares out the slots that the pyramid gives a layer: Ada-PyramidKV. With `rule=floor`
no head falls below safeguard x k, and above that the highest scores win, wherever they are, as in kvpress.

Differs from the paper: slots are rounded down, so that the total is never exceeded, where the authors' code rounds. The
window is SnapKV's 64, and where query heads share keys the mean over the group decides. Their code can also weigh the
scores of a head by how concentrated they are, which is left out. The safeguard of 0.2 and its formula are theirs.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from assay.attention import attention
from assay.attention.base import HeadSlots, Layer, PrefixOf, head_budgets, highest
from assay.core.errors import UserError


@attention.register("ada")
@dataclass(frozen=True, kw_only=True)
class Ada(PrefixOf):
    """Shares out the slots of a layer by the scores of all its heads."""

    safeguard: float = 0.2
    """Share of its even part that every head has, whatever its scores."""
    rule: Literal["mixed", "floor"] = "mixed"
    """How the safeguard is kept: by mixing with even parts, or as a floor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.safeguard <= 1:
            raise UserError(f"{self.name}: safeguard={self.safeguard} is a share, from 0 to 1.")

    def budgets(self, layer: Layer, length: int, slots: int) -> HeadSlots:
        score, there = self.score_for(layer, length, slots), layer.exists[:, None, :length]
        each = head_budgets(self.inner, layer, length, slots)  # of a layer of the pyramid
        even = torch.full(score.shape[:2], slots, device=score.device) if each is None else each
        even = even.clamp(max=length)
        if self.rule == "floor":
            safe = highest(score, (even * self.safeguard).long()[..., None], there)
            return pooled(score.masked_fill(safe, float("inf")), even, there)
        window = min(slots, self.always(length))
        found = pooled(score[..., : length - window], even - window, there[..., : length - window])
        mixed = (1 - self.safeguard) * found + self.safeguard * (even - window)
        return window + (mixed + 1e-6).long()


def pooled(score: Float[Tensor, "rows kv_heads key"], even: HeadSlots, among: Bool[Tensor, "rows 1 key"]) -> HeadSlots:
    """Return how many of the highest scores are each head's, as many in all as the even parts together."""
    flat = rearrange(score, "r h k -> r (h k)")
    there = rearrange(among.expand_as(score), "r h k -> r (h k)")
    taken = highest(flat, even.sum(1, keepdim=True), there)
    return rearrange(taken, "r (h k) -> r h k", h=score.shape[1]).sum(-1)
