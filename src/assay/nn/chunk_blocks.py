# ruff: noqa: RET505 - a branch on a constant needs its else: the other one is not compiled
"""Blocks of rows are loaded, decayed and multiplied by these functions of the chunked recurrences' Triton kernels.

With G_i the sum of log a over a chunk's tokens up to i, rows i and j <= i of a chunk meet as E_ij = exp(G_i - G_j). No
exponent is positive: with a decay per channel a block of 16 rows meets the rows of an earlier block at a moment
between the two, and rows of one block meet one by one. Tensors are contiguous (sequences x heads, time, channels); G
has time padded to whole chunks.
"""

import triton
import triton.language as tl


@triton.jit
def tile(x, row, time, d, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows row.. of a (time, d) matrix in float32, zeros outside it."""
    rows, columns = row + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (rows < time)[:, None] & (columns < d)[None, :]
    return tl.load(x + rows[:, None] * d + columns[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def put(x, values, row, time, d, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows, columns = row + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (rows < time)[:, None] & (columns < d)[None, :]
    tl.store(x + rows[:, None] * d + columns[None, :], values, mask=inside)


@triton.jit
def columns(x, row, time, dv, v0, ROWS: tl.constexpr, BV: tl.constexpr):
    """Load rows of a (time, dv) matrix, BV columns from v0 on."""
    rows, at = row + tl.arange(0, ROWS), v0 + tl.arange(0, BV)
    inside = (rows < time)[:, None] & (at < dv)[None, :]
    return tl.load(x + rows[:, None] * dv + at[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def put_columns(x, values, row, time, dv, v0, ROWS: tl.constexpr, BV: tl.constexpr):
    rows, at = row + tl.arange(0, ROWS), v0 + tl.arange(0, BV)
    inside = (rows < time)[:, None] & (at < dv)[None, :]
    tl.store(x + rows[:, None] * dv + at[None, :], values, mask=inside)


@triton.jit
def sums(g, row, dk, ROWS: tl.constexpr, DK: tl.constexpr, CHANNEL: tl.constexpr):
    """Load G of some rows: (ROWS, DK) with a decay per channel, (ROWS, 1) with one per head."""
    if CHANNEL:
        return tl.load(
            g + (row + tl.arange(0, ROWS))[:, None] * dk + tl.arange(0, DK)[None, :],
            mask=(tl.arange(0, DK) < dk)[None, :],
            other=0.0,
        )
    else:
        return tl.load(g + row + tl.arange(0, ROWS))[:, None]


@triton.jit
def sum_at(g, row, dk, DK: tl.constexpr, CHANNEL: tl.constexpr):
    """Load G of one row as a row: (1, DK) or (1, 1)."""
    if CHANNEL:
        return tl.load(g + row * dk + tl.arange(0, DK), mask=tl.arange(0, DK) < dk, other=0.0)[None, :]
    else:
        return tl.load(g + row + tl.arange(0, 1))[None, :]


@triton.jit
def below(rows: tl.constexpr, strict: tl.constexpr):
    """Return where j <= i, or j < i."""
    i, j = tl.arange(0, rows)[:, None], tl.arange(0, rows)[None, :]
    return (i > j) if strict else (i >= j)


@triton.jit
def scores(left, right, g, at, to, time, dk, ROWS: tl.constexpr, DK: tl.constexpr, CHANNEL: tl.constexpr,
           DOT: tl.constexpr, OWN: tl.constexpr):  # fmt: skip
    """Return sum_d left_id E_ijd right_jd for the rows i of one block and j of it or of an earlier one."""
    x, gx = tile(left, at, time, dk, ROWS, DK), sums(g, at, dk, ROWS, DK, CHANNEL)
    if CHANNEL:
        if OWN:
            found = tl.zeros((ROWS, ROWS), dtype=tl.float32)
            for j in range(ROWS):
                y = tile(right, to + j, time, dk, 1, DK)
                near = tl.sum(x * y * tl.exp(tl.minimum(gx - sum_at(g, to + j, dk, DK, CHANNEL), 0.0)), axis=1)
                found = tl.where(tl.arange(0, ROWS)[None, :] == j, near[:, None], found)
            return found
        else:
            seam = sum_at(g, at - 1, dk, DK, CHANNEL)
            y = tile(right, to, time, dk, ROWS, DK) * tl.exp(seam - sums(g, to, dk, ROWS, DK, CHANNEL))
            return tl.dot(x * tl.exp(gx - seam), tl.trans(y), input_precision=DOT)
    else:
        y, gy = tile(right, to, time, dk, ROWS, DK), sums(g, to, dk, ROWS, DK, CHANNEL)
        return tl.dot(x, tl.trans(y), input_precision=DOT) * tl.exp(tl.minimum(gx - tl.trans(gy), 0.0))


@triton.jit
def to_left(weights, right, g, at, to, time, dk, ROWS: tl.constexpr, DK: tl.constexpr, CHANNEL: tl.constexpr,
            DOT: tl.constexpr, OWN: tl.constexpr):  # fmt: skip
    """Return sum_j weights_ij E_ij right_j for the rows i: the slope of `scores` in its left rows."""
    gx = sums(g, at, dk, ROWS, DK, CHANNEL)
    if CHANNEL:
        if OWN:
            found = tl.zeros((ROWS, DK), dtype=tl.float32)
            for j in range(ROWS):
                weight = tl.sum(tl.where(tl.arange(0, ROWS)[None, :] == j, weights, 0.0), axis=1)
                y = tile(right, to + j, time, dk, 1, DK)
                found += weight[:, None] * y * tl.exp(tl.minimum(gx - sum_at(g, to + j, dk, DK, CHANNEL), 0.0))
            return found
        else:
            seam = sum_at(g, at - 1, dk, DK, CHANNEL)
            y = tile(right, to, time, dk, ROWS, DK) * tl.exp(seam - sums(g, to, dk, ROWS, DK, CHANNEL))
            return tl.exp(gx - seam) * tl.dot(weights, y, input_precision=DOT)
    else:
        y, gy = tile(right, to, time, dk, ROWS, DK), sums(g, to, dk, ROWS, DK, CHANNEL)
        return tl.dot(weights * tl.exp(tl.minimum(gx - tl.trans(gy), 0.0)), y, input_precision=DOT)


@triton.jit
def to_right(weights, left, g, at, to, time, dk, ROWS: tl.constexpr, DK: tl.constexpr, CHANNEL: tl.constexpr,
             DOT: tl.constexpr, OWN: tl.constexpr):  # fmt: skip
    """Return sum_i weights_ij E_ij left_i for the rows j of block `to`, i of `at`: the slope in the right rows."""
    gy = sums(g, to, dk, ROWS, DK, CHANNEL)
    if CHANNEL:
        if OWN:
            found = tl.zeros((ROWS, DK), dtype=tl.float32)
            for i in range(ROWS):
                weight = tl.sum(tl.where(tl.arange(0, ROWS)[:, None] == i, weights, 0.0), axis=0)
                x = tile(left, at + i, time, dk, 1, DK)
                found += weight[:, None] * x * tl.exp(tl.minimum(sum_at(g, at + i, dk, DK, CHANNEL) - gy, 0.0))
            return found
        else:
            seam = sum_at(g, to + ROWS - 1, dk, DK, CHANNEL)
            x = tile(left, at, time, dk, ROWS, DK) * tl.exp(sums(g, at, dk, ROWS, DK, CHANNEL) - seam)
            return tl.exp(seam - gy) * tl.dot(tl.trans(weights), x, input_precision=DOT)
    else:
        x, gx = tile(left, at, time, dk, ROWS, DK), sums(g, at, dk, ROWS, DK, CHANNEL)
        decayed = weights * tl.exp(tl.minimum(gx - tl.trans(gy), 0.0))
        return tl.dot(tl.trans(decayed), x, input_precision=DOT)
