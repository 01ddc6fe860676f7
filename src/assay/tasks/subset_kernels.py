"""A Triton kernel picks distinct integers; imported on CUDA alone. In torch these are two small operations per integer,
which on a GPU take longer than the rest of a batch."""

import torch
import triton
import triton.language as tl
from jaxtyping import Int
from torch import Tensor

ROWS = 8
"""Rows of a program."""


def nth_left(rank: Int[Tensor, "count ranges rows"]) -> Int[Tensor, "count ranges rows"]:
    """Return what `subsets._nth_left` does."""
    count, rows = len(rank), rank[0].numel()
    chosen = torch.empty_like(rank)
    width = triton.next_power_of_2(count)
    _nth_left[(triton.cdiv(rows, ROWS),)](rank.contiguous(), chosen, rows, count, width, ROWS, num_warps=1)
    return chosen


@triton.jit(do_not_specialize=["rows"])
def _nth_left(rank, chosen, rows, COUNT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    row, entry = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (entry < COUNT)[None, :]
    at = entry[None, :] * rows + row[:, None]
    found = tl.load(rank + at, mask=inside, other=0)
    for back in range(COUNT - 1):
        place = COUNT - 2 - back
        own = tl.sum(tl.where((entry == place)[None, :], found, 0), axis=1)
        found += ((entry > place)[None, :] & (found >= own[:, None])).to(found.dtype)
    tl.store(chosen + at, found, mask=inside)
