"""Triton kernels compute the general recurrence, forward and backward; nn/general.py drives them. A program has one
chunk.

With y_t = S_{t-1}^T b_t each token makes two writes, k_t v_t^T and a_t y_t^T. Inside a chunk, with G and E as in
chunk_blocks.py, S the state before it, and B_ij = (b_i E_{i-1,j}) . a_j, C_ij = (b_i E_{i-1,j}) . k_j for j < i:

    y        = T C v + moved S;   T = (I - B)^-1;   moved = T (b_i e^G_{i-1})
    outputs    o_i = (q_i e^G_i) S + sum_{j<=i} ((q_i E_ij) . k_j) v_j + ((q_i E_ij) . a_j) y_j
    carry      S <- e^G_end S + sum_j (k_j e^(G_end - G_j)) v_j^T + (a_j e^(G_end - G_j)) y_j^T

Only `carry_general` and `carry_back_general` go from chunk to chunk. Backward, dz = T^T dy is the gradient of
(I - B) y.
"""

import triton
import triton.language as tl

from assay.nn.chunk_blocks import (
    against_state,
    columns,
    dot,
    elsewhere,
    merged_gradients,
    merged_scores,
    once,
    over_states,
    put,
    put_columns,
    stored,
    sum_at,
    sums,
    sums_before,
    tile,
    unless_gone,
    weights_across,
    weights_of,
)
from assay.nn.chunk_forward import LENGTHS


@triton.jit(do_not_specialize=LENGTHS)
def overlaps_general(a, b, k, g, ba, bk, time, chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
                     KEY: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute -B, as `solve` takes it, and C: zeros on the diagonal and above; from DK channels of a key at a time."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, keys_at, matrix = chunk * CHUNK, head * time * dk, (head * chunks + chunk) * CHUNK * CHUNK
    g += head * chunks * CHUNK * dk
    if elsewhere(g, at, dk, CHUNK, LEVELS, KEY):
        return
    with_erased, with_keys = tl.zeros((CHUNK, CHUNK), dtype=tl.float32), tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    for first in range(0, dk, DK):
        place, sums_at = keys_at + first, g + first
        readers, erased = tile(b + place, at, time, dk, CHUNK, DK), tile(a + place, at, time, dk, CHUNK, DK)
        keys = tile(k + place, at, time, dk, CHUNK, DK)
        since, own = sums_before(sums_at, at, dk, CHUNK, DK), sums(sums_at, at, dk, CHUNK, DK, True)
        with_erased -= merged_scores(readers, erased, since, own, sums_at, at, dk, CHUNK, LEVELS, DK, True, DOT)
        with_keys += merged_scores(readers, keys, since, own, sums_at, at, dk, CHUNK, LEVELS, DK, True, DOT)
    put(ba + matrix, with_erased, 0, CHUNK, CHUNK, CHUNK, CHUNK)
    put(bk + matrix, with_keys, 0, CHUNK, CHUNK, CHUNK, CHUNK)


@triton.jit(do_not_specialize=LENGTHS)
def unwritten_general(b, v, g, bk, t, fresh, moved, time, chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr,
                      DK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute fresh = T C v and moved = T (b_i e^G_{i-1})."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, keys_at, matrix = chunk * CHUNK, head * time * dk, (head * chunks + chunk) * CHUNK * CHUNK
    solved = stored(t + matrix, 0, CHUNK, CHUNK, 0, CHUNK, CHUNK)
    since = sums_before(g + head * chunks * CHUNK * dk, at, dk, CHUNK, DK)
    readers = tile(b + keys_at, at, time, dk, CHUNK, DK) * tl.exp(since)
    put(moved + keys_at, dot(solved, once(readers, dk), DOT), at, time, dk, CHUNK, DK)
    through = dot(solved, stored(bk + matrix, 0, CHUNK, CHUNK, 0, CHUNK, CHUNK), DOT)
    for v0 in tl.static_range(0, dv, BV):
        values = stored(v + head * time * dv, at, time, dv, v0, CHUNK, BV)
        found = dot(through, values, DOT)
        put_columns(fresh + head * time * dv, found, at, time, dv, v0, CHUNK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def carry_general(k, v, a, g, fresh, moved, y, states, given, last, time, chunks, dk, dv: tl.constexpr,
                  CHUNK: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, GIVEN: tl.constexpr,
                  DOT: tl.constexpr):  # fmt: skip
    """Go from chunk to chunk, and write y, states[n], the state before chunk n, and `last`, the one after all. GIVEN:
    it begins with that state, not with zeros."""
    head, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * BV
    g += head * chunks * CHUNK * dk
    states += head * (chunks + 1) * dk * dv
    keys_at, values_at = head * time * dk, head * time * dv
    state = tl.zeros((DK, BV), dtype=tl.float32)
    if GIVEN:
        state = columns(given + head * dk * dv, 0, dk, dv, v0, DK, BV)
    for chunk in range(chunks):
        put_columns(states + chunk * dk * dv, state, 0, dk, dv, v0, DK, BV)
        at = chunk * CHUNK
        end = sum_at(g, at + CHUNK - 1, dk, DK, True)
        until = tl.exp(end - sums(g, at, dk, CHUNK, DK, True))
        known = columns(fresh + values_at, at, time, dv, v0, CHUNK, BV)
        known += dot(stored(moved + keys_at, at, time, dk, 0, CHUNK, DK), state, DOT)
        put_columns(y + values_at, known, at, time, dv, v0, CHUNK, BV)
        keys = once(tile(k + keys_at, at, time, dk, CHUNK, DK) * until, dk)
        erased = once(tile(a + keys_at, at, time, dk, CHUNK, DK) * until, dk)
        written = dot(tl.trans(keys), stored(v + values_at, at, time, dv, v0, CHUNK, BV), DOT)
        written += dot(tl.trans(erased), known, DOT)
        state = tl.trans(tl.exp(end)) * state + written
    put_columns(states + chunks * dk * dv, state, 0, dk, dv, v0, DK, BV)
    put_columns(last + head * dk * dv, state, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def outputs_general(q, k, a, v, y, g, states, qk, qa, o, time, chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr,
                    LEVELS: tl.constexpr, KEY: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr,
                    DOT: tl.constexpr):  # fmt: skip
    """Compute o, from DK channels of a key at a time; the scores of queries with k and with a are kept for the backward
    pass."""
    head, chunk, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * BV
    at, keys_at, values_at = chunk * CHUNK, head * time * dk, head * time * dv
    matrix = (head * chunks + chunk) * CHUNK * CHUNK
    g += head * chunks * CHUNK * dk
    if elsewhere(g, at, dk, CHUNK, LEVELS, KEY):
        return
    states += (head * (chunks + 1) + chunk) * dk * dv
    with_erased, with_keys = tl.zeros((CHUNK, CHUNK), dtype=tl.float32), tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    found = tl.zeros((CHUNK, BV), dtype=tl.float32)
    for first in range(0, dk, DK):
        place, sums_at = keys_at + first, g + first
        queries, keys = tile(q + place, at, time, dk, CHUNK, DK), tile(k + place, at, time, dk, CHUNK, DK)
        erased, own = tile(a + place, at, time, dk, CHUNK, DK), sums(sums_at, at, dk, CHUNK, DK, True)
        state = stored(states + first * dv, 0, dk, dv, v0, DK, BV)
        with_keys += merged_scores(queries, keys, own, own, sums_at, at, dk, CHUNK, LEVELS, DK, False, DOT)
        with_erased += merged_scores(queries, erased, own, own, sums_at, at, dk, CHUNK, LEVELS, DK, False, DOT)
        found += dot(queries * tl.exp(own), state, DOT)
    put(qk + matrix, with_keys, 0, CHUNK, CHUNK, CHUNK, CHUNK)
    put(qa + matrix, with_erased, 0, CHUNK, CHUNK, CHUNK, CHUNK)
    found += dot(with_keys, stored(v + values_at, at, time, dv, v0, CHUNK, BV), DOT)
    found += dot(with_erased, stored(y + values_at, at, time, dv, v0, CHUNK, BV), DOT)
    put_columns(o + values_at, found, at, time, dv, v0, CHUNK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def carry_back_general(q, a, g, qa, moved, d_o, dy, d_states, given, first, time, chunks, dk, dv: tl.constexpr,
                       CHUNK: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, GIVEN: tl.constexpr,
                       DOT: tl.constexpr):  # fmt: skip
    """Go from the last chunk to the first, and write d_states[n], the gradient of the state after chunk n, and `first`,
    that of the state before all. GIVEN: it begins with that gradient, not with zeros."""
    head, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * BV
    g += head * chunks * CHUNK * dk
    d_states += head * chunks * dk * dv
    qa += head * chunks * CHUNK * CHUNK
    keys_at, values_at = head * time * dk, head * time * dv
    gradient = tl.zeros((DK, BV), dtype=tl.float32)
    if GIVEN:
        gradient = columns(given + head * dk * dv, 0, dk, dv, v0, DK, BV)
    for back in range(chunks):
        chunk = chunks - 1 - back
        put_columns(d_states + chunk * dk * dv, gradient, 0, dk, dv, v0, DK, BV)
        at = chunk * CHUNK
        end = sum_at(g, at + CHUNK - 1, dk, DK, True)
        own = sums(g, at, dk, CHUNK, DK, True)
        pull = stored(d_o + values_at, at, time, dv, v0, CHUNK, BV)
        erased = once(tile(a + keys_at, at, time, dk, CHUNK, DK) * tl.exp(end - own), dk)
        read = once(stored(qa + chunk * CHUNK * CHUNK, 0, CHUNK, CHUNK, 0, CHUNK, CHUNK), dk)
        known = dot(tl.trans(read), pull, DOT) + dot(erased, gradient, DOT)
        put_columns(dy + values_at, known, at, time, dv, v0, CHUNK, BV)
        queries = once(tile(q + keys_at, at, time, dk, CHUNK, DK) * tl.exp(own), dk)
        before = dot(tl.trans(queries), pull, DOT)
        readers = once(stored(moved + keys_at, at, time, dk, 0, CHUNK, DK), dk)
        before += dot(tl.trans(readers), known, DOT)
        gradient = tl.trans(tl.exp(end)) * gradient + before
    put_columns(first + head * dk * dv, gradient, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_values_general(k, g, t, bk, qk, d_o, dy, d_states, dz, d_v, time, chunks, dk, dv: tl.constexpr,
                                CHUNK: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr,
                                DOT: tl.constexpr):  # fmt: skip
    """Compute dz = T^T dy, and dv through outputs, through y, and through the state after the chunk."""
    head, chunk, v0 = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * BV
    at, values_at, matrix = chunk * CHUNK, head * time * dv, (head * chunks + chunk) * CHUNK * CHUNK
    g += head * chunks * CHUNK * dk
    back = tl.trans(once(stored(t + matrix, 0, CHUNK, CHUNK, 0, CHUNK, CHUNK), dk))
    through = dot(back, stored(dy + values_at, at, time, dv, v0, CHUNK, BV), DOT)
    put_columns(dz + values_at, through, at, time, dv, v0, CHUNK, BV)
    found = dot(tl.trans(once(stored(bk + matrix, 0, CHUNK, CHUNK, 0, CHUNK, CHUNK), dk)), through, DOT)
    pull = stored(d_o + values_at, at, time, dv, v0, CHUNK, BV)
    found += dot(tl.trans(once(stored(qk + matrix, 0, CHUNK, CHUNK, 0, CHUNK, CHUNK), dk)), pull, DOT)
    end = sum_at(g, at + CHUNK - 1, dk, DK, True)
    keys = tile(k + head * time * dk, at, time, dk, CHUNK, DK) * tl.exp(end - sums(g, at, dk, CHUNK, DK, True))
    after = stored(d_states + (head * chunks + chunk) * dk * dv, 0, dk, dv, v0, DK, BV)
    found += dot(keys, after, DOT)
    put_columns(d_v + values_at, found, at, time, dv, v0, CHUNK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_keys_general(q, k, a, b, v, y, g, states, d_states, d_o, dz, d_q, d_k, d_a, d_b, d_log, time, chunks,
                              dk, dv: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr,
                              BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute all gradients per key channel, for DK channels of a key. G stands beside q, k and a as q e^G, k e^-G and
    a e^-G, and beside the next token's b as b e^G: its gradient is q dq - k dk - a da, and b db of the token after. A
    log decay gets the sum of those from its own token on, and what the state after the chunk receives."""
    head, chunk, first = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * DK
    at, keys_at, values_at = chunk * CHUNK, head * time * dk + first, head * time * dv
    g += head * chunks * CHUNK * dk + first
    if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
        return
    states += ((head * (chunks + 1) + chunk) * dk + first) * dv
    d_states += ((head * chunks + chunk) * dk + first) * dv
    q += keys_at
    b += keys_at
    v += values_at
    y += values_at
    d_o += values_at
    dz += values_at
    of_queries = against_state(d_o, states, at, time, dk, dv, CHUNK, DK, BV, DOT)
    of_readers = against_state(dz, states, at, time, dk, dv, CHUNK, DK, BV, DOT)
    of_queries *= read_from(g, at, dk, CHUNK, LEVELS, DK, False)
    of_readers *= read_from(g, at, dk, CHUNK, LEVELS, DK, True)
    read, more, gradient = gradients_of_written(v, k + keys_at, q, b, d_o, dz, d_states, g, d_k + keys_at, at, time, dk,
                                                dv, CHUNK, LEVELS, DK, BV, DOT)  # fmt: skip
    of_queries += read
    of_readers += more
    read, more, by_erased = gradients_of_written(y, a + keys_at, q, b, d_o, dz, d_states, g, d_a + keys_at, at, time,
                                                 dk, dv, CHUNK, LEVELS, DK, BV, DOT)  # fmt: skip
    of_queries += read
    of_readers += more
    if LEVELS == 0:
        of_queries *= since_middle(g, at, dk, CHUNK, DK, False)
        of_readers *= since_middle(g, at, dk, CHUNK, DK, True)
    put(d_q + keys_at, of_queries, at, time, dk, CHUNK, DK)
    put(d_b + keys_at, of_readers, at, time, dk, CHUNK, DK)
    reading = tile(b, at, time, dk, CHUNK, DK) * of_readers
    gradient = tile(q, at, time, dk, CHUNK, DK) * of_queries - gradient - by_erased
    end = over_states(states + dk * dv, d_states, dk, dv, DK, BV)
    found = tl.cumsum(gradient + reading, axis=0, reverse=True) - reading + end[None, :]
    put(d_log + keys_at, unless_gone(found, g, at, dk, CHUNK, DK, True), at, time, dk, CHUNK, DK)


@triton.jit
def read_at(g, at, dk, CHUNK: tl.constexpr, DK: tl.constexpr, BEFORE: tl.constexpr):
    """Return G of what each row reads. It is loaded where it is needed: no register keeps it."""
    return sums_before(g, at, dk, CHUNK, DK) if BEFORE else sums(g, at, dk, CHUNK, DK, True)


@triton.jit
def since_middle(g, at, dk, CHUNK: tl.constexpr, DK: tl.constexpr, BEFORE: tl.constexpr):
    """Return the decay from the point where all rows meet to where each row reads."""
    return tl.exp(read_at(g, at, dk, CHUNK, DK, BEFORE) - 0.5 * sum_at(g, at + CHUNK - 1, dk, DK, True))


@triton.jit
def read_from(g, at, dk, CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr, BEFORE: tl.constexpr):
    """Return the decay from the chunk's start to where rows meet, or, where blocks are merged, to where each reads."""
    place = read_at(g, at, dk, CHUNK, DK, BEFORE) if LEVELS else 0.5 * sum_at(g, at + CHUNK - 1, dk, DK, True)
    return tl.exp(place)


@triton.jit
def gradients_of_written(v, k, q, b, d_o, dz, d_states, g, d_k, at, time, dk, dv, CHUNK: tl.constexpr,
                         LEVELS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Write the gradient of k, which v is written under: through queries, through readers, whose pull is dz, and
    through the state after the chunk. Return the shares of the gradients of q and of b, where all rows meet at one
    point up to that, and k times its own."""
    kept = against_state(v, d_states, at, time, dk, dv, CHUNK, DK, BV, DOT)
    if LEVELS == 0:
        back = tl.exp(0.5 * sum_at(g, at + CHUNK - 1, dk, DK, True) - sums(g, at, dk, CHUNK, DK, True))
        kept *= tl.exp(0.5 * sum_at(g, at + CHUNK - 1, dk, DK, True))
        keys = once(tile(k, at, time, dk, CHUNK, DK) * back, dk)
        weights = weights_of(d_o, v, at, time, dv, CHUNK, BV, False, DOT)
        read = dot(weights, keys, DOT)
        late = once(tile(q, at, time, dk, CHUNK, DK) * since_middle(g, at, dk, CHUNK, DK, False), dk)
        kept += dot(tl.trans(weights), late, DOT)
        weights = weights_of(dz, v, at, time, dv, CHUNK, BV, True, DOT)
        more = dot(weights, keys, DOT)
        late = once(tile(b, at, time, dk, CHUNK, DK) * since_middle(g, at, dk, CHUNK, DK, True), dk)
        kept += dot(tl.trans(weights), late, DOT)
        kept *= tl.exp(0.5 * sum_at(g, at + CHUNK - 1, dk, DK, True) - sums(g, at, dk, CHUNK, DK, True))
    else:
        kept *= tl.exp(sum_at(g, at + CHUNK - 1, dk, DK, True) - sums(g, at, dk, CHUNK, DK, True))
        read, by_pairs = merged_pairs(d_o, v, q, k, g, at, time, dk, dv, CHUNK, LEVELS, DK, BV, False, DOT)
        kept += by_pairs
        more, by_pairs = merged_pairs(dz, v, b, k, g, at, time, dk, dv, CHUNK, LEVELS, DK, BV, True, DOT)
        kept += by_pairs
    put(d_k, kept, at, time, dk, CHUNK, DK)
    return read, more, tile(k, at, time, dk, CHUNK, DK) * kept


@triton.jit
def merged_pairs(pull, v, x, k, g, at, time, dk, dv, CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr,
                 BV: tl.constexpr, BEFORE: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Return the gradients of x, which reads, and of k through the pairs of a chunk, where blocks are merged."""
    since, own = read_at(g, at, dk, CHUNK, DK, BEFORE), sums(g, at, dk, CHUNK, DK, True)
    weights, keys = weights_of(pull, v, at, time, dv, CHUNK, BV, BEFORE, DOT), tile(k, at, time, dk, CHUNK, DK)
    of_readers = merged_gradients(weights, keys, own, since, g, at, dk, CHUNK, LEVELS, DK, True, BEFORE, DOT)
    weights, readers = weights_across(pull, v, at, time, dv, CHUNK, BV, BEFORE, DOT), tile(x, at, time, dk, CHUNK, DK)
    of_keys = merged_gradients(weights, readers, since, own, g, at, dk, CHUNK, LEVELS, DK, False, BEFORE, DOT)
    return of_readers, of_keys
