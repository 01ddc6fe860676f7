"""DuoAttention (Xiao et al. 2024, arXiv 2410.10819) lets retrieval heads keep everything, others sinks and the latest.

    streaming heads   s = num_sink_tokens + recent slots each
    retrieval heads   as many as the budget allows, R = N (k - s) / (T - s) of the model's N, those of highest score

    N=4 heads, T=100, k=40, s=20     R = 4 x 20 / 80 = 1     2 3 9 4     the third keeps 100 keys, the others 20 each

A head's score comes from a calibration pass over random tokens that are read twice: how much its output for the second
reading changes when it is made a streaming head, |o - o_streaming|^2 / |o|^2, summed over queries and the group. The
scores of a model are stored in the cache (assay.models.calibration), and found there by the next run.

Differs from the paper: the authors learn a gate for each head by gradient descent on passkeys in long texts; here one
pass measures what the gate would weigh. Sinks and recent keys are 4 and 12, for texts of some hundred tokens, where
they have 64 and 256 and more.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from assay.attention import attention
from assay.attention.base import Budget, Evict, HeadSlots, KeyScores, Layer
from assay.core.errors import UserError


@attention.register("duo")
@dataclass(frozen=True, kw_only=True)
class Duo(Evict):
    """Keeps everything in retrieval heads, and sinks and the latest keys in the others."""

    asks_heads: ClassVar[bool] = True

    num_sink_tokens: int = 4
    """First keys that a streaming head keeps."""
    recent: int = 12
    """Latest keys that a streaming head keeps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.granularity != "kv_head":
            raise UserError(f"{self.name}: every head has a budget of its own: leave granularity out.")

    @property
    def departure(self) -> str:
        return f"heads scored in one pass, {self.streaming} keys in streaming ones"

    @property
    def streaming(self) -> int:
        """Slots of a streaming head."""
        return self.num_sink_tokens + self.recent

    def initial_score(self, layer: Layer) -> KeyScores:
        """Return the position: the oldest goes first."""
        return torch.arange(layer.time, dtype=layer.wide, device=layer.k.device).expand(*layer.k.shape[:3])

    def protected(self, slots: int) -> tuple[int, int]:
        return min(slots, self.num_sink_tokens), 0

    def budgets(self, layer: Layer, length: int, slots: int) -> HeadSlots:
        if layer.heads is None:
            raise UserError(f"{self.name}: its heads are told apart by a calibration of the model, which is not here.")
        every, own = layer.heads.flatten(), slice(layer.index * layer.k.shape[1], (layer.index + 1) * layer.k.shape[1])
        retrieval = len(every) * (slots - self.streaming) // max(1, length - self.streaming)
        rank = every.argsort(descending=True, stable=True).argsort()
        kept = torch.where(rank[own] < retrieval, length, min(self.streaming, length))
        return kept.to(layer.k.device).expand(layer.rows, -1).contiguous()

    def check(self, time: int, budget: Budget) -> None:
        short = f"fewer than the {self.num_sink_tokens} sinks and {self.recent} latest keys of a streaming head"
        self.require(time, budget, min(time, self.streaming), short)
