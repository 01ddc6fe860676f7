"""Triton kernels read the outer recurrence with a decay per head, forward and backward; nn/outer.py drives them.

    n_i = q_i . N_i,   N_i = a_i N_{i-1} + b_i k_i        NORMED: what a value channel of ones reads, without a block

The decay a is a head's and token's, STRONG the strength b too; SKIP and keys of a `group` of heads are as in
outer_kernels.py, which makes what chunks write and pull; N, a vector, goes beside S, in float32. A program has one
chunk, and goes through channels of keys and values in blocks of BK and BV: no tile is wider, so that several programs
share a multiprocessor. Numbers per token stand outside the products, which take queries, keys and values as they lie in
memory.
"""

import triton
import triton.language as tl

from assay.nn.chunk_blocks import above, below, diagonal, dot, put_columns, stored, sums, unless_gone
from assay.nn.chunk_forward import LENGTHS
from assay.nn.outer_kernels import per_token


@triton.jit
def turned(x, row, time, d, d0, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Load the transpose of `stored`: a product takes it from there without turning it between threads."""
    rows, at = row + tl.arange(0, ROWS), d0 + tl.arange(0, WIDTH)
    inside = (at < d)[:, None] & (rows < time)[None, :]
    return tl.load(x + at[:, None] + rows[None, :] * d, mask=inside, other=0.0)


@triton.jit
def products(x, y, at, time, d, ROWS: tl.constexpr, WIDTH: tl.constexpr, DOT: tl.constexpr):
    """Return x_i . y_j for the rows of a chunk."""
    found = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    for d0 in range(0, d, WIDTH):
        found += dot(stored(x, at, time, d, d0, ROWS, WIDTH), turned(y, at, time, d, d0, ROWS, WIDTH), DOT)
    return found


@triton.jit
def against(x, states, at, time, dk, dv, v0, ROWS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
            DOT: tl.constexpr):  # fmt: skip
    """Return x S, BV columns from v0 on, of rows x that are as long as keys."""
    found = tl.zeros((ROWS, BV), dtype=tl.float32)
    for k0 in range(0, dk, BK):
        found += dot(stored(x, at, time, dk, k0, ROWS, BK), stored(states, k0, dk, dv, v0, BK, BV), DOT)
    return found


@triton.jit
def across(x, states, at, time, dk, dv, k0, ROWS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
           DOT: tl.constexpr):  # fmt: skip
    """Return x S^T, BK columns from k0 on, of rows x that are as long as values."""
    found = tl.zeros((ROWS, BK), dtype=tl.float32)
    for v0 in range(0, dv, BV):
        found += dot(stored(x, at, time, dv, v0, ROWS, BV), turned(states, k0, dk, dv, v0, BK, BV), DOT)
    return found


@triton.jit
def rounded(x, DOT: tl.constexpr):
    """Return x as products take it: what several of them take is held so."""
    return x.to(tl.bfloat16) if DOT == "bf16" else x


@triton.jit
def decays(g, at, ROWS: tl.constexpr, ACROSS: tl.constexpr):
    """Return E_ij for j <= i, zeros elsewhere, or ACROSS its transpose."""
    own = sums(g, at, 1, ROWS, 1, False)
    since = tl.trans(own) - own if ACROSS else own - tl.trans(own)
    inside = above(ROWS, False) if ACROSS else below(ROWS, False)
    return tl.where(inside, tl.exp(tl.minimum(since, 0.0)), 0.0)


@triton.jit
def part(x, k0, dk, BK: tl.constexpr):
    """Load BK numbers of a vector as a row."""
    at = k0 + tl.arange(0, BK)
    return tl.load(x + at, mask=at < dk, other=0.0)[None, :]


@triton.jit(do_not_specialize=LENGTHS)
def outputs_by_head(q, k, v, b, skip, g, states, n_states, o, n, time, chunks, dk, dv, group, CHUNK: tl.constexpr,
                    BK: tl.constexpr, BV: tl.constexpr, STRONG: tl.constexpr, SKIP: tl.constexpr, NORMED: tl.constexpr,
                    DOT: tl.constexpr):  # fmt: skip
    """Compute what each token reads, and its n."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, rows = chunk * CHUNK, chunk * CHUNK + tl.arange(0, CHUNK)
    q += head // group * time * dk
    k += head // group * time * dk
    v += head * time * dv
    g += head * chunks * CHUNK
    states += (head * chunks + chunk) * dk * dv
    met = products(q, k, at, time, dk, CHUNK, BK, DOT) * decays(g, at, CHUNK, False)
    if STRONG:
        met *= tl.trans(per_token(b, head, at, time, CHUNK))
    since = tl.exp(sums(g, at, 1, CHUNK, 1, False))
    if NORMED:
        n_states += (head * chunks + chunk) * dk
        read = tl.zeros((CHUNK,), dtype=tl.float32)
        for k0 in range(0, dk, BK):
            queries = stored(q, at, time, dk, k0, CHUNK, BK).to(tl.float32)
            read += tl.sum(queries * part(n_states, k0, dk, BK), axis=1)
        read = tl.sum(since, axis=1) * read + tl.sum(met, axis=1)
        tl.store(n + head * time + rows, read, mask=rows < time)
    if SKIP:
        met += tl.where(diagonal(CHUNK), tl.load(skip + head), 0.0)
    met = rounded(met, DOT)
    for v0 in range(0, dv, BV):
        found = since * against(q, states, at, time, dk, dv, v0, CHUNK, BK, BV, DOT)
        found += dot(met, stored(v, at, time, dv, v0, CHUNK, BV), DOT)
        put_columns(o + head * time * dv, found, at, time, dv, v0, CHUNK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_by_head(q, k, v, b, skip, g, states, n_states, d_states, d_n_states, d_o, d_n, d_q, d_k, d_v, d_log, d_b,
                      d_skip, time, chunks, dk, dv, group, CHUNK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
                      STRONG: tl.constexpr, SKIP: tl.constexpr, NORMED: tl.constexpr, DECAYS: tl.constexpr,
                      DOT: tl.constexpr):  # fmt: skip
    """Compute all gradients of a chunk. Those of q and k are each head's own, also where heads share them. DECAYS: a
    log decay gets what its token and later ones have for reading, less what they have for being read, and what the
    state after the chunk has."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, rows = chunk * CHUNK, chunk * CHUNK + tl.arange(0, CHUNK)
    q += head // group * time * dk
    k += head // group * time * dk
    v += head * time * dv
    d_o += head * time * dv
    d_k += head * time * dk
    g += head * chunks * CHUNK
    states += (head * chunks + chunk) * dk * dv
    d_states += (head * chunks + chunk) * dk * dv
    n_states += (head * chunks + chunk) * dk if NORMED else 0
    d_n_states += (head * chunks + chunk) * dk if NORMED else 0
    gradient = gradients_of_queries(q, k, v, b, g, states, n_states, d_o, d_n, d_q + head * time * dk, head, at, time,
                                    dk, dv, CHUNK, BK, BV, STRONG, NORMED, DOT)  # fmt: skip
    # Numbers per token are loaded again, from a cache: kept, they would take registers in between.
    met = products(k, q, at, time, dk, CHUNK, BK, DOT) * decays(g, at, CHUNK, True)
    if STRONG:
        met *= per_token(b, head, at, time, CHUNK)
    weights = products(v, d_o, at, time, dv, CHUNK, BV, DOT)
    if SKIP:
        tl.store(d_skip + head * chunks + chunk, tl.sum(tl.where(diagonal(CHUNK), weights, 0.0)))
    if NORMED:
        weights += tl.trans(per_token(d_n, head, at, time, CHUNK))
    # Each pair of tokens counts for the late one and against the early one, by the very same number.
    gradient += tl.sum(met * weights, axis=0) - tl.sum(met * weights, axis=1)
    if SKIP:
        met += tl.where(diagonal(CHUNK), tl.load(skip + head), 0.0)
    met, weights = rounded(met, DOT), rounded(weights * decays(g, at, CHUNK, True), DOT)
    end = tl.load(g + at + CHUNK - 1)
    until = tl.exp(end - sums(g, at, 1, CHUNK, 1, False))
    strong = until
    if STRONG:
        strong *= per_token(b, head, at, time, CHUNK)
    for v0 in range(0, dv, BV):
        found = strong * against(k, d_states, at, time, dk, dv, v0, CHUNK, BK, BV, DOT)
        found += dot(met, stored(d_o, at, time, dv, v0, CHUNK, BV), DOT)
        put_columns(d_v + head * time * dv, found, at, time, dv, v0, CHUNK, BV)

    by_strength, by_state = tl.zeros((CHUNK,), dtype=tl.float32), tl.zeros((CHUNK,), dtype=tl.float32)
    kept = tl.zeros((BK,), dtype=tl.float32)
    for k0 in range(0, dk, BK):
        found = across(v, d_states, at, time, dk, dv, k0, CHUNK, BK, BV, DOT)
        if NORMED:
            found += part(d_n_states, k0, dk, BK)
        found *= until
        keys = stored(k, at, time, dk, k0, CHUNK, BK).to(tl.float32)
        by_state += tl.sum(keys * found, axis=1)
        found += dot(weights, stored(q, at, time, dk, k0, CHUNK, BK), DOT)
        if STRONG:
            by_strength += tl.sum(keys * found, axis=1)
            found *= per_token(b, head, at, time, CHUNK)
        put_columns(d_k, found, at, time, dk, k0, CHUNK, BK)
        if NORMED:
            kept += tl.sum(part(n_states, k0, dk, BK) * part(d_n_states, k0, dk, BK), axis=0)
        if DECAYS:
            for v0 in range(0, dv, BV):
                state, after = stored(states, k0, dk, dv, v0, BK, BV), stored(d_states, k0, dk, dv, v0, BK, BV)
                kept += tl.sum(state.to(tl.float32) * after.to(tl.float32), axis=1)
    if STRONG:
        tl.store(d_b + head * time + rows, by_strength, mask=rows < time)
        by_state *= tl.sum(per_token(b, head, at, time, CHUNK), axis=1)
    if DECAYS:
        gradient = tl.cumsum(gradient - by_state, axis=0, reverse=True)
        gradient += tl.sum(by_state, axis=0) + tl.exp(end) * tl.sum(kept, axis=0)
        tl.store(d_log + head * time + rows, unless_gone(gradient, g, at, 1, CHUNK, 1, False), mask=rows < time)


@triton.jit
def gradients_of_queries(q, k, v, b, g, states, n_states, d_o, d_n, d_q, head, at, time, dk, dv, CHUNK: tl.constexpr,
                         BK: tl.constexpr, BV: tl.constexpr, STRONG: tl.constexpr, NORMED: tl.constexpr,
                         DOT: tl.constexpr):  # fmt: skip
    """Write dq, and return what a log decay has of the state before the chunk: q dq's share of it."""
    since, weights = tl.exp(sums(g, at, 1, CHUNK, 1, False)), products(d_o, v, at, time, dv, CHUNK, BV, DOT)
    if NORMED:
        weights += per_token(d_n, head, at, time, CHUNK)
    weights *= decays(g, at, CHUNK, False)
    if STRONG:
        weights *= tl.trans(per_token(b, head, at, time, CHUNK))
    weights = rounded(weights, DOT)
    gradient = tl.zeros((CHUNK,), dtype=tl.float32)
    for k0 in range(0, dk, BK):
        found = across(d_o, states, at, time, dk, dv, k0, CHUNK, BK, BV, DOT)
        if NORMED:
            found += per_token(d_n, head, at, time, CHUNK) * part(n_states, k0, dk, BK)
        found *= since
        gradient += tl.sum(stored(q, at, time, dk, k0, CHUNK, BK).to(tl.float32) * found, axis=1)
        found += dot(weights, stored(k, at, time, dk, k0, CHUNK, BK), DOT)
        put_columns(d_q, found, at, time, dk, k0, CHUNK, BK)
    return gradient
