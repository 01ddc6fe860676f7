"""Both forms of CAB, curvature-aware block-sparse attention, share these block scores, which do not read the future.

Tokens are cut into blocks; a block of queries chooses blocks of keys. A block is represented by its longest query, and
its longest key. With A the scores of representatives, scaled to 0..1, the curvature of an edge is its affinity less
the part that goes by way of other blocks:

    F_ij = A_ij - lambda_redundancy * sum_k A_ik A_kj / (i + 1)

    query block 3   keys   0   1   2   3        3 always; of 0 1 2, those of highest F. The detour 3 -> 1 -> 0 lowers
                                                the curvature of 0.

As published all of this reads the future: the longest query of a block comes after its first tokens, A is scaled by
the whole matrix, and detours go through later blocks. Here a block chooses before its first token: by the queries of
the block before, with the extremes of the rows so far, by detours over the blocks between j and i.

A budget of fewer than `least_blocks` blocks leaves little to choose beside the query's own. In a language model
block_size is halved until the budget allows so many:

    sparsity=0.9, 512 tokens     blocks of 64: 1 of 8     32: 2 of 16     16: 3 of 32     8: 6 of 64, which it gets
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from assay.attention import flex
from assay.attention.base import BlockSelect, Budget, BudgetTooSmall, block_density, highest
from assay.attention.checks import look
from assay.attention.layer import Blocks, Layer
from assay.core.convert import added

Scores = Float[Tensor, "rows heads block block"]
Count = Int[Tensor, "rows 1 block 1"]
Among = Bool[Tensor, "rows 1 block block"]


@dataclass(frozen=True, kw_only=True)
class CurvatureSelect(BlockSelect):
    """A method in which a block of queries chooses blocks of keys by curvature."""

    departure = "causal"

    lambda_redundancy: float = 0.3
    """Weight of the detours through other blocks."""
    least_blocks: int = added(4)
    """Blocks that a budget must allow: block_size is halved until it does. 1: it stays as it is."""

    def fitted(self, time: int, budget: Budget) -> "CurvatureSelect":
        fitting: CurvatureSelect = self
        while fitting.block_size > 1 and fitting.falls_short(time, budget):
            fitting = fitting.in_blocks_of(fitting.block_size // 2)
        return self if fitting.falls_short(time, budget) else fitting

    def in_blocks_of(self, size: int) -> "CurvatureSelect":
        return replace(self, block_size=size)

    def falls_short(self, time: int, budget: Budget) -> bool:
        """Return whether the budget allows fewer than `least_blocks` of the blocks there are."""
        available = -(-time // self.block_size)
        return self.blocks(available, budget) < min(self.least_blocks, available)

    def choose(self, layer: Layer, curvature: Scores, count: Count, among: Among) -> Blocks:
        """Return `count` blocks of keys for each block of queries, its own included: by default those of highest
        curvature."""
        return self.highest(layer, curvature, count, among)

    def highest(self, layer: Layer, score: Scores, count: Count, among: Among) -> Blocks:
        """Return each block itself and those of highest score, `count` together."""
        if not flex.chooses(layer, self.block_size):
            return highest(with_own(score), count, among)
        look(score)  # which kernels hide from the checks
        return flex.curvature_kernels.highest(score, count, among)

    def chosen(self, layer: Layer, budget: Budget) -> Blocks:
        """Return the blocks of keys that each block of queries attends to."""
        if layer.mask is None:  # without a mask all earlier blocks are in sight: no time x time mask is needed
            blocks = -(-layer.time // self.block_size)
            among = torch.ones(blocks, blocks, dtype=torch.bool, device=layer.q.device).tril()
            among = among.expand(layer.rows, 1, -1, -1)
        else:
            among = tiles(layer.visible.byte()[:, None], self.block_size) > 0
        counts = _counts(self, budget, among.shape[-1], among.device)
        return self.choose(layer, self.curvature(layer), counts[among.sum(-1, keepdim=True)], among)

    def blocks(self, available: int, budget: Budget) -> int:
        """Return how many blocks a block of queries attends to, its own included."""
        allowed = budget.keys(available) if budget.slots is None else budget.slots // self.block_size + 1
        return min(available, allowed)

    def curvature(self, layer: Layer) -> Scores:
        affinity = self.affinity(layer)
        detours = affinity @ affinity  # strictly lower triangular, so that only blocks between j and i count
        if flex.chooses(layer, self.block_size):
            return flex.curvature_kernels.curvature(affinity, detours, self.lambda_redundancy)
        before = torch.arange(1, affinity.shape[-1] + 1, device=affinity.device)[:, None]
        return affinity - self.lambda_redundancy * detours / before

    def affinity(self, layer: Layer) -> Scores:
        """Return the scores of the longest query of the block before with the longest keys of all earlier blocks,
        scaled by the lowest and highest score of the rows so far; 0 for a block itself and later ones."""
        queries, keys = (self.longest(x, layer) for x in (layer.q, layer.k))
        keys = repeat(keys, "r h m d -> r (h g) m d", g=layer.group)
        if flex.chooses(layer, self.block_size):
            return flex.curvature_kernels.affinity(queries @ keys.mT)
        scores = pad(queries[:, :, :-1] @ keys.mT, (0, 0, 1, 0))
        real = reduce(self.in_blocks(layer.exists[:, None, :, None]), "r 1 m s 1 -> r 1 m", "max")
        earlier = torch.ones_like(scores[0, 0], dtype=torch.bool).tril(-1)
        known = earlier & real[:, :, None, :] & pad(real, (1, -1))[..., None]
        low = scores.masked_fill(~known, torch.inf).amin(-1, keepdim=True).cummin(-2).values
        high = scores.masked_fill(~known, -torch.inf).amax(-1, keepdim=True).cummax(-2).values
        return ((scores - low) / (high - low).clamp(min=1e-12)).where(known, 0.0)

    def longest(self, x: Float[Tensor, "rows h time d"], layer: Layer) -> Float[Tensor, "rows h block d"]:
        """Return the vector of largest norm in each block, ignoring padding."""
        wide = torch.promote_types(x.dtype, torch.float32)
        if (found := flex.block_longest(x, layer, self.block_size)) is not None:
            return found.to(wide)
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        best = self.in_blocks(norms.masked_fill(~layer.exists[:, None, :, None], -1.0)).argmax(3, keepdim=True)
        return self.in_blocks(x).gather(3, best.expand(*best.shape[:-1], x.shape[-1])).squeeze(3).to(wide)

    def in_blocks(self, x: Tensor) -> Tensor:
        missing = -x.shape[2] % self.block_size
        filled = pad(x, (0, 0, 0, missing)) if missing else x  # padding by nothing would copy all of it
        return rearrange(filled, "r h (m s) d -> r h m s d", s=self.block_size)

    def expected_density(self, time: int, budget: Budget) -> float | None:
        blocks = [self.blocks(t // self.block_size + 1, budget) for t in range(time)]
        return block_density(time, self.block_size, blocks)

    def check(self, time: int, budget: Budget) -> None:
        if self.falls_short(time, budget):
            available = -(-time // self.block_size)
            raise BudgetTooSmall(
                f"budget below {self.least_blocks} blocks: {self.name} with {budget} has "
                f"{self.blocks(available, budget)} of the {available} blocks of {self.block_size} in {time} tokens. "
                "Give it more or longer sequences, or set block_size or least_blocks lower."
            )


@lru_cache(maxsize=64)
def _counts(method: CurvatureSelect, budget: Budget, blocks: int, device: torch.device) -> Int[Tensor, " available"]:
    """Return the blocks read per number in sight. Cached: every layer asks, and a GPU would wait for them."""
    return torch.tensor([0] + [method.blocks(n + 1, budget) for n in range(blocks)], device=device)


def tiles(x: Tensor, size: int) -> Tensor:
    """Return the largest entry of each size x size tile, entries outside counted as 0."""
    missing = (0, -x.shape[-1] % size, 0, -x.shape[-2] % size)
    return reduce(pad(x, missing), "r h (i q) (j k) -> r h i j", "max", q=size, k=size)


def with_own(score: Scores) -> Scores:
    """Give each block's own keys an infinite score, so that they are always chosen."""
    return score.masked_fill(torch.eye(score.shape[-1], dtype=torch.bool, device=score.device), float("inf"))
