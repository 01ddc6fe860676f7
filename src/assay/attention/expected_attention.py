"""Expected attention (Devoto et al. 2025, arXiv 2510.00636) keeps what queries yet to come are expected to attend to.

    mu, S   = mean and covariance of the prefix's queries before rotary positions
    R       = mean rotation of the next `future` positions
    score_j = softmax_j(k_j . R mu / sqrt(d) + k_j^T R S R^T k_j / (2 d)) |v_j|

If queries are Gaussian, the exponential's argument is the logarithm of the expected exp(q . k_j / sqrt(d)). Where query
heads share keys, the mean over the group decides. The first keys always stay, and their queries count for nothing.

Differs from the paper: it weighs by (attention + eps) |W_o v_j|, the length of what a value adds to the output, and
lets heads compete for slots on top (`ada:method=expected_attention` does); here, as by default in kvpress, weights are
|v_j|, eps is 0 and every head has as many slots. Of its two forms this is the one without calibration data, with 512
positions to come and 4 sinks.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from assay.attention import attention
from assay.attention.base import Budget, Layer, Prefix, PrefixScores


@attention.register("expected_attention")
@dataclass(frozen=True, kw_only=True)
class ExpectedAttention(Prefix):
    """Keeps the keys of a prefix with the highest expected attention times the length of their values."""

    departure = "value norms without W_o, even budgets"
    asks_unturned: ClassVar[bool] = True
    asks_plain_scores: ClassVar[bool] = True

    num_sink_tokens: int = 4
    """First keys, which always stay."""
    future: int = 512
    """Positions to come over which rotations are averaged."""

    def score(self, layer: Layer, length: int) -> PrefixScores:
        later = (layer.place[:, :length] >= self.num_sink_tokens)[:, None]
        mean, covariance = self.statistics(layer, length, later[..., None].to(layer.wide))
        keys, factor = layer.k[:, :, None, :length].to(layer.wide), layer.factor
        linear = rearrange(mean, "r (h g) d -> r h g 1 d", g=layer.group) @ keys.mT * factor
        spread = keys @ rearrange(covariance, "r (h g) d e -> r h g d e", g=layer.group)
        logits = linear[..., 0, :] + (spread * keys).sum(-1) * factor**2 / 2
        weights = logits.masked_fill(~later[:, :, None], float("-inf")).softmax(-1).mean(2)
        found = weights * layer.v[:, :, :length].to(layer.wide).norm(dim=-1)
        return found.masked_fill(~later, float("inf"))

    def statistics(
        self, layer: Layer, length: int, later: Float[Tensor, "rows 1 prefix 1"]
    ) -> tuple[Float[Tensor, "rows heads d"], Float[Tensor, "rows heads d d"]]:
        """Return mean and covariance of queries to come."""
        q, count = layer.unturned(layer.q[:, :, :length].to(later.dtype)), later.sum(2, keepdim=True).clamp(min=1)
        mean = (q * later).sum(2, keepdim=True) / count
        centred = (q - mean) * later
        covariance = centred.mT @ centred / count
        turn = self.mean_rotation(layer, length).to(later.dtype)
        return (mean @ turn)[:, :, 0], turn.mT @ covariance @ turn

    def mean_rotation(self, layer: Layer, length: int) -> Float[Tensor, "d d"]:
        """Return the matrix whose rows are unit vectors, turned by each position to come and averaged."""
        width, device = layer.q.shape[-1], layer.q.device
        units = torch.eye(width, dtype=layer.wide, device=device)
        if layer.turn is None:
            return units
        places = torch.arange(length, length + self.future, device=device)[None]
        return layer.turn(units[None, :, None].expand(-1, -1, self.future, -1), places).mean(2)[0]

    def check(self, time: int, budget: Budget) -> None:
        self.require(time, budget, self.num_sink_tokens + 1, f"no more than its {self.num_sink_tokens} sinks")
