"""Knorm (Devoto et al. 2024, arXiv 2406.11430) keeps keys of small norm, which tend to receive the most attention.

score_j = -|k_j|          known when the key comes; evict the longest key

norms 3 1 2, slots=2: key 0 goes

Differs from the paper: every layer evicts, where the authors' example leaves the first two as they are; and after every
token, where they cut a cache down to a share of it once it is long enough.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from assay.attention import attention
from assay.attention.base import Evict
from assay.attention.layer import Layer


@attention.register("knorm")
@dataclass(frozen=True, kw_only=True)
class Knorm(Evict):
    """Evicts the key of largest norm."""

    def initial_score(self, layer: Layer) -> Float[Tensor, "rows kv_heads time"]:
        return -layer.k.to(torch.promote_types(layer.k.dtype, torch.float32)).norm(dim=-1)
