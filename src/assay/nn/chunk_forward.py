"""Triton kernels compute the delta rule forward; nn/triton.py drives them. A program has one chunk of one head.

Inside a chunk, with G and E as in chunk_blocks.py and S the state before it:

    overlaps     A_ij = b_i (k_i E_ij) . k_j for j < i;   T = (I + A)^-1;   fresh = T (b v);   erased = T (b k e^G)
                 u = fresh - erased S
    outputs      o_i = (q_i e^G_i) S + sum_{j<=i} ((q_i E_ij) . k_j) u_j
    carry        S <- e^G_end S + sum_j (k_j e^(G_end - G_j)) u_j^T

Only `carry` goes from chunk to chunk, the others run on all chunks at once.
"""

import triton
import triton.language as tl

from assay.nn.chunk_blocks import (
    below,
    columns,
    dot,
    elsewhere,
    floored,
    once,
    put,
    put_columns,
    scores,
    stored,
    sum_at,
    sums,
    tile,
)

LENGTHS = ["time", "chunks"]
"""Arguments whose values no kernel is compiled for: one compilation serves every length."""


@triton.jit(do_not_specialize=LENGTHS)
def cumulate(log_decay, g, time, chunks, dk, CHUNK: tl.constexpr, DK: tl.constexpr):
    """Compute G of a chunk: sums of log decays from its first token on."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    steps = floored(tile(log_decay + head * time * dk, chunk * CHUNK, time, dk, CHUNK, DK))
    put(g + head * chunks * CHUNK * dk, tl.cumsum(steps, axis=0), chunk * CHUNK, chunks * CHUNK, dk, CHUNK, DK)


@triton.jit(do_not_specialize=LENGTHS)
def overlaps(k, beta, g, a, time, chunks, dk, CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr,
             CHANNEL: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute A_ij = b_i (k_i E_ij) . k_j below the diagonal, zero elsewhere."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, rows = chunk * CHUNK, chunk * CHUNK + tl.arange(0, CHUNK)
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    if CHANNEL:  # noqa: SIM102 - the inner one is compiled only then
        if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
            return
    keys = tile(k + head * time * dk, at, time, dk, CHUNK, DK)
    b = tl.load(beta + head * time + rows, mask=rows < time, other=0.0).to(tl.float32)[:, None]
    found = scores(b * keys, keys, g, at, dk, CHUNK, LEVELS, DK, CHANNEL, DOT)
    found = tl.where(below(CHUNK, True), found, 0.0)
    put(a + (head * chunks + chunk) * CHUNK * CHUNK, found, 0, CHUNK, CHUNK, CHUNK, CHUNK)


@triton.jit
def solve(a, t, CHUNK: tl.constexpr, EXACT: tl.constexpr):
    """Compute T = (I + A)^-1: blocks on the diagonal by substitution, those below from them; above it stand zeros.
    EXACT: products are near float32; TF32 does where T is kept in bf16."""
    matrix = (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * CHUNK * CHUNK
    a += matrix
    t += matrix
    t0 = inverse(block(a, 0, 0, CHUNK))
    put_block(t, t0, 0, 0, CHUNK)
    if CHUNK == 64:
        t1, t2 = inverse(block(a, 1, 1, CHUNK)), inverse(block(a, 2, 2, CHUNK))
        t3 = inverse(block(a, 3, 3, CHUNK))
        a21, a32 = block(a, 2, 1, CHUNK), block(a, 3, 2, CHUNK)
        a31 = block(a, 3, 1, CHUNK)
        t10 = -times(EXACT, t1, times(EXACT, block(a, 1, 0, CHUNK), t0))
        t21 = -times(EXACT, t2, times(EXACT, a21, t1))
        t32 = -times(EXACT, t3, times(EXACT, a32, t2))
        t20 = -times(EXACT, t2, times(EXACT, block(a, 2, 0, CHUNK), t0) + times(EXACT, a21, t10))
        t31 = -times(EXACT, t3, times(EXACT, a31, t1) + times(EXACT, a32, t21))
        t30 = times(EXACT, block(a, 3, 0, CHUNK), t0) + times(EXACT, a31, t10) + times(EXACT, a32, t20)
        t30 = -times(EXACT, t3, t30)
        nothing = tl.zeros((16, 16), dtype=tl.float32)
        put_block(t, t1, 1, 1, CHUNK)
        put_block(t, t2, 2, 2, CHUNK)
        put_block(t, t3, 3, 3, CHUNK)
        put_block(t, t10, 1, 0, CHUNK)
        put_block(t, t21, 2, 1, CHUNK)
        put_block(t, t32, 3, 2, CHUNK)
        put_block(t, t20, 2, 0, CHUNK)
        put_block(t, t31, 3, 1, CHUNK)
        put_block(t, t30, 3, 0, CHUNK)
        for row in tl.static_range(3):
            for column in tl.static_range(row + 1, 4):
                put_block(t, nothing, row, column, CHUNK)


@triton.jit
def inverse(a):
    """Return (I + a)^-1 of a strictly lower triangular 16 x 16 block, row by row: stable where a power series is
    not."""
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    found = tl.where(i == j, 1.0, 0.0)
    for row in range(1, 16):
        weights = tl.sum(tl.where(i == row, a, 0.0), axis=0)
        known = tl.sum(weights[:, None] * found, axis=0)  # rows from `row` on weigh nothing
        found = tl.where(i == row, found - known[None, :], found)
    return found


@triton.jit
def times(EXACT: tl.constexpr, x, y):
    return tl.dot(x, y, input_precision="tf32x3" if EXACT else "tf32")


@triton.jit
def block(a, row, column, CHUNK: tl.constexpr):
    i, j = row * 16 + tl.arange(0, 16), column * 16 + tl.arange(0, 16)
    return tl.load(a + i[:, None] * CHUNK + j[None, :])


@triton.jit
def put_block(t, values, row, column, CHUNK: tl.constexpr):
    i, j = row * 16 + tl.arange(0, 16), column * 16 + tl.arange(0, 16)
    tl.store(t + i[:, None] * CHUNK + j[None, :], values)


@triton.jit(do_not_specialize=LENGTHS)
def unwritten(k, v, beta, g, t, fresh, erased, time, chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr,
              DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute fresh = T (b v) and erased = T (b k e^G)."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, rows = chunk * CHUNK, chunk * CHUNK + tl.arange(0, CHUNK)
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    solved = stored(t + (head * chunks + chunk) * CHUNK * CHUNK, 0, CHUNK, CHUNK, 0, CHUNK, CHUNK)
    b = tl.load(beta + head * time + rows, mask=rows < time, other=0.0).to(tl.float32)[:, None]
    keys = b * tile(k + head * time * dk, at, time, dk, CHUNK, DK) * tl.exp(sums(g, at, dk, CHUNK, DK, CHANNEL))
    put(erased + head * time * dk, dot(solved, once(keys, dk), DOT), at, time, dk, CHUNK, DK)
    for v0 in tl.static_range(0, dv, BV):
        values = b * columns(v + head * time * dv, at, time, dv, v0, CHUNK, BV)
        put_columns(fresh + head * time * dv, dot(solved, once(values, dk), DOT), at, time, dv, v0, CHUNK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def carry(k, fresh, g, erased, u, states, given, last, time, chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr,
          DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, GIVEN: tl.constexpr,
          DOT: tl.constexpr):  # fmt: skip
    """Go from chunk to chunk, and write u, states[n], the state before chunk n, and `last`, the one after all. GIVEN:
    it begins with that state, not with zeros."""
    head, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * BV
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    states += head * (chunks + 1) * dk * dv
    k += head * time * dk
    erased += head * time * dk
    fresh += head * time * dv
    u += head * time * dv
    state = tl.zeros((DK, BV), dtype=tl.float32)
    if GIVEN:
        state = columns(given + head * dk * dv, 0, dk, dv, v0, DK, BV)
    for chunk in range(chunks):
        put_columns(states + chunk * dk * dv, state, 0, dk, dv, v0, DK, BV)
        at = chunk * CHUNK
        end = sum_at(g, at + CHUNK - 1, dk, DK, CHANNEL)
        written = columns(fresh, at, time, dv, v0, CHUNK, BV)
        written -= dot(stored(erased, at, time, dk, 0, CHUNK, DK), state, DOT)
        put_columns(u, written, at, time, dv, v0, CHUNK, BV)
        keys = tile(k, at, time, dk, CHUNK, DK) * tl.exp(end - sums(g, at, dk, CHUNK, DK, CHANNEL))
        state = tl.trans(tl.exp(end)) * state + dot(tl.trans(once(keys, dk)), written, DOT)
    put_columns(states + chunks * dk * dv, state, 0, dk, dv, v0, DK, BV)
    put_columns(last + head * dk * dv, state, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def outputs(q, k, u, g, states, o, time, chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
            KEY: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr,
            DOT: tl.constexpr):  # fmt: skip
    """Compute o_i = (q_i e^G_i) S + sum_j ((q_i E_ij) . k_j) u_j, from DK channels of a key at a time."""
    head, chunk, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * BV
    at = chunk * CHUNK
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    if CHANNEL:  # noqa: SIM102 - the inner one is compiled only then
        if elsewhere(g, at, dk, CHUNK, LEVELS, KEY):
            return
    q += head * time * dk
    k += head * time * dk
    states += (head * (chunks + 1) + chunk) * dk * dv
    u += head * time * dv
    if DK == KEY:
        # All is loaded before the first product, so that a program waits for memory once.
        queries, keys = tile(q, at, time, dk, CHUNK, DK), tile(k, at, time, dk, CHUNK, DK)
        state, written = stored(states, 0, dk, dv, v0, DK, BV), stored(u, at, time, dv, v0, CHUNK, BV)
        found = dot(queries * tl.exp(sums(g, at, dk, CHUNK, DK, CHANNEL)), state, DOT)
        met = scores(queries, keys, g, at, dk, CHUNK, LEVELS, DK, CHANNEL, DOT)
    else:
        found, met = tl.zeros((CHUNK, BV), dtype=tl.float32), tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
        for first in range(0, dk, DK):
            queries, keys = tile(q + first, at, time, dk, CHUNK, DK), tile(k + first, at, time, dk, CHUNK, DK)
            state, own = stored(states + first * dv, 0, dk, dv, v0, DK, BV), g + (first if CHANNEL else 0)
            found += dot(queries * tl.exp(sums(own, at, dk, CHUNK, DK, CHANNEL)), state, DOT)
            met += scores(queries, keys, own, at, dk, CHUNK, LEVELS, DK, CHANNEL, DOT)
        written = stored(u, at, time, dv, v0, CHUNK, BV)
    found += dot(tl.where(below(CHUNK, False), met, 0.0), written, DOT)
    put_columns(o + head * time * dv, found, at, time, dv, v0, CHUNK, BV)
