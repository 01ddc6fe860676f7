"""Distinct integers are drawn row by row: whole batches, static shapes, no rejection."""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from assay.core.on_use import Later
from assay.nn.random import uniform
from assay.nn.whole import has_kernels

kernels: Any = Later("assay.tasks.subset_kernels")
STEPPED = 64  # above it, that many steps cost more than one pass over the whole range


def distinct(
    rows: int, count: int, ranges: tuple[int, ...], *rngs: torch.Generator
) -> list[Int[Tensor, "drawn count"]]:
    """Draw `count` distinct integers of 0..n-1 for each range n and row: the law of randperm(n)[:count]. Each generator
    draws so many rows, those of the first come first."""
    if count > STEPPED:
        return [largest_first(uniform((rows, n), *rngs), count) for n in ranges]
    left = torch.stack([torch.arange(n, n - count, -1, device=rngs[0].device) for n in ranges], dim=1)
    # One call for all steps: rounding a float64 uniform down deviates from uniform by less than n / 2^53.
    drawn = uniform((count, len(ranges), rows), *rngs, dim=2, dtype=torch.float64)
    rank = (drawn * rearrange(left, "c n -> c n 1")).long()
    chosen = kernels.nth_left(rank) if has_kernels(rank.device) else _nth_left(rank)
    return list(rearrange(chosen, "c n r -> n r c").contiguous())


def largest_first(numbers: Tensor, count: int) -> Int[Tensor, "rows count"]:
    """Return the places of the `count` largest numbers of each row, the largest first, whatever the other rows are."""
    if numbers.is_cuda:  # topk's order of equal numbers depends there on the number of rows
        return numbers.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return numbers.topk(count, dim=1).indices


def _nth_left(rank: Int[Tensor, "count ranges rows"]) -> Int[Tensor, "count ranges rows"]:
    """Let entry i pick the rank-th of the integers that entries 0..i-1 left over: (2, 0, 1) -> (2, 0, 3). From the last
    to the first: putting integer x back among the leftovers moves those from x on up by one. In place."""
    moved = torch.empty_like(rank)
    for i in range(len(rank) - 2, -1, -1):
        later = rank[i + 1 :]
        # As integers: adding booleans would convert them first, at twice the cost of both operations.
        later += torch.ge(later, rank[i], out=moved[i + 1 :])
    return rank
