"""This null keeps sinks, the latest half, and a random rest, evicted for good: every eviction rule has to beat it.

    score_j = a random number drawn when key j comes; evict argmin, sinks and the latest half excepted

    slots=10     query 40   0 1 2 3 | 9 | 35 36 37 38 39 40     4 sinks, 5 latest and its own, 1 of the 31 between

With one number per key, what is kept of the keys between is at any time a uniform choice among all of them
(reservoir sampling). The draw depends on the seed, the layer, the head and the position alone.

No paper: it is a null hypothesis.
"""

from dataclasses import dataclass

import torch
from einops import rearrange

from assay.attention import attention
from assay.attention.base import Evict, KeyScores, Layer
from assay.nn.random import stream


@attention.register("random_evict")
@dataclass(frozen=True, kw_only=True)
class RandomEvict(Evict):
    """Keeps sinks, the latest half, and a random rest."""

    num_sink_tokens: int = 4
    """First keys, which are never evicted."""
    seed: int = 0
    """Seed of the scores: another one evicts other keys."""

    def initial_score(self, layer: Layer) -> KeyScores:
        rng = stream(self.seed, "attention", self.name, layer.index)
        # Drawn on the CPU, token after token: the same numbers for longer sequences and on every device.
        drawn = torch.rand(layer.time, layer.k.shape[1], generator=rng).to(layer.q.device)
        return rearrange(drawn[layer.place.clamp(min=0)], "r t h -> r h t").to(layer.wide)

    def protected(self, slots: int) -> tuple[int, int]:
        return self.num_sink_tokens, slots // 2
