"""Triton kernels that choose blocks by curvature; imported on CUDA alone.

The formulas are those of curvature.py, which computes the same in some thirty small operations: on a GPU each of them
takes as long as all of these together. The results are the same to the bit, products being torch's in both.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

MOST = 512
"""Blocks of a sequence that are compared here: each is compared with every other."""
AT_ONCE = 16
"""Rows of scores that a program scales."""


def affinity(scores: Float[Tensor, "rows heads block block"]) -> Float[Tensor, "rows heads block block"]:
    """Return the scores of each block's queries one row further down, scaled by the lowest and highest of the earlier
    blocks in the rows so far; 0 for a block itself and later ones."""
    blocks, out = scores.shape[-1], torch.empty_like(scores)
    grid = triton.cdiv(blocks, AT_ONCE), scores.shape[0] * scores.shape[1]
    _affinity[grid](scores, out, blocks, triton.next_power_of_2(blocks), AT_ONCE, num_warps=4)
    return out


def curvature(
    affinity: Float[Tensor, "rows heads block block"],
    detours: Float[Tensor, "rows heads block block"],
    redundancy: float,
) -> Float[Tensor, "rows heads block block"]:
    """Return affinities less their detours, `redundancy` of each, over the blocks in sight."""
    blocks, out = affinity.shape[-1], torch.empty_like(affinity)
    grid = blocks, affinity.shape[0] * affinity.shape[1]
    _curvature[grid](affinity, detours, out, redundancy, blocks, triton.next_power_of_2(blocks), num_warps=1)
    return out


def highest(
    score: Float[Tensor, "rows heads block block"],
    count: Int[Tensor, "rows 1 block 1"],
    among: Bool[Tensor, "rows 1 block block"],
) -> Bool[Tensor, "rows heads block block"]:
    """Return a mask of each block itself and the blocks of highest score, `count` together; among equals, the first."""
    blocks, score = score.shape[-1], score.contiguous()
    out = torch.empty_like(score, dtype=torch.bool)
    count, seen = count.expand(len(score), 1, blocks, 1), among.expand(len(score), 1, -1, -1)
    places = count.stride(0), count.stride(2), seen.stride(0), seen.stride(2), seen.stride(3)
    side = triton.next_power_of_2(blocks)
    grid = blocks, score.shape[0] * score.shape[1]
    _highest[grid](score, count, seen, out, *places, blocks, score.shape[1], side, min(side, 32), num_warps=4)
    return out


@triton.jit
def _affinity(scores, out, blocks, SIDE: tl.constexpr, ROWS: tl.constexpr):
    first = tl.program_id(0) * ROWS
    start = tl.program_id(1).to(tl.int64) * blocks * blocks
    columns = tl.arange(0, SIDE)[None, :]
    low, high = float("inf"), -float("inf")
    for part in range(0, first, ROWS):
        own, known = _shifted(scores + start, part, columns, blocks, SIDE, ROWS)
        low = tl.minimum(low, tl.min(tl.min(tl.where(known, own, float("inf")), 1), 0))
        high = tl.maximum(high, tl.max(tl.max(tl.where(known, own, -float("inf")), 1), 0))
    own, known = _shifted(scores + start, first, columns, blocks, SIDE, ROWS)
    row = tl.arange(0, ROWS)
    so_far = row[:, None] >= row[None, :]
    lowest, largest = tl.min(tl.where(known, own, float("inf")), 1), tl.max(tl.where(known, own, -float("inf")), 1)
    lows = tl.minimum(low, tl.min(tl.where(so_far, lowest[None, :], float("inf")), 1))
    highs = tl.maximum(high, tl.max(tl.where(so_far, largest[None, :], -float("inf")), 1))
    span = tl.maximum(highs - lows, 1e-12)
    scaled = tl.where(known, tl.div_rn(own - lows[:, None], tl.broadcast_to(span[:, None], (ROWS, SIDE))), 0.0)
    rows = first + row[:, None]
    tl.store(out + start + rows * blocks + columns, scaled, mask=(rows < blocks) & (columns < blocks))


@triton.jit
def _shifted(scores, first, columns, blocks, SIDE: tl.constexpr, ROWS: tl.constexpr):
    """Scores of some rows, each of the block before; and which are of earlier blocks."""
    rows = first + tl.arange(0, ROWS)[:, None]
    known = (columns < rows) & (rows < blocks)
    return tl.load(scores + (rows - 1) * blocks + columns, mask=known, other=0.0), known


@triton.jit
def _curvature(affinity, detours, out, redundancy, blocks, SIDE: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, SIDE)
    at = (tl.program_id(1).to(tl.int64) * blocks + row) * blocks + columns
    inside = columns < blocks
    direct = tl.load(affinity + at, mask=inside, other=0.0)
    detour = tl.load(detours + at, mask=inside, other=0.0) * redundancy
    sight = tl.full((SIDE,), 1.0, tl.float32) * (row + 1)
    tl.store(out + at, direct - tl.div_rn(detour, sight), mask=inside)


@triton.jit
def _highest(
    score, count, among, out, count_row, count_block, among_row, among_block, among_key, blocks, heads,
    SIDE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, SIDE)
    start = (head.to(tl.int64) * blocks + block) * blocks
    row = (head // heads).to(tl.int64)
    seen_at = among + row * among_row + block * among_block
    own, seen = _scored(score + start, seen_at, columns, block, blocks, among_key)
    above = tl.zeros((SIDE,), tl.int32)  # blocks that come first: of a higher score, or of the same and earlier
    for part in range(0, SIDE, PART):
        others = part + tl.arange(0, PART)
        other, _ = _scored(score + start, seen_at, others, block, blocks, among_key)
        equal = (other[None, :] == own[:, None]) & (others[None, :] < columns[:, None])
        above += tl.sum(((other[None, :] > own[:, None]) | equal).to(tl.int32), 1)
    taken = (above < tl.load(count + row * count_row + block * count_block)) & seen
    tl.store(out + start + columns, taken, mask=columns < blocks)


@triton.jit
def _scored(score, among, columns, block, blocks, among_key):
    """Scores of some blocks: infinite for a block itself, minus infinity for what it does not see."""
    inside = columns < blocks
    seen = tl.load(among + columns * among_key, mask=inside, other=0) != 0
    found = tl.load(score + columns, mask=inside, other=0.0)
    return tl.where(seen, tl.where(columns == block, float("inf"), found), -float("inf")), seen
