"""Triton kernels compute the delta rule backward: the gradients of what chunk_forward.py computes.

Only `carry_back` goes from chunk to chunk, last to first. `dk` is the number of key channels, as elsewhere; gradients
of keys are named for what a key does: `d_erasing` where it reads the state before it is written, `right` where it is
written under, `left` where it meets those.
"""

import triton
import triton.language as tl

from assay.nn.chunk_blocks import (
    above,
    against_state,
    below,
    columns,
    decayed,
    dot,
    elsewhere,
    left_of,
    merged_gradients,
    once,
    over_states,
    put,
    put_columns,
    right_of,
    scores_across,
    square_across,
    stored,
    sum_at,
    sums,
    tile,
    unless_gone,
    weights_across,
    weights_of,
)
from assay.nn.chunk_forward import LENGTHS


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_writes(q, k, g, d_o, du, time, chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
                        DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute du_j = sum_i ((q_i E_ij) . k_j) do_i, as far as outputs of its chunk pull."""
    head, chunk, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * BV
    at = chunk * CHUNK
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    if CHANNEL:  # noqa: SIM102 - the inner one is compiled only then
        if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
            return
    queries = tile(q + head * time * dk, at, time, dk, CHUNK, DK)
    keys = tile(k + head * time * dk, at, time, dk, CHUNK, DK)
    gradient = stored(d_o + head * time * dv, at, time, dv, v0, CHUNK, BV)
    met = scores_across(queries, keys, g, at, dk, CHUNK, LEVELS, DK, CHANNEL, DOT)
    found = dot(tl.where(above(CHUNK, False), met, 0.0), gradient, DOT)
    put_columns(du + head * time * dv, found, at, time, dv, v0, CHUNK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def carry_back(q, k, g, erased, d_o, du, d_states, given, first, time, chunks, dk, dv: tl.constexpr,
               CHUNK: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, GIVEN: tl.constexpr,
               DOT: tl.constexpr):  # fmt: skip
    """Go from the last chunk to the first, and write d_states[n], the gradient of the state after chunk n, and `first`,
    that of the state before all. GIVEN: it begins with that gradient, not with zeros. du gets its part from the state
    after its chunk."""
    head, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * BV
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    d_states += head * chunks * dk * dv
    q += head * time * dk
    k += head * time * dk
    erased += head * time * dk
    d_o += head * time * dv
    du += head * time * dv
    gradient = tl.zeros((DK, BV), dtype=tl.float32)
    if GIVEN:
        gradient = columns(given + head * dk * dv, 0, dk, dv, v0, DK, BV)
    for back in range(chunks):
        chunk = chunks - 1 - back
        put_columns(d_states + chunk * dk * dv, gradient, 0, dk, dv, v0, DK, BV)
        at = chunk * CHUNK
        end = sum_at(g, at + CHUNK - 1, dk, DK, CHANNEL)
        own = sums(g, at, dk, CHUNK, DK, CHANNEL)
        since = tile(q, at, time, dk, CHUNK, DK) * tl.exp(own)
        before = dot(tl.trans(once(since, dk)), stored(d_o, at, time, dv, v0, CHUNK, BV), DOT)
        keys = tile(k, at, time, dk, CHUNK, DK) * tl.exp(end - own)
        if CHANNEL:
            keys = once(keys, dk)
        written = columns(du, at, time, dv, v0, CHUNK, BV) + dot(keys, gradient, DOT)
        put_columns(du, written, at, time, dv, v0, CHUNK, BV)
        before -= dot(tl.trans(once(stored(erased, at, time, dk, 0, CHUNK, DK), dk)), written, DOT)
        gradient = tl.trans(tl.exp(end)) * gradient + before
    put_columns(first + head * dk * dv, gradient, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_solution(v, k, beta, g, t, fresh, erased, du, states, d_v, d_erasing, d_a, d_strength, time, chunks,
                          dk, dv: tl.constexpr, CHUNK: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr,
                          CHANNEL: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute what comes through u = fresh - erased S and T: dv, the gradients of b k e^G (d_erasing) and of A / b, and
    their part of db."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, rows = chunk * CHUNK, chunk * CHUNK + tl.arange(0, CHUNK)
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    du += head * time * dv
    keys_at, values_at = head * time * dk, head * time * dv
    matrix = (head * chunks + chunk) * CHUNK * CHUNK
    b = tl.load(beta + head * time + rows, mask=rows < time, other=0.0).to(tl.float32)
    back = tl.trans(once(stored(t + matrix, 0, CHUNK, CHUNK, 0, CHUNK, CHUNK), dk))
    before = states + (head * (chunks + 1) + chunk) * dk * dv
    d_keys = dot(back, -against_state(du, before, at, time, dk, dv, CHUNK, DK, BV, DOT), DOT)
    gradient = -dot(d_keys, tl.trans(once(stored(erased + keys_at, at, time, dk, 0, CHUNK, DK), dk)), DOT)
    own = tl.exp(sums(g, at, dk, CHUNK, DK, CHANNEL))
    strength = tl.sum(d_keys * tile(k + keys_at, at, time, dk, CHUNK, DK) * own, axis=1)
    put(d_erasing + keys_at, b[:, None] * own * d_keys, at, time, dk, CHUNK, DK)
    for v0 in tl.static_range(0, dv, BV):
        d_values = dot(back, stored(du, at, time, dv, v0, CHUNK, BV), DOT)
        solved = stored(fresh + values_at, at, time, dv, v0, CHUNK, BV)
        gradient -= dot(d_values, tl.trans(once(solved, dk)), DOT)
        strength += tl.sum(d_values * columns(v + values_at, at, time, dv, v0, CHUNK, BV), axis=1)
        put_columns(d_v + values_at, b[:, None] * d_values, at, time, dv, v0, CHUNK, BV)
    gradient = tl.where(below(CHUNK, True), gradient, 0.0)
    put(d_a + matrix, gradient, 0, CHUNK, CHUNK, CHUNK, CHUNK)
    tl.store(d_strength + head * time + rows, strength, mask=rows < time)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_keys(q, k, beta, u, g, states, d_states, d_o, d_a, d_erasing, d_strength, d_q, d_k, d_beta, d_log,
                      time, chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr,
                      BV: tl.constexpr, CHANNEL: tl.constexpr, DECAYS: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute dq and dk for DK channels of a key, all of them with a decay per head, and their share of db: each block
    of channels has its own. What k is written under and what it erases go through A_ij = b_i (k_i E_ij) . k_j too.
    DECAYS: the gradient of log a is made of all these. G stands beside q and k alone, as q e^G and k e^-G, so its
    gradient is q dq + k left - k right, and that of the chunk's end what the state after it receives; a log decay gets
    the sum of those from its own token on."""
    head, chunk, first = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * DK
    at, rows = chunk * CHUNK, chunk * CHUNK + tl.arange(0, CHUNK)
    g += head * chunks * CHUNK * (dk if CHANNEL else 1) + (first if CHANNEL else 0)
    if CHANNEL:  # noqa: SIM102 - the inner one is compiled only then
        if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
            return
    keys_at, values_at = head * time * dk + first, head * time * dv
    states += ((head * (chunks + 1) + chunk) * dk + first) * dv
    d_states += ((head * chunks + chunk) * dk + first) * dv
    d_a += (head * chunks + chunk) * CHUNK * CHUNK
    parts = (tl.program_id(2) * tl.num_programs(0) + head) * time + rows
    b = tl.load(beta + head * time + rows, mask=rows < time, other=0.0).to(tl.float32)[:, None]
    weights = weights_of(d_o + values_at, u + values_at, at, time, dv, CHUNK, BV, False, DOT)
    # What is needed again later is loaded again, from a cache: all at once would need more registers than there are.
    if LEVELS == 0:
        weights, alone = decayed(weights, g, at, dk, CHUNK, DK, CHANNEL)
        read = against_state(d_o + values_at, states, at, time, dk, dv, CHUNK, DK, BV, DOT)
        keys = tile(k + keys_at, at, time, dk, CHUNK, DK)
        of_queries = left_of(weights, alone, keys, read, g, at, dk, CHUNK, DK, CHANNEL, DOT)
        put(d_q + keys_at, of_queries, at, time, dk, CHUNK, DK)
        queries = tile(q + keys_at, at, time, dk, CHUNK, DK)
        gradient = queries * of_queries
        if not CHANNEL:
            gradient = tl.sum(gradient, axis=1)
        kept = against_state(u + values_at, d_states, at, time, dk, dv, CHUNK, DK, BV, DOT)
        right, _ = right_of(weights, alone, queries, kept, g, at, dk, CHUNK, DK, CHANNEL, DOT)
        through = tile(d_a, 0, CHUNK, CHUNK, CHUNK, CHUNK)
        if not CHANNEL:
            through, _ = decayed(through, g, at, dk, CHUNK, DK, False)
        through, keys = once(through, dk), tile(k + keys_at, at, time, dk, CHUNK, DK)
        more, _ = right_of(through, 0.0, once(b * keys, dk), 0.0, g, at, dk, CHUNK, DK, CHANNEL, DOT)
        left = left_of(through, 0.0, keys, 0.0, g, at, dk, CHUNK, DK, CHANNEL, DOT)
    else:
        own, keys = sums(g, at, dk, CHUNK, DK, True), tile(k + keys_at, at, time, dk, CHUNK, DK)
        of_queries = merged_gradients(weights, keys, own, own, g, at, dk, CHUNK, LEVELS, DK, True, False, DOT)
        of_queries += tl.exp(own) * against_state(d_o + values_at, states, at, time, dk, dv, CHUNK, DK, BV, DOT)
        put(d_q + keys_at, of_queries, at, time, dk, CHUNK, DK)
        queries = tile(q + keys_at, at, time, dk, CHUNK, DK)
        gradient = queries * of_queries
        right = tl.exp(sum_at(g, at + CHUNK - 1, dk, DK, True) - own)
        right *= against_state(u + values_at, d_states, at, time, dk, dv, CHUNK, DK, BV, DOT)
        weights = weights_across(d_o + values_at, u + values_at, at, time, dv, CHUNK, BV, False, DOT)
        right += merged_gradients(weights, queries, own, own, g, at, dk, CHUNK, LEVELS, DK, False, False, DOT)
        weights, keys = square_across(d_a, CHUNK), b * tile(k + keys_at, at, time, dk, CHUNK, DK)
        more = merged_gradients(weights, keys, own, own, g, at, dk, CHUNK, LEVELS, DK, False, True, DOT)
        weights, keys = tile(d_a, 0, CHUNK, CHUNK, CHUNK, CHUNK), tile(k + keys_at, at, time, dk, CHUNK, DK)
        left = merged_gradients(weights, keys, own, own, g, at, dk, CHUNK, LEVELS, DK, True, True, DOT)
    right += more
    strength = tl.sum(left * keys, axis=1)
    strength += tl.load(d_strength + head * time + rows, mask=(rows < time) & (tl.program_id(2) == 0), other=0.0)
    tl.store(d_beta + parts, strength, mask=rows < time)
    left = b * left + tile(d_erasing + keys_at, at, time, dk, CHUNK, DK)
    put(d_k + keys_at, left + right, at, time, dk, CHUNK, DK)
    if DECAYS:
        own = keys * (left - right)
        end = over_states(states + dk * dv, d_states, dk, dv, DK, BV)
        if CHANNEL:
            found = tl.cumsum(gradient + own, axis=0, reverse=True) + end[None, :]
            put(d_log + keys_at, unless_gone(found, g, at, dk, CHUNK, DK, True), at, time, dk, CHUNK, DK)
        else:
            found = tl.cumsum(gradient + tl.sum(own, axis=1), axis=0, reverse=True) + tl.sum(end)
            found = unless_gone(found, g, at, dk, CHUNK, DK, False)
            tl.store(d_log + head * time + rows, found, mask=rows < time)
