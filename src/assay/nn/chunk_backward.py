"""Triton kernels compute the delta rule backward: the gradients of what chunk_forward.py computes.

Only `carry_back` goes from chunk to chunk, last to first. `dk` is the number of key channels, as elsewhere; gradients
of keys are named for what a key does: `d_erasing` where it reads the state before it is written, `d_right` where it is
written under.
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
        written = columns(du, at, time, dv, v0, CHUNK, BV) + dot(keys, gradient, DOT)
        put_columns(du, written, at, time, dv, v0, CHUNK, BV)
        before -= dot(tl.trans(once(stored(erased, at, time, dk, 0, CHUNK, DK), dk)), written, DOT)
        gradient = tl.trans(tl.exp(end)) * gradient + before
    put_columns(first + head * dk * dv, gradient, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_keys(q, k, u, g, states, d_states, d_o, dq, along, d_right, time, chunks, dk, dv: tl.constexpr,
                      CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr,
                      CHANNEL: tl.constexpr, ALONG: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute dq, and dk as far as k is what u is written under. ALONG: also q dq, summed over channels."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    if CHANNEL:  # noqa: SIM102 - the inner one is compiled only then
        if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
            return
    keys_at = head * time * dk
    u += head * time * dv
    d_o += head * time * dv
    states += (head * (chunks + 1) + chunk) * dk * dv
    d_states += (head * chunks + chunk) * dk * dv
    weights = weights_of(d_o, u, at, time, dv, CHUNK, BV, False, DOT)
    keys, queries = tile(k + keys_at, at, time, dk, CHUNK, DK), tile(q + keys_at, at, time, dk, CHUNK, DK)
    read = against_state(d_o, states, at, time, dk, dv, CHUNK, DK, BV, DOT)
    if LEVELS == 0:
        weights, alone = decayed(weights, g, at, dk, CHUNK, DK, CHANNEL)
        gradient = left_of(weights, alone, keys, read, g, at, dk, CHUNK, DK, CHANNEL, DOT)
        put(dq + keys_at, gradient, at, time, dk, CHUNK, DK)
        if ALONG:
            rows = at + tl.arange(0, CHUNK)
            tl.store(along + head * time + rows, tl.sum(queries * gradient, axis=1), mask=rows < time)
        kept = against_state(u, d_states, at, time, dk, dv, CHUNK, DK, BV, DOT)
        gradient, _ = right_of(weights, alone, queries, kept, g, at, dk, CHUNK, DK, CHANNEL, DOT)
    else:
        own = sums(g, at, dk, CHUNK, DK, CHANNEL)
        gradient = merged_gradients(weights, keys, own, own, g, at, dk, CHUNK, LEVELS, DK, True, False, DOT)
        gradient += tl.exp(own) * read
        put(dq + keys_at, gradient, at, time, dk, CHUNK, DK)
        across = weights_across(d_o, u, at, time, dv, CHUNK, BV, False, DOT)
        gradient = merged_gradients(across, queries, own, own, g, at, dk, CHUNK, LEVELS, DK, False, False, DOT)
        until = tl.exp(sum_at(g, at + CHUNK - 1, dk, DK, CHANNEL) - own)
        gradient += until * against_state(u, d_states, at, time, dk, dv, CHUNK, DK, BV, DOT)
    put(d_right + keys_at, gradient, at, time, dk, CHUNK, DK)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_solution(v, k, beta, g, t, fresh, erased, du, states, d_v, d_erasing, d_a, d_beta, time, chunks, dk,
                          dv: tl.constexpr, CHUNK: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr,
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
    tl.store(d_beta + head * time + rows, strength, mask=rows < time)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_overlaps(q, k, beta, g, d_a, dq, d_erasing, d_right, states, d_states, d_beta, d_log, d_q, d_k, time,
                          chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr,
                          BV: tl.constexpr, CHANNEL: tl.constexpr, DECAYS: tl.constexpr,
                          DOT: tl.constexpr):  # fmt: skip
    """Add what comes through A_ij = b_i (k_i E_ij) . k_j to the gradients of both keys, whose sum is that of k, and of
    b. DECAYS: the gradient of log a is made of all these. G stands beside q and k alone, as q e^G and k e^-G, so its
    gradient is q dq + k d_erasing - k d_right, and that of the chunk's end what the state after it receives; a log
    decay gets the sum of those from its own token on. `dq` is q dq summed over channels, or with a decay of each dq
    itself, which is then written to d_q in the dtype of q."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, rows = chunk * CHUNK, chunk * CHUNK + tl.arange(0, CHUNK)
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    if CHANNEL:  # noqa: SIM102 - the inner one is compiled only then
        if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
            return
    k += head * time * dk
    strengths, keys_at = d_beta + head * time + rows, head * time * dk
    b = tl.load(beta + head * time + rows, mask=rows < time, other=0.0).to(tl.float32)[:, None]
    d_a += (head * chunks + chunk) * CHUNK * CHUNK
    gradient = tile(d_a, 0, CHUNK, CHUNK, CHUNK, CHUNK)
    keys = tile(k, at, time, dk, CHUNK, DK)
    strong = once(b * keys, dk)
    if LEVELS == 0:
        if not CHANNEL:
            gradient, _ = decayed(gradient, g, at, dk, CHUNK, DK, False)
        gradient = once(gradient, dk)
        left = left_of(gradient, 0.0, keys, 0.0, g, at, dk, CHUNK, DK, CHANNEL, DOT)
        right, _ = right_of(gradient, 0.0, strong, 0.0, g, at, dk, CHUNK, DK, CHANNEL, DOT)
    else:
        own, across = sums(g, at, dk, CHUNK, DK, True), square_across(d_a, CHUNK)
        left = merged_gradients(gradient, keys, own, own, g, at, dk, CHUNK, LEVELS, DK, True, True, DOT)
        right = merged_gradients(across, strong, own, own, g, at, dk, CHUNK, LEVELS, DK, False, True, DOT)
    strength = tl.sum(left * keys, axis=1) + tl.load(strengths, mask=rows < time, other=0.0)
    tl.store(strengths, strength, mask=rows < time)
    left = b * left + tile(d_erasing + keys_at, at, time, dk, CHUNK, DK)
    right += tile(d_right + keys_at, at, time, dk, CHUNK, DK)
    put(d_k + keys_at, left + right, at, time, dk, CHUNK, DK)
    if DECAYS:
        gradient = tile(k, at, time, dk, CHUNK, DK) * (left - right)
        states += (head * (chunks + 1) + chunk + 1) * dk * dv
        d_states += (head * chunks + chunk) * dk * dv
        end = over_states(states, d_states, dk, dv, DK, BV)
        if CHANNEL:
            d_queries = tile(dq + keys_at, at, time, dk, CHUNK, DK)
            put(d_q + keys_at, d_queries, at, time, dk, CHUNK, DK)
            gradient += tile(q + keys_at, at, time, dk, CHUNK, DK) * d_queries
            found = tl.cumsum(gradient, axis=0, reverse=True) + end[None, :]
            put(d_log + keys_at, unless_gone(found, g, at, dk, CHUNK, DK, True), at, time, dk, CHUNK, DK)
        else:
            along = tl.load(dq + head * time + rows, mask=rows < time, other=0.0)
            found = tl.cumsum(along + tl.sum(gradient, axis=1), axis=0, reverse=True) + tl.sum(end)
            found = unless_gone(found, g, at, dk, CHUNK, DK, False)
            tl.store(d_log + head * time + rows, found, mask=rows < time)
