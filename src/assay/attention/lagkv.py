"""LagKV (Liang et al. 2025, arXiv 2504.04704) keeps keys and values that stand out from those that follow them.

    partitions of `lag_size` keys; partition p is compared with p + 1, channel by channel:
    x'_j    = (x_j - min of p + 1) / (max of p + 1 - min of p + 1)
    score_j = softmax over p of std(k'_j) + softmax over p of std(v'_j),      std over channels

    num_sink_tokens=1, lag_size=4     0 | 1 2 3 4 | 5 6 7 8 | 9 10 11 12 | 13 14
                                      a sink, two partitions that compete, and the last one and the rest, which stay

No query is needed. Every partition keeps the same share: what counts is a key's rank within its partition.

Differs from the paper: it compresses once, at the end of a prefix, where the paper does so whenever a further partition
is full; and the slots say how much is kept, where the paper has a share of each partition. `lag_size` is 32, so that
texts of some hundred tokens have several partitions; the authors have 128 and more.
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall, Layer, Prefix, PrefixScores


@attention.register("lagkv")
@dataclass(frozen=True, kw_only=True)
class LagKV(Prefix):
    """Keeps the keys of a prefix that stand out from the partition after theirs."""

    num_sink_tokens: int = 4
    """First keys, which always stay."""
    lag_size: int = 32
    """Keys of a partition."""

    def score(self, layer: Layer, length: int) -> PrefixScores:
        found = torch.full((*layer.k.shape[:2], length), float("inf"), dtype=layer.wide, device=layer.k.device)
        if not (competing := self.competing(length)):
            return found
        first, end = self.num_sink_tokens, length - self.always(length)
        keys, values = (
            rearrange(x[:, :, first : end + self.lag_size].to(layer.wide), "r h (p l) d -> r h p l d", p=competing + 1)
            for x in (layer.k, layer.v)
        )
        rank = (self.standing_out(keys) + self.standing_out(values)).argsort(dim=-1, stable=True).argsort(dim=-1)
        found[..., first:end] = rearrange(rank.to(layer.wide), "r h p l -> r h (p l)")
        return found

    def standing_out(
        self, x: Float[Tensor, "rows kv_heads partition key d"]
    ) -> Float[Tensor, "rows kv_heads earlier key"]:
        """Return the spread over channels of each vector, scaled by the partition after its own."""
        low, high = x[:, :, 1:].amin(3, keepdim=True), x[:, :, 1:].amax(3, keepdim=True)
        # One value in a whole partition spans nothing to compare with.
        span = (high - low).clamp(min=torch.finfo(x.dtype).tiny)
        return ((x[:, :, :-1] - low) / span).std(-1).softmax(-1)

    def competing(self, length: int) -> int:
        """Return the number of partitions that are followed by another whole one."""
        return max(0, (length - self.num_sink_tokens) // self.lag_size - 1)

    def always(self, length: int) -> int:
        """Return the length of the last whole partition, which has none to be compared with, and of the rest."""
        return max(0, length - self.num_sink_tokens - self.lag_size * self.competing(length))

    def check(self, time: int, budget: Budget) -> None:
        length = self.length(time)
        if budget.cache(length) >= length:
            return
        if not self.competing(length):
            raise BudgetTooSmall(
                f"{self.name}: a prefix of {length} tokens has no two partitions of {self.lag_size} after "
                f"{self.num_sink_tokens} sinks."
            )
        least = self.num_sink_tokens + self.always(length)
        self.require(time, budget, least, f"fewer than the {least} keys it always keeps")
