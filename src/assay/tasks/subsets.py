"""Distinct integers are drawn row by row: whole batches, static shapes, no rejection."""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from assay.core.on_use import Later
from assay.nn.whole import has_kernels

kernels: Any = Later("assay.tasks.subset_kernels")
STEPPED = 64  # above it, that many steps cost more than one pass over the whole range


def distinct(rows: int, count: int, ranges: tuple[int, ...], rng: torch.Generator) -> list[Int[Tensor, "rows count"]]:
    """Draw `count` distinct integers of 0..n-1 for each range n and row: the law of randperm(n)[:count]."""
    if count > STEPPED:
        uniforms = [torch.rand(rows, n, generator=rng, device=rng.device) for n in ranges]
        return [uniform.topk(count, dim=1).indices for uniform in uniforms]
    left = torch.stack([torch.arange(n, n - count, -1, device=rng.device) for n in ranges], dim=1)
    # One call for all steps: rounding a float64 uniform down deviates from uniform by less than n / 2^53.
    uniform = torch.rand(count, len(ranges), rows, generator=rng, device=rng.device, dtype=torch.float64)
    rank = (uniform * rearrange(left, "c n -> c n 1")).long()
    chosen = kernels.nth_left(rank) if has_kernels(rank.device) else _nth_left(rank)
    return list(rearrange(chosen, "c n r -> n r c").contiguous())


def _nth_left(rank: Int[Tensor, "count ranges rows"]) -> Int[Tensor, "count ranges rows"]:
    """Let entry i pick the rank-th of the integers that entries 0..i-1 left over: (2, 0, 1) -> (2, 0, 3). From the last
    to the first: putting integer x back among the leftovers moves those from x on up by one. In place."""
    moved = torch.empty_like(rank)
    for i in range(len(rank) - 2, -1, -1):
        later = rank[i + 1 :]
        # As integers: adding booleans would convert them first, at twice the cost of both operations.
        later += torch.ge(later, rank[i], out=moved[i + 1 :])
    return rank
