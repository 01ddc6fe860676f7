"""Triton kernels compute the outer recurrence, forward and backward; nn/outer.py drives them. A program has one chunk.

Inside a chunk, with G and E as in chunk_blocks.py and S the state before it:

    written    W = sum_j (k_j e^(G_end - G_j)) v_j^T, and G itself
    passed     S <- e^G_end S + W, from chunk to chunk: element by element, so that no product waits for another
    outputs    o_i = (q_i e^G_i) S + sum_{j<=i} ((q_i E_ij) . k_j) v_j

Backward, `pulled` is what `written` is forward, and `passed` runs from the last chunk to the first. Outputs and
gradients are made here with a decay per channel, in by_head_kernels.py with one per head. With many sequences one
program runs all chunks of a head, and writes each state once: `carried` does what `written` and `passed` do,
`carried_back` what `pulled` and `passed`.

Keys may be those of `group` heads. With a decay per head there may be more. STRONG: k_j stands for b_j k_j, with a
strength b per head and token. SKIP adds D v_i to o_i, D per head: it is a number on the diagonal of the scores. NORMED:
a vector N <- e^G_end N + sum_j k_j e^(G_end - G_j) goes beside S, in float32.
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
    floored,
    left_of,
    merged_gradients,
    once,
    over_states,
    put,
    put_columns,
    right_of,
    scores,
    scores_across,
    stored,
    sum_at,
    sums,
    tile,
    unless_gone,
    weights_across,
    weights_of,
)
from assay.nn.chunk_forward import LENGTHS


@triton.jit
def per_token(x, head, at, time, ROWS: tl.constexpr):
    """Load a number per head and token as a column, zeros outside."""
    rows = at + tl.arange(0, ROWS)
    return tl.load(x + head * time + rows, mask=rows < time, other=0.0).to(tl.float32)[:, None]


@triton.jit
def strong_keys(k, b, head, at, time, dk, ROWS: tl.constexpr, DK: tl.constexpr, STRONG: tl.constexpr):
    """Load a chunk's keys, times their strengths if they have some."""
    keys = tile(k, at, time, dk, ROWS, DK)
    if STRONG:
        keys *= per_token(b, head, at, time, ROWS)
    return keys


@triton.jit
def put_vector(x, values, place, dk, DK: tl.constexpr):
    tl.store(x + place * dk + tl.arange(0, DK), values, mask=tl.arange(0, DK) < dk)


@triton.jit
def sums_of(log_decay, g, head, at, time, chunks, dk, kept, CHUNK: tl.constexpr, DK: tl.constexpr,
            CHANNEL: tl.constexpr):  # fmt: skip
    """Write G of a chunk, if it is to be kept; return G_end - G, and G_end as a factor's exponent of the state."""
    if CHANNEL:
        steps = floored(tile(log_decay + head * time * dk, at, time, dk, CHUNK, DK))
        own, end = tl.cumsum(steps, axis=0), tl.sum(steps, axis=0)
        put(g + head * chunks * CHUNK * dk, own, at, tl.where(kept, chunks * CHUNK, 0), dk, CHUNK, DK)
        until, end = end[None, :] - own, end[:, None]
    else:
        rows = at + tl.arange(0, CHUNK)
        steps = floored(tl.load(log_decay + head * time + rows, mask=rows < time, other=0.0))
        own, end = tl.cumsum(steps, axis=0), tl.sum(steps, axis=0)
        tl.store(g + head * chunks * CHUNK + rows, own, mask=(rows >= 0) & kept)
        until = (end - own)[:, None]
    return until, end


@triton.jit(do_not_specialize=LENGTHS)
def written(k, v, b, log_decay, g, writes, n_writes, time, chunks, dk, dv: tl.constexpr, group, CHUNK: tl.constexpr,
            DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, STRONG: tl.constexpr, NORMED: tl.constexpr,
            DOT: tl.constexpr):  # fmt: skip
    """Compute G of a chunk, and what the chunk writes into the state after it, for DK channels of a key."""
    head, chunk, first = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * DK
    at, channel = chunk * CHUNK, first if CHANNEL else 0
    until, _ = sums_of(log_decay + channel, g + channel, head, at, time, chunks, dk, True, CHUNK, DK, CHANNEL)
    keys = strong_keys(k + head // group * time * dk + first, b, head, at, time, dk, CHUNK, DK, STRONG)
    keys *= tl.exp(tl.minimum(until, 0.0))
    writes += first * dv
    if NORMED:
        put_vector(n_writes + first, tl.sum(keys, axis=0), head * chunks + chunk, dk, DK)
    for v0 in tl.static_range(0, dv, BV):
        values = stored(v + head * time * dv, at, time, dv, v0, CHUNK, BV)
        found = dot(tl.trans(keys), values, DOT)
        put_columns(writes + (head * chunks + chunk) * dk * dv, found, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def pulled(q, g, d_o, d_n, pulls, n_pulls, time, chunks, dk, dv: tl.constexpr, group, CHUNK: tl.constexpr,
           DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, NORMED: tl.constexpr,
           DOT: tl.constexpr):  # fmt: skip
    """Compute what a chunk's outputs add to the gradient of the state before it, for DK channels of a key."""
    head, chunk, first = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * DK
    at = chunk * CHUNK
    g += head * chunks * CHUNK * (dk if CHANNEL else 1) + (first if CHANNEL else 0)
    since = tile(q + head // group * time * dk + first, at, time, dk, CHUNK, DK)
    since *= tl.exp(sums(g, at, dk, CHUNK, DK, CHANNEL))
    pulls += first * dv
    if NORMED:
        pull = tl.sum(since * per_token(d_n, head, at, time, CHUNK), axis=0)
        put_vector(n_pulls + first, pull, head * chunks + chunk, dk, DK)
    for v0 in tl.static_range(0, dv, BV):
        found = dot(tl.trans(once(since, dk)), stored(d_o + head * time * dv, at, time, dv, v0, CHUNK, BV), DOT)
        put_columns(pulls + (head * chunks + chunk) * dk * dv, found, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def passed(states, n_states, g, given, left, chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
           DV: tl.constexpr, STAGES: tl.constexpr, CHANNEL: tl.constexpr, BACK: tl.constexpr, GIVEN: tl.constexpr,
           LEFT: tl.constexpr, NORMED: tl.constexpr):  # fmt: skip
    """Replace, in place, what each chunk writes by the state before it; BACK, what it pulls by the gradient of the
    state after it. GIVEN: it begins with that state, not with zeros. LEFT: what comes out at the other end is written.
    NORMED: the same of the vectors beside the states, from zeros."""
    head, keys = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = (keys < dk)[:, None] & (tl.arange(0, DV) < dv)[None, :]
    own = keys[:, None] * dv + tl.arange(0, DV)[None, :]
    states += head * chunks * dk * dv
    n_states += head * chunks * dk + keys
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    state, n_state = tl.zeros((ROWS, DV), dtype=tl.float32), tl.zeros((ROWS,), dtype=tl.float32)
    if GIVEN:
        state = tl.load(given + head * dk * dv + own, mask=inside, other=0.0)
    for place in tl.range(0, chunks, num_stages=STAGES):
        chunk = chunks - 1 - place if BACK else place
        end = (chunk + 1) * CHUNK - 1
        at = states + chunk * dk * dv + own
        change = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        decay = tl.load(g + end * dk + keys, mask=keys < dk, other=0.0)[:, None] if CHANNEL else tl.load(g + end)
        tl.store(at, state, mask=inside)
        state = tl.exp(decay) * state + change
        if NORMED:
            n_change = tl.load(n_states + chunk * dk, mask=keys < dk, other=0.0)
            tl.store(n_states + chunk * dk, n_state, mask=keys < dk)
            n_state = tl.exp(decay) * n_state + n_change
    if LEFT:
        tl.store(left + head * dk * dv + own, state, mask=inside)


@triton.jit(do_not_specialize=LENGTHS)
def carried(k, v, b, log_decay, g, states, given, left, time, chunks, dk, dv: tl.constexpr, group, CHUNK: tl.constexpr,
            DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, STRONG: tl.constexpr, GIVEN: tl.constexpr,
            LEFT: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Do what `written` and `passed` do, for BV value channels of a head."""
    head, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * BV
    state = tl.zeros((DK, BV), dtype=tl.float32)
    if GIVEN:
        state = columns(given + head * dk * dv, 0, dk, dv, v0, DK, BV)
    for chunk in range(chunks):
        at = chunk * CHUNK
        put_columns(states + (head * chunks + chunk) * dk * dv, state, 0, dk, dv, v0, DK, BV)
        until, end = sums_of(log_decay, g, head, at, time, chunks, dk, v0 == 0, CHUNK, DK, CHANNEL)
        keys = strong_keys(k + head // group * time * dk, b, head, at, time, dk, CHUNK, DK, STRONG)
        keys *= tl.exp(tl.minimum(until, 0.0))
        change = dot(tl.trans(keys), stored(v + head * time * dv, at, time, dv, v0, CHUNK, BV), DOT)
        state = tl.exp(end) * state + change
    if LEFT:
        put_columns(left + head * dk * dv, state, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def carried_back(q, g, d_o, pulls, given, left, time, chunks, dk, dv: tl.constexpr, group, CHUNK: tl.constexpr,
                 DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, GIVEN: tl.constexpr, LEFT: tl.constexpr,
                 DOT: tl.constexpr):  # fmt: skip
    """Do what `pulled` and `passed` do, for BV value channels of a head."""
    head, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * BV
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    gradient = tl.zeros((DK, BV), dtype=tl.float32)
    if GIVEN:
        gradient = columns(given + head * dk * dv, 0, dk, dv, v0, DK, BV)
    for back in range(chunks):
        chunk = chunks - 1 - back
        at = chunk * CHUNK
        put_columns(pulls + (head * chunks + chunk) * dk * dv, gradient, 0, dk, dv, v0, DK, BV)
        end = tl.trans(sum_at(g, at + CHUNK - 1, dk, DK, CHANNEL))
        since = tile(q + head // group * time * dk, at, time, dk, CHUNK, DK)
        since *= tl.exp(sums(g, at, dk, CHUNK, DK, CHANNEL))
        pull = dot(tl.trans(once(since, dk)), stored(d_o + head * time * dv, at, time, dv, v0, CHUNK, BV), DOT)
        gradient = tl.exp(end) * gradient + pull
    if LEFT:
        put_columns(left + head * dk * dv, gradient, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def outputs(q, k, v, g, states, o, time, chunks, dk, dv: tl.constexpr, group, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
            DK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute o, with a decay per channel."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, keys_at, values_at = chunk * CHUNK, head // group * time * dk, head * time * dv
    g += head * chunks * CHUNK * dk
    if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
        return
    # What the first products take is loaded before them, so that a program waits for memory once.
    queries, keys = tile(q + keys_at, at, time, dk, CHUNK, DK), tile(k + keys_at, at, time, dk, CHUNK, DK)
    states += (head * chunks + chunk) * dk * dv
    values = stored(v + values_at, at, time, dv, 0, CHUNK, BV)
    state = stored(states, 0, dk, dv, 0, DK, BV)
    met = tl.where(below(CHUNK, False), scores(queries, keys, g, at, dk, CHUNK, LEVELS, DK, True, DOT), 0.0)
    queries *= tl.exp(sums(g, at, dk, CHUNK, DK, True))
    for v0 in tl.static_range(0, dv, BV):
        if v0 > 0:
            values = stored(v + values_at, at, time, dv, v0, CHUNK, BV)
            state = stored(states, 0, dk, dv, v0, DK, BV)
        found = dot(met, values, DOT) + dot(queries, state, DOT)
        put_columns(o + values_at, found, at, time, dv, v0, CHUNK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_values(q, k, g, d_states, d_o, d_v, time, chunks, dk, dv: tl.constexpr, group, CHUNK: tl.constexpr,
                        LEVELS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute dv, with a decay per channel."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, keys_at, values_at = chunk * CHUNK, head // group * time * dk, head * time * dv
    g += head * chunks * CHUNK * dk
    if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
        return
    d_states += (head * chunks + chunk) * dk * dv
    queries, keys = tile(q + keys_at, at, time, dk, CHUNK, DK), tile(k + keys_at, at, time, dk, CHUNK, DK)
    met = scores_across(queries, keys, g, at, dk, CHUNK, LEVELS, DK, True, DOT)
    met = tl.where(above(CHUNK, False), met, 0.0)
    keys *= tl.exp(sum_at(g, at + CHUNK - 1, dk, DK, True) - sums(g, at, dk, CHUNK, DK, True))
    for v0 in range(0, dv, BV):
        found = dot(met, stored(d_o + values_at, at, time, dv, v0, CHUNK, BV), DOT)
        found += dot(keys, stored(d_states, 0, dk, dv, v0, DK, BV), DOT)
        put_columns(d_v + values_at, found, at, time, dv, v0, CHUNK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_keys(q, k, v, g, states, d_states, d_o, d_q, d_k, d_log, time, chunks, dk, dv: tl.constexpr, group,
                      CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr,
                      DECAYS: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute dq and dk, with a decay per channel, for DK channels of a key: no program holds more, and each meets at
    one point where its own channels can. Heads that share keys have gradients of their own. DECAYS: also that of log a.
    G stands beside q and k alone, as q e^G and k e^-G, so its gradient is q dq - k dk, and that of the chunk's end what
    the state after it receives: a log decay gets the sum of those from its own token on."""
    head, chunk, first = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * DK
    at, shared_at, keys_at = chunk * CHUNK, head // group * time * dk + first, head * time * dk + first
    g += head * chunks * CHUNK * dk + first
    if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
        return
    v += head * time * dv
    d_o += head * time * dv
    states += ((head * chunks + chunk) * dk + first) * dv
    d_states += ((head * chunks + chunk) * dk + first) * dv
    weights = weights_of(d_o, v, at, time, dv, CHUNK, BV, False, DOT)
    # What is needed again later is loaded again, from a cache: all at once would need more registers than there are.
    keys = tile(k + shared_at, at, time, dk, CHUNK, DK)
    if LEVELS == 0:
        weights, alone = decayed(weights, g, at, dk, CHUNK, DK, True)
        read = against_state(d_o, states, at, time, dk, dv, CHUNK, DK, BV, DOT)
        found = left_of(weights, alone, keys, read, g, at, dk, CHUNK, DK, True, DOT)
    else:
        own = sums(g, at, dk, CHUNK, DK, True)
        found = merged_gradients(weights, keys, own, own, g, at, dk, CHUNK, LEVELS, DK, True, False, DOT)
        found += tl.exp(own) * against_state(d_o, states, at, time, dk, dv, CHUNK, DK, BV, DOT)
    put(d_q + keys_at, found, at, time, dk, CHUNK, DK)
    queries = tile(q + shared_at, at, time, dk, CHUNK, DK)
    gradient = queries * found
    kept = against_state(v, d_states, at, time, dk, dv, CHUNK, DK, BV, DOT)
    if LEVELS == 0:
        found, kept = right_of(weights, alone, queries, kept, g, at, dk, CHUNK, DK, True, DOT)
    else:
        kept *= tl.exp(sum_at(g, at + CHUNK - 1, dk, DK, True) - own)
        weights = weights_across(d_o, v, at, time, dv, CHUNK, BV, False, DOT)
        found = merged_gradients(weights, queries, own, own, g, at, dk, CHUNK, LEVELS, DK, False, False, DOT)
        found += kept
    put(d_k + keys_at, found, at, time, dk, CHUNK, DK)
    if DECAYS:
        keys = tile(k + shared_at, at, time, dk, CHUNK, DK)
        last = tl.exp(sum_at(g, at + CHUNK - 1, dk, DK, True)) * over_states(states, d_states, dk, dv, DK, BV)[None, :]
        last += tl.sum(keys * kept, axis=0)[None, :]
        total = tl.cumsum(gradient - keys * found, axis=0, reverse=True) + last
        put(d_log + keys_at, unless_gone(total, g, at, dk, CHUNK, DK, True), at, time, dk, CHUNK, DK)
