"""Triton kernels of the chunked recurrences, backward: the slopes of what chunk_forward.py computes.

Only `carry_back` goes from chunk to chunk, last to first. `dk` is the number of key channels, as elsewhere; slopes of
keys are named for what a key does: `d_erasing` where it reads the state before it is written, `d_right` where it is
written under.
"""

import triton
import triton.language as tl

from assay.nn.chunk_blocks import below, columns, put, put_columns, scores, sum_at, sums, tile, to_left, to_right
from assay.nn.chunk_forward import LENGTHS


@triton.jit(do_not_specialize=LENGTHS)
def slopes_of_writes(q, k, g, d_o, du, d_states, time, chunks, dk, dv, CHUNK: tl.constexpr, ROWS: tl.constexpr,
                     DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, CARRIED: tl.constexpr,
                     DOT: tl.constexpr):  # fmt: skip
    """du_j = sum_i ((q_i E_ij) . k_j) do_i, for one block of rows j; CARRIED adds (k_j e^(G_end - G_j)) dS."""
    head, block_row, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * BV
    to = block_row * ROWS
    chunk = to // CHUNK
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    q += head * time * dk
    k += head * time * dk
    d_o += head * time * dv
    own = tl.where(below(ROWS, False), scores(q, k, g, to, to, time, dk, ROWS, DK, CHANNEL, DOT, True), 0.0)
    found = tl.dot(tl.trans(own), columns(d_o, to, time, dv, v0, ROWS, BV), input_precision=DOT)
    for at in range(to + ROWS, (chunk + 1) * CHUNK, ROWS):
        found += tl.dot(tl.trans(scores(q, k, g, at, to, time, dk, ROWS, DK, CHANNEL, DOT, False)),
                        columns(d_o, at, time, dv, v0, ROWS, BV), input_precision=DOT)  # fmt: skip
    if CARRIED:
        end = sum_at(g, (chunk + 1) * CHUNK - 1, dk, DK, CHANNEL)
        keys = tile(k, to, time, dk, ROWS, DK) * tl.exp(end - sums(g, to, dk, ROWS, DK, CHANNEL))
        after = columns(d_states + (head * (chunks + 1) + chunk + 1) * dk * dv, 0, dk, dv, v0, DK, BV)
        found += tl.dot(keys, after, input_precision=DOT)
    put_columns(du + head * time * dv, found, to, time, dv, v0, ROWS, BV)


@triton.jit(do_not_specialize=LENGTHS)
def carry_back(q, k, g, erased, d_o, du, d_states, time, chunks, dk, dv, CHUNK: tl.constexpr, DK: tl.constexpr,
               BV: tl.constexpr, CHANNEL: tl.constexpr, DELTA: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """From the last chunk to the first: d_states[chunks] is given, d_states[n] is that of the state before chunk n.
    Under the delta rule du gets its part from the state after its chunk."""
    head, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * BV
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    d_states += head * (chunks + 1) * dk * dv
    q += head * time * dk
    k += head * time * dk
    erased += head * time * dk
    d_o += head * time * dv
    du += head * time * dv
    slope = columns(d_states + chunks * dk * dv, 0, dk, dv, v0, DK, BV)
    for back in range(chunks):
        chunk = chunks - 1 - back
        at = chunk * CHUNK
        end = sum_at(g, at + CHUNK - 1, dk, DK, CHANNEL)
        own = sums(g, at, dk, CHUNK, DK, CHANNEL)
        since = tile(q, at, time, dk, CHUNK, DK) * tl.exp(own)
        before = tl.dot(tl.trans(since), columns(d_o, at, time, dv, v0, CHUNK, BV), input_precision=DOT)
        if DELTA:
            keys = tile(k, at, time, dk, CHUNK, DK) * tl.exp(end - own)
            written = columns(du, at, time, dv, v0, CHUNK, BV) + tl.dot(keys, slope, input_precision=DOT)
            put_columns(du, written, at, time, dv, v0, CHUNK, BV)
            before -= tl.dot(tl.trans(tile(erased, at, time, dk, CHUNK, DK)), written, input_precision=DOT)
        slope = tl.trans(tl.exp(end)) * slope + before
        put_columns(d_states + chunk * dk * dv, slope, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def slopes_of_keys(q, k, u, g, states, d_states, d_o, dq, d_right, time, chunks, dk, dv, CHUNK: tl.constexpr,
                   ROWS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr,
                   DOT: tl.constexpr):  # fmt: skip
    """dq, and dk as far as k is what u is written under, for one block of rows."""
    head, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS
    chunk = at // CHUNK
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    q += head * time * dk
    k += head * time * dk
    u += head * time * dv
    d_o += head * time * dv
    before = (head * (chunks + 1) + chunk) * dk * dv
    own = sums(g, at, dk, ROWS, DK, CHANNEL)
    end = sum_at(g, (chunk + 1) * CHUNK - 1, dk, DK, CHANNEL)
    queries = tl.exp(own) * against_state(d_o, states + before, at, time, dk, dv, ROWS, DK, BV, DOT)
    keys = tl.exp(end - own) * against_state(u, d_states + before + dk * dv, at, time, dk, dv, ROWS, DK, BV, DOT)
    near = tl.where(below(ROWS, False), over_values(d_o, u, at, at, time, dv, ROWS, BV, DOT), 0.0)
    queries += to_left(near, k, g, at, at, time, dk, ROWS, DK, CHANNEL, DOT, True)
    keys += to_right(near, q, g, at, at, time, dk, ROWS, DK, CHANNEL, DOT, True)
    for to in range(chunk * CHUNK, at, ROWS):
        queries += to_left(over_values(d_o, u, at, to, time, dv, ROWS, BV, DOT), k, g, at, to, time, dk, ROWS, DK,
                           CHANNEL, DOT, False)  # fmt: skip
    for late in range(at + ROWS, (chunk + 1) * CHUNK, ROWS):
        keys += to_right(over_values(d_o, u, late, at, time, dv, ROWS, BV, DOT), q, g, late, at, time, dk, ROWS, DK,
                         CHANNEL, DOT, False)  # fmt: skip
    put(dq + head * time * dk, queries, at, time, dk, ROWS, DK)
    put(d_right + head * time * dk, keys, at, time, dk, ROWS, DK)


@triton.jit(do_not_specialize=LENGTHS)
def slopes_of_solution(v, k, beta, g, t, fresh, erased, du, states, d_v, d_erasing, d_a, d_beta, time, chunks, dk, dv,
                       CHUNK: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr,
                       DOT: tl.constexpr):  # fmt: skip
    """Through u = fresh - erased S and T: dv, the slopes of b k e^G (d_erasing) and of A / b, and their part of db."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, rows = chunk * CHUNK, chunk * CHUNK + tl.arange(0, CHUNK)
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    du += head * time * dv
    keys_at, values_at = head * time * dk, head * time * dv
    matrix = (head * chunks + chunk) * CHUNK * CHUNK
    b = tl.load(beta + head * time + rows, mask=rows < time, other=0.0).to(tl.float32)
    back = tl.trans(tile(t + matrix, 0, CHUNK, CHUNK, CHUNK, CHUNK))
    before = states + (head * (chunks + 1) + chunk) * dk * dv
    d_keys = tl.dot(back, -against_state(du, before, at, time, dk, dv, CHUNK, DK, BV, DOT), input_precision=DOT)
    slope = -tl.dot(d_keys, tl.trans(tile(erased + keys_at, at, time, dk, CHUNK, DK)), input_precision=DOT)
    own = tl.exp(sums(g, at, dk, CHUNK, DK, CHANNEL))
    strength = tl.sum(d_keys * tile(k + keys_at, at, time, dk, CHUNK, DK) * own, axis=1)
    put(d_erasing + keys_at, b[:, None] * own * d_keys, at, time, dk, CHUNK, DK)
    for v0 in range(0, dv, BV):
        d_values = tl.dot(back, columns(du, at, time, dv, v0, CHUNK, BV), input_precision=DOT)
        solved = columns(fresh + values_at, at, time, dv, v0, CHUNK, BV)
        slope -= tl.dot(d_values, tl.trans(solved), input_precision=DOT)
        strength += tl.sum(d_values * columns(v + values_at, at, time, dv, v0, CHUNK, BV), axis=1)
        put_columns(d_v + values_at, b[:, None] * d_values, at, time, dv, v0, CHUNK, BV)
    slope = tl.where(below(CHUNK, True), slope, 0.0)
    put(d_a + matrix, slope, 0, CHUNK, CHUNK, CHUNK, CHUNK)
    tl.store(d_beta + head * time + rows, strength, mask=rows < time)


@triton.jit(do_not_specialize=LENGTHS)
def slopes_of_overlaps(k, beta, g, d_a, d_erasing, d_right, d_beta, d_k, time, chunks, dk, CHUNK: tl.constexpr,
                       ROWS: tl.constexpr, DK: tl.constexpr, CHANNEL: tl.constexpr, DOT: tl.constexpr,
                       JOINED: tl.constexpr):  # fmt: skip
    """Through A_ij = b_i (k_i E_ij) . k_j, added to the slopes of both keys and of b; one block of rows. JOINED writes
    the sum of both keys' slopes to d_k instead."""
    head, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS
    chunk = at // CHUNK
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    k += head * time * dk
    d_a += (head * chunks + chunk) * CHUNK * CHUNK
    rows = at + tl.arange(0, ROWS)
    b = tl.load(beta + head * time + rows, mask=rows < time, other=0.0).to(tl.float32)[:, None]
    left = to_left(pair(d_a, at, at, CHUNK, ROWS), k, g, at, at, time, dk, ROWS, DK, CHANNEL, DOT, True)
    for to in range(chunk * CHUNK, at, ROWS):
        left += to_left(pair(d_a, at, to, CHUNK, ROWS), k, g, at, to, time, dk, ROWS, DK, CHANNEL, DOT, False)
    strength = tl.sum(left * tile(k, at, time, dk, ROWS, DK), axis=1)
    tl.store(d_beta + head * time + rows, strength + tl.load(d_beta + head * time + rows, mask=rows < time, other=0.0),
             mask=rows < time)  # fmt: skip
    d_erasing += head * time * dk
    left = b * left + tile(d_erasing, at, time, dk, ROWS, DK)
    right = tile(d_right + head * time * dk, at, time, dk, ROWS, DK)
    own = b * pair(d_a, at, at, CHUNK, ROWS)
    right += to_right(own, k, g, at, at, time, dk, ROWS, DK, CHANNEL, DOT, True)
    for late in range(at + ROWS, (chunk + 1) * CHUNK, ROWS):
        late_rows = late + tl.arange(0, ROWS)
        late_b = tl.load(beta + head * time + late_rows, mask=late_rows < time, other=0.0).to(tl.float32)[:, None]
        weights = late_b * pair(d_a, late, at, CHUNK, ROWS)
        right += to_right(weights, k, g, late, at, time, dk, ROWS, DK, CHANNEL, DOT, False)
    if JOINED:
        put(d_k + head * time * dk, left + right, at, time, dk, ROWS, DK)
    else:
        put(d_erasing, left, at, time, dk, ROWS, DK)
        put(d_right + head * time * dk, right, at, time, dk, ROWS, DK)


@triton.jit(do_not_specialize=LENGTHS)
def slopes_of_decay(q, k, g, dq, d_erasing, d_right, states, d_states, d_log, d_q, d_k, time, chunks, dk, dv,
                    CHUNK: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr,
                    DELTA: tl.constexpr):  # fmt: skip
    """G stands beside q and k alone, as q e^G and k e^-G, so its slope is q dq + k d_erasing - k d_right, and that of
    the chunk's end what the state after it receives. A log decay gets the sum of those from its own token on. d_q
    and d_k get the slopes of q and k in their dtype."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK
    keys_at = head * time * dk
    keys = tile(k + keys_at, at, time, dk, CHUNK, DK)
    queries = tile(dq + keys_at, at, time, dk, CHUNK, DK)
    right = tile(d_right + keys_at, at, time, dk, CHUNK, DK)
    slope = tile(q + keys_at, at, time, dk, CHUNK, DK) * queries - keys * right
    if DELTA:
        erasing = tile(d_erasing + keys_at, at, time, dk, CHUNK, DK)
        slope += keys * erasing
        right += erasing
    put(d_q + keys_at, queries, at, time, dk, CHUNK, DK)
    put(d_k + keys_at, right, at, time, dk, CHUNK, DK)
    after = (head * (chunks + 1) + chunk + 1) * dk * dv
    end = tl.zeros((DK,), dtype=tl.float32)
    for v0 in range(0, dv, BV):
        state = columns(states + after, 0, dk, dv, v0, DK, BV)
        end += tl.sum(state * columns(d_states + after, 0, dk, dv, v0, DK, BV), axis=1)
    if CHANNEL:
        put(d_log + keys_at, tl.cumsum(slope, axis=0, reverse=True) + end[None, :], at, time, dk, CHUNK, DK)
    else:
        found = tl.cumsum(tl.sum(slope, axis=1), axis=0, reverse=True) + tl.sum(end)
        rows = at + tl.arange(0, CHUNK)
        tl.store(d_log + head * time + rows, found, mask=rows < time)


@triton.jit
def over_values(x, y, at, to, time, dv, ROWS: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):
    """Return x_i . y_j over all value channels, for the rows of two blocks."""
    found = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    for v0 in range(0, dv, BV):
        y_block = columns(y, to, time, dv, v0, ROWS, BV)
        found += tl.dot(columns(x, at, time, dv, v0, ROWS, BV), tl.trans(y_block), input_precision=DOT)
    return found


@triton.jit
def against_state(x, states, at, time, dk, dv, ROWS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr,
                  DOT: tl.constexpr):  # fmt: skip
    """Return x S^T, (ROWS, DK)."""
    found = tl.zeros((ROWS, DK), dtype=tl.float32)
    for v0 in range(0, dv, BV):
        state = columns(states, 0, dk, dv, v0, DK, BV)
        found += tl.dot(columns(x, at, time, dv, v0, ROWS, BV), tl.trans(state), input_precision=DOT)
    return found


@triton.jit
def pair(a, at, to, CHUNK: tl.constexpr, ROWS: tl.constexpr):
    """Load the block of a chunk's matrix at the rows of `at` and the columns of `to`."""
    i, j = at % CHUNK + tl.arange(0, ROWS), to % CHUNK + tl.arange(0, ROWS)
    return tl.load(a + i[:, None] * CHUNK + j[None, :])
