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
                     DK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute -B, as `solve` takes it, and C: zeros on the diagonal and above."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, keys_at, matrix = chunk * CHUNK, head * time * dk, (head * chunks + chunk) * CHUNK * CHUNK
    g += head * chunks * CHUNK * dk
    if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
        return
    readers, erased = tile(b + keys_at, at, time, dk, CHUNK, DK), tile(a + keys_at, at, time, dk, CHUNK, DK)
    since, own = sums_before(g, at, dk, CHUNK, DK), sums(g, at, dk, CHUNK, DK, True)
    found = -merged_scores(readers, erased, since, own, g, at, dk, CHUNK, LEVELS, DK, True, DOT)
    put(ba + matrix, found, 0, CHUNK, CHUNK, CHUNK, CHUNK)
    keys = tile(k + keys_at, at, time, dk, CHUNK, DK)
    found = merged_scores(readers, keys, since, own, g, at, dk, CHUNK, LEVELS, DK, True, DOT)
    put(bk + matrix, found, 0, CHUNK, CHUNK, CHUNK, CHUNK)


@triton.jit(do_not_specialize=LENGTHS)
def unwritten_general(b, v, g, bk, t, fresh, moved, time, chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr,
                      DK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute fresh = T C v and moved = T (b_i e^G_{i-1})."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, keys_at, matrix = chunk * CHUNK, head * time * dk, (head * chunks + chunk) * CHUNK * CHUNK
    solved = tile(t + matrix, 0, CHUNK, CHUNK, CHUNK, CHUNK)
    since = sums_before(g + head * chunks * CHUNK * dk, at, dk, CHUNK, DK)
    readers = tile(b + keys_at, at, time, dk, CHUNK, DK) * tl.exp(since)
    put(moved + keys_at, dot(solved, readers, DOT), at, time, dk, CHUNK, DK)
    through = dot(solved, tile(bk + matrix, 0, CHUNK, CHUNK, CHUNK, CHUNK), DOT)
    for v0 in tl.static_range(0, dv, BV):
        values = columns(v + head * time * dv, at, time, dv, v0, CHUNK, BV)
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
        stored = columns(fresh + values_at, at, time, dv, v0, CHUNK, BV)
        stored += dot(tile(moved + keys_at, at, time, dk, CHUNK, DK), state, DOT)
        put_columns(y + values_at, stored, at, time, dv, v0, CHUNK, BV)
        keys = tile(k + keys_at, at, time, dk, CHUNK, DK) * until
        erased = tile(a + keys_at, at, time, dk, CHUNK, DK) * until
        written = dot(tl.trans(keys), columns(v + values_at, at, time, dv, v0, CHUNK, BV), DOT)
        written += dot(tl.trans(erased), stored, DOT)
        state = tl.trans(tl.exp(end)) * state + written
    put_columns(states + chunks * dk * dv, state, 0, dk, dv, v0, DK, BV)
    put_columns(last + head * dk * dv, state, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def outputs_general(q, k, a, v, y, g, states, qk, qa, o, time, chunks, dk, dv: tl.constexpr, CHUNK: tl.constexpr,
                    LEVELS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute o; the scores of queries with k and with a are kept for the backward pass."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, keys_at, values_at = chunk * CHUNK, head * time * dk, head * time * dv
    matrix = (head * chunks + chunk) * CHUNK * CHUNK
    g += head * chunks * CHUNK * dk
    if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
        return
    queries, keys = tile(q + keys_at, at, time, dk, CHUNK, DK), tile(k + keys_at, at, time, dk, CHUNK, DK)
    own = sums(g, at, dk, CHUNK, DK, True)
    with_keys = merged_scores(queries, keys, own, own, g, at, dk, CHUNK, LEVELS, DK, False, DOT)
    put(qk + matrix, with_keys, 0, CHUNK, CHUNK, CHUNK, CHUNK)
    erased = tile(a + keys_at, at, time, dk, CHUNK, DK)
    with_erased = merged_scores(queries, erased, own, own, g, at, dk, CHUNK, LEVELS, DK, False, DOT)
    put(qa + matrix, with_erased, 0, CHUNK, CHUNK, CHUNK, CHUNK)
    queries *= tl.exp(own)
    for v0 in tl.static_range(0, dv, BV):
        state = columns(states + (head * (chunks + 1) + chunk) * dk * dv, 0, dk, dv, v0, DK, BV)
        found = dot(queries, state, DOT)
        found += dot(with_keys, columns(v + values_at, at, time, dv, v0, CHUNK, BV), DOT)
        found += dot(with_erased, columns(y + values_at, at, time, dv, v0, CHUNK, BV), DOT)
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
        pull = columns(d_o + values_at, at, time, dv, v0, CHUNK, BV)
        erased = tile(a + keys_at, at, time, dk, CHUNK, DK) * tl.exp(end - own)
        read = tile(qa + chunk * CHUNK * CHUNK, 0, CHUNK, CHUNK, CHUNK, CHUNK)
        stored = dot(tl.trans(read), pull, DOT) + dot(erased, gradient, DOT)
        put_columns(dy + values_at, stored, at, time, dv, v0, CHUNK, BV)
        queries = tile(q + keys_at, at, time, dk, CHUNK, DK) * tl.exp(own)
        before = dot(tl.trans(queries), pull, DOT)
        before += dot(tl.trans(tile(moved + keys_at, at, time, dk, CHUNK, DK)), stored, DOT)
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
    back = tl.trans(once(tile(t + matrix, 0, CHUNK, CHUNK, CHUNK, CHUNK), dk))
    through = dot(back, columns(dy + values_at, at, time, dv, v0, CHUNK, BV), DOT)
    put_columns(dz + values_at, through, at, time, dv, v0, CHUNK, BV)
    found = dot(tl.trans(once(tile(bk + matrix, 0, CHUNK, CHUNK, CHUNK, CHUNK), dk)), through, DOT)
    pull = columns(d_o + values_at, at, time, dv, v0, CHUNK, BV)
    found += dot(tl.trans(once(tile(qk + matrix, 0, CHUNK, CHUNK, CHUNK, CHUNK), dk)), pull, DOT)
    end = sum_at(g, at + CHUNK - 1, dk, DK, True)
    keys = tile(k + head * time * dk, at, time, dk, CHUNK, DK) * tl.exp(end - sums(g, at, dk, CHUNK, DK, True))
    after = columns(d_states + (head * chunks + chunk) * dk * dv, 0, dk, dv, v0, DK, BV)
    found += dot(keys, after, DOT)
    put_columns(d_v + values_at, found, at, time, dv, v0, CHUNK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_queries_general(q, k, a, v, y, g, states, d_states, d_o, dq, d_k, d_a, time, chunks, dk,
                                 dv: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr,
                                 BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute dq, and the parts of the gradients of k and a through outputs and through the state after the chunk."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, keys_at, values_at = chunk * CHUNK, head * time * dk, head * time * dv
    before = (head * (chunks + 1) + chunk) * dk * dv
    g += head * chunks * CHUNK * dk
    if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
        return
    after = d_states + (head * chunks + chunk) * dk * dv
    gradients_of_reading(d_o + values_at, v + values_at, y + values_at, q + keys_at, k + keys_at, a + keys_at, g,
                         states + before, after, dq + keys_at, d_k + keys_at, d_a + keys_at, at, time, dk, dv, CHUNK,
                         LEVELS, DK, BV, False, DOT)  # fmt: skip


@triton.jit
def gradients_of_reading(pull, v, y, x, k, a, g, states, after, d_x, d_k, d_a, at, time, dk, dv, CHUNK: tl.constexpr,
                         LEVELS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, BEFORE: tl.constexpr,
                         DOT: tl.constexpr):  # fmt: skip
    """Compute the gradients of x, which reads the state, and of k and a through that. For queries those through the
    state after the chunk are added; BEFORE, as b reads, they are there, and added to."""
    if LEVELS == 0:
        end = sum_at(g, at + CHUNK - 1, dk, DK, True)
        late = once(tile(x, at, time, dk, CHUNK, DK) * tl.exp(read_at(g, at, dk, CHUNK, DK, BEFORE) - 0.5 * end), dk)
        total = tl.exp(0.5 * end) * against_state(pull, states, at, time, dk, dv, CHUNK, DK, BV, DOT)
        total += gradient_of_written(pull, v, k, late, g, after, d_k, at, time, dk, dv, CHUNK, DK, BV, BEFORE, DOT)
        total += gradient_of_written(pull, y, a, late, g, after, d_a, at, time, dk, dv, CHUNK, DK, BV, BEFORE, DOT)
        total *= tl.exp(read_at(g, at, dk, CHUNK, DK, BEFORE) - 0.5 * end)
    else:
        total = tl.exp(read_at(g, at, dk, CHUNK, DK, BEFORE))
        total *= against_state(pull, states, at, time, dk, dv, CHUNK, DK, BV, DOT)
        total += gradient_by_merges(pull, v, k, x, g, after, d_k, at, time, dk, dv, CHUNK, LEVELS, DK, BV, BEFORE, DOT)
        total += gradient_by_merges(pull, y, a, x, g, after, d_a, at, time, dk, dv, CHUNK, LEVELS, DK, BV, BEFORE, DOT)
    put(d_x, total, at, time, dk, CHUNK, DK)


@triton.jit
def read_at(g, at, dk, CHUNK: tl.constexpr, DK: tl.constexpr, BEFORE: tl.constexpr):
    """Return G of what each row reads. It is loaded where it is needed: no register keeps it."""
    return sums_before(g, at, dk, CHUNK, DK) if BEFORE else sums(g, at, dk, CHUNK, DK, True)


@triton.jit
def gradient_of_written(pull, v, k, late, g, after, d_k, at, time, dk, dv, CHUNK: tl.constexpr, DK: tl.constexpr,
                        BV: tl.constexpr, BEFORE: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Write the gradient of what v is written under, and return the share of the readers' gradient, where all rows meet
    at one point."""
    end = sum_at(g, at + CHUNK - 1, dk, DK, True)
    weights = weights_of(pull, v, at, time, dv, CHUNK, BV, BEFORE, DOT)
    found = dot(tl.trans(weights), late, DOT)
    if not BEFORE:
        found += tl.exp(0.5 * end) * against_state(v, after, at, time, dk, dv, CHUNK, DK, BV, DOT)
    back = tl.exp(0.5 * end - sums(g, at, dk, CHUNK, DK, True))
    found *= back
    if BEFORE:
        found += tile(d_k, at, time, dk, CHUNK, DK)
    put(d_k, found, at, time, dk, CHUNK, DK)
    return dot(weights, once(tile(k, at, time, dk, CHUNK, DK) * back, dk), DOT)


@triton.jit
def gradient_by_merges(pull, v, k, x, g, after, d_k, at, time, dk, dv, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
                       DK: tl.constexpr, BV: tl.constexpr, BEFORE: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Write and return what `gradient_of_written` does, where blocks are merged."""
    since, own = read_at(g, at, dk, CHUNK, DK, BEFORE), sums(g, at, dk, CHUNK, DK, True)
    across, readers = weights_across(pull, v, at, time, dv, CHUNK, BV, BEFORE, DOT), tile(x, at, time, dk, CHUNK, DK)
    found = merged_gradients(across, readers, since, own, g, at, dk, CHUNK, LEVELS, DK, False, BEFORE, DOT)
    if BEFORE:
        found += tile(d_k, at, time, dk, CHUNK, DK)
    else:
        until = tl.exp(sum_at(g, at + CHUNK - 1, dk, DK, True) - own)
        found += until * against_state(v, after, at, time, dk, dv, CHUNK, DK, BV, DOT)
    put(d_k, found, at, time, dk, CHUNK, DK)
    weights, keys = weights_of(pull, v, at, time, dv, CHUNK, BV, BEFORE, DOT), tile(k, at, time, dk, CHUNK, DK)
    return merged_gradients(weights, keys, own, since, g, at, dk, CHUNK, LEVELS, DK, True, BEFORE, DOT)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_readers_general(b, k, a, v, y, g, states, dz, d_b, d_k, d_a, time, chunks, dk, dv: tl.constexpr,
                                 CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr,
                                 DOT: tl.constexpr):  # fmt: skip
    """Compute db, and add what k and a get through y to their gradients."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, keys_at, values_at = chunk * CHUNK, head * time * dk, head * time * dv
    g += head * chunks * CHUNK * dk
    if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
        return
    before = states + (head * (chunks + 1) + chunk) * dk * dv
    gradients_of_reading(dz + values_at, v + values_at, y + values_at, b + keys_at, k + keys_at, a + keys_at, g, before,
                         before, d_b + keys_at, d_k + keys_at, d_a + keys_at, at, time, dk, dv, CHUNK, LEVELS, DK, BV,
                         True, DOT)  # fmt: skip


@triton.jit(do_not_specialize=LENGTHS)
def gradients_of_decay_general(q, k, a, b, g, dq, d_k, d_a, d_b, states, d_states, d_log, time, chunks, dk,
                               dv: tl.constexpr, CHUNK: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr):  # fmt: skip
    """Compute the gradient of log w. G stands beside q, k and a as q e^G, k e^-G and a e^-G, and beside the next
    token's b as b e^G: its gradient is q dq - k dk - a da, and b db of the token after. A log decay gets the sum of
    those from its own token on, and what the state after the chunk receives."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, keys_at = chunk * CHUNK, head * time * dk
    gradient = tile(q + keys_at, at, time, dk, CHUNK, DK) * tile(dq + keys_at, at, time, dk, CHUNK, DK)
    gradient -= tile(k + keys_at, at, time, dk, CHUNK, DK) * tile(d_k + keys_at, at, time, dk, CHUNK, DK)
    gradient -= tile(a + keys_at, at, time, dk, CHUNK, DK) * tile(d_a + keys_at, at, time, dk, CHUNK, DK)
    reading = tile(b + keys_at, at, time, dk, CHUNK, DK) * tile(d_b + keys_at, at, time, dk, CHUNK, DK)
    after = (head * (chunks + 1) + chunk + 1) * dk * dv
    end = over_states(states + after, d_states + (head * chunks + chunk) * dk * dv, dk, dv, DK, BV)
    found = tl.cumsum(gradient + reading, axis=0, reverse=True) - reading + end[None, :]
    found = unless_gone(found, g + head * chunks * CHUNK * dk, at, dk, CHUNK, DK, True)
    put(d_log + keys_at, found, at, time, dk, CHUNK, DK)
