"""Leverage scores (Chari and Van Durme 2025, arXiv 2507.08143) keep the keys that the others cannot stand for.

    X       = keys before rotary positions, less their mean
    score_j = x_j (X^T X + ridge)^-1 x_j^T          how far key j is from what the rest spans; no query is needed

    keys (1, 0) (1, 0) (-2, 0.1) (0, -0.1)      the two equal ones share their direction, and one of them goes first

Differs from the paper: these are the leverage scores alone, of its two parts (Compactor blends them with attention that
is not causal), computed exactly, where the authors draw a random sketch of the keys: heads have at most some hundred
channels. The ridge of 0.01 is that of kvpress.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from assay.attention import attention
from assay.attention.base import Layer, Prefix, PrefixScores
from assay.core.errors import UserError


@attention.register("leverage")
@dataclass(frozen=True, kw_only=True)
class Leverage(Prefix):
    """Keeps the keys of a prefix with the highest leverage."""

    asks_unturned: ClassVar[bool] = True

    ridge: float = 0.01
    """Added to the diagonal, so that keys in few directions can be inverted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ridge <= 0:
            raise UserError(f"{self.name}: ridge={self.ridge} must be above 0.")

    def score(self, layer: Layer, length: int) -> PrefixScores:
        there = layer.exists[:, None, :length, None].to(layer.wide)
        keys = layer.unturned(layer.k[:, :, :length].to(layer.wide)) * there
        x = (keys - keys.sum(2, keepdim=True) / there.sum(2, keepdim=True).clamp(min=1)) * there
        ridge = self.ridge * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        factor = torch.linalg.cholesky(x.mT @ x + ridge)
        return torch.linalg.solve_triangular(factor, x.mT, upper=False).square().sum(2)
