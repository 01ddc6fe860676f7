"""KeyDiff (Park et al. 2025, arXiv 2504.15364) keeps the keys unlike the others; no attention weight is needed.

    anchor  = mean of k_j / |k_j| over the cache, the new key included
    score_j = -cos(k_j, anchor)          evict the key nearest to the anchor

    keys along  ->  ->  up     the anchor points mostly to the right: one of the two equal keys goes, the older

Differs from the paper: it evicts after each token, as all Evict methods do online; the paper does so while it
generates, and reads a prompt in blocks, after each of which it evicts (`--protocol chunked`).
"""

from dataclasses import dataclass

from torch.nn.functional import cosine_similarity, normalize

from assay.attention import attention
from assay.attention.base import Evict, SlotScores, Step


@attention.register("keydiff")
@dataclass(frozen=True, kw_only=True)
class KeyDiff(Evict):
    """Evicts the key most like the mean of the cache."""

    def score(self, before: SlotScores, step: Step) -> SlotScores:
        keys = normalize(step.keys.to(before.dtype), dim=-1)
        # The sum serves as the mean: a cosine ignores length.
        anchor = (keys * step.present[:, :, -1, :, None]).sum(2, keepdim=True)
        return -cosine_similarity(keys, anchor, dim=-1)
