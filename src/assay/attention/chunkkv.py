"""ChunkKV (Liu et al. 2025, arXiv 2502.00299) keeps whole chunks of a prompt, so that what belongs together stays so.

    score of a chunk = mean of the scores of its keys, over all heads of the layer;       every key has its chunk's

    chunk_size=3, slots=4     scores  1 2 3 | 7 0 2 | 5 5 5      chunks 2, 3, 5: the last whole, of the second 1 key

Scores are those of `method`, by default SnapKV's, whose window stays beside the chunks. All heads of a layer keep the
same keys; of the last chunk that does not fit its first keys stay.

Differs from the paper: the authors let several layers reuse the choice of one, which is left out. Chunks of 20 keys lie
where the row begins; theirs have 10 or 20.
"""

from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from torch.nn.functional import pad

from assay.attention import attention
from assay.attention.base import Layer, PrefixOf, PrefixScores


@attention.register("chunkkv")
@dataclass(frozen=True, kw_only=True)
class ChunkKV(PrefixOf):
    """Keeps the chunks of a prefix with the highest scores."""

    chunk_size: int = 20
    """Keys of a chunk."""

    def score_for(self, layer: Layer, length: int, slots: int) -> PrefixScores:
        known = self.inner.score_for(layer, length, slots)
        before = length - self.always(length)  # the window stays as it is
        there = layer.exists[:, None, :before].expand_as(known[..., :before])
        sums, counts = (
            rearrange(pad(x, (0, -before % self.chunk_size)), "r h (c s) -> r c (h s)", s=self.chunk_size).sum(-1)
            for x in (known[..., :before].masked_fill(~there, 0.0), there.to(known.dtype))
        )
        mean = repeat(sums / counts.clamp(min=1), "r c -> r h (c s)", h=known.shape[1], s=self.chunk_size)
        return torch.cat([mean[..., :before], known[..., before:]], dim=-1)
