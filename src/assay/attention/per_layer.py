"""Layers have budgets of their own here, from `first` to `last` shares of the mean, with the scores of another method.

    slots of layer l of L = k (first + (last - first) l / (L - 1)) / mean of the shares,    no more than there are keys

    k=10, 3 layers, first=1.5, last=0.5     15 10 5          first=0.5, last=1.5     5 10 15

The sum over layers is that of k slots each. A layer that would get more slots than there are keys gives the rest to the
others, in proportion to their shares. `per_layer:first=0.5:last=1.5` is the pyramid upside down, the control for the
claim that lower layers need more.

No paper: a plain control for budgets by layer (pyramid and others), which runs online.
"""

from dataclasses import dataclass, field

import torch

from assay.attention import attention
from assay.attention.base import Budget, Evict, HeadSlots, KeyScores, Layer, Method, SlotScores, Step
from assay.attention.budget import BudgetTooSmall, shared_out
from assay.attention.replay import initial_score_of, score_of
from assay.core.errors import UserError


@attention.register("per_layer")
@dataclass(frozen=True, kw_only=True)
class PerLayer(Evict):
    """Evicts as another method does, with budgets that rise or fall over the layers."""

    method: Method = field(default_factory=lambda: attention.parse("h2o"))
    """Eviction method whose scores decide: h2o, tova, keydiff, ..."""
    first: float = 1.5
    """Share of the first layer, where the last one's is `last`."""
    last: float = 0.5
    """Share of the last layer; those between lie on a straight line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.method, Evict):
            raise UserError(f"{self.name}: {self.method.label} is no method that evicts, such as h2o or tova.")
        if min(self.first, self.last) <= 0:
            raise UserError(f"{self.name}: first={self.first} and last={self.last} are shares above 0.")
        if self.granularity != "kv_head":
            raise UserError(f"{self.name}: give the granularity to its method: method=(h2o:granularity=layer).")

    @property
    def rule(self) -> Evict:
        """The method whose scores decide."""
        assert isinstance(self.method, Evict)  # checked when it was made
        return self.method

    def budgets(self, layer: Layer, length: int, slots: int) -> HeadSlots:
        steps = max(1, layer.layers - 1)
        shares = [self.first + (self.last - self.first) * number / steps for number in range(layer.layers)]
        own = shared_out(slots * layer.layers, shares, most=length)[layer.index]
        return torch.full((layer.rows, layer.k.shape[1]), own, device=layer.q.device)

    def initial_score(self, layer: Layer) -> KeyScores:
        return initial_score_of(self.rule, layer)

    def score(self, before: SlotScores, step: Step) -> SlotScores:
        after = score_of(self.rule, before, step)  # the mean over heads, where the layer decides as a whole
        return before if after is None else after

    def skips(self, layer: Layer) -> bool:
        return self.rule.skips(layer)

    def protected(self, slots: int) -> tuple[int, int]:
        return self.rule.protected(slots)

    def check(self, time: int, budget: Budget) -> None:
        """Check the layer with the fewest slots: the mean of the shares is that of the first and the last."""
        least = int(budget.cache(time) * 2 * min(self.first, self.last) / (self.first + self.last))
        if least < 1:
            raise BudgetTooSmall(f"{self.name}: {budget} gives {least} slots to a layer at {time} tokens.")
        self.rule.check(time, Budget(slots=least))
