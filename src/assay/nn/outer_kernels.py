"""Triton kernels compute the outer recurrence, forward and backward; nn/outer.py drives them. A program has one chunk.

Inside a chunk, with G and E as in chunk_blocks.py and S the state before it:

    written    W = sum_j (k_j e^(G_end - G_j)) v_j^T, and G itself
    passed     S <- e^G_end S + W, from chunk to chunk: element by element, so that no product waits for another
    outputs    o_i = (q_i e^G_i) S + sum_{j<=i} ((q_i E_ij) . k_j) v_j

Backward, `pulled` is what `written` is forward, `passed` runs from the last chunk to the first, and `gradients` makes
all gradients of a chunk at once. With many sequences one program runs all chunks of a head, and writes each state once:
`carried` does what `written` and `passed` do, `carried_back` what `pulled` and `passed`.

STRONG: k_j stands for b_j k_j, with a strength b per head and token. SKIP adds D v_i to o_i, D per head: it is a number
on the diagonal of the scores. Keys may be those of `group` heads.

NORMED, with a decay per head: a vector N <- e^G_end N + sum_j k_j e^(G_end - G_j) goes beside S, in float32, for
normed_kernels.py.
"""

import triton
import triton.language as tl

from assay.nn.chunk_blocks import (
    above,
    against_state,
    below,
    columns,
    decayed,
    diagonal,
    dot,
    elsewhere,
    floored,
    halves,
    in_block,
    left_of,
    on_diagonal,
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
    to_seam,
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
    """Compute G of a chunk, and what the chunk writes into the state after it."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK
    until, _ = sums_of(log_decay, g, head, at, time, chunks, dk, True, CHUNK, DK, CHANNEL)
    keys = strong_keys(k + head // group * time * dk, b, head, at, time, dk, CHUNK, DK, STRONG)
    keys *= tl.exp(tl.minimum(until, 0.0))
    if NORMED:
        put_vector(n_writes, tl.sum(keys, axis=0), head * chunks + chunk, dk, DK)
    for v0 in tl.static_range(0, dv, BV):
        values = stored(v + head * time * dv, at, time, dv, v0, CHUNK, BV)
        found = dot(tl.trans(keys), values, DOT)
        put_columns(writes + (head * chunks + chunk) * dk * dv, found, 0, dk, dv, v0, DK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def pulled(q, g, d_o, d_n, pulls, n_pulls, time, chunks, dk, dv: tl.constexpr, group, CHUNK: tl.constexpr,
           DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, NORMED: tl.constexpr,
           DOT: tl.constexpr):  # fmt: skip
    """Compute what a chunk's outputs add to the gradient of the state before it."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK
    own = sums(g + head * chunks * CHUNK * (dk if CHANNEL else 1), at, dk, CHUNK, DK, CHANNEL)
    since = tile(q + head // group * time * dk, at, time, dk, CHUNK, DK) * tl.exp(own)
    if NORMED:
        pull = tl.sum(since * per_token(d_n, head, at, time, CHUNK), axis=0)
        put_vector(n_pulls, pull, head * chunks + chunk, dk, DK)
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
def outputs(q, k, v, b, skip, g, states, o, time, chunks, dk, dv: tl.constexpr, group, CHUNK: tl.constexpr,
            LEVELS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, STRONG: tl.constexpr,
            SKIP: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, keys_at, values_at = chunk * CHUNK, head // group * time * dk, head * time * dv
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    if CHANNEL:  # noqa: SIM102 - the inner one is compiled only then
        if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
            return
    # What the first products take is loaded before them, so that a program waits for memory once.
    queries, keys = tile(q + keys_at, at, time, dk, CHUNK, DK), tile(k + keys_at, at, time, dk, CHUNK, DK)
    states += (head * chunks + chunk) * dk * dv
    values = stored(v + values_at, at, time, dv, 0, CHUNK, BV)
    state = stored(states, 0, dk, dv, 0, DK, BV)
    met = tl.where(below(CHUNK, False), scores(queries, keys, g, at, dk, CHUNK, LEVELS, DK, CHANNEL, DOT), 0.0)
    if STRONG:
        met *= tl.trans(per_token(b, head, at, time, CHUNK))
    if SKIP:
        met += tl.where(diagonal(CHUNK), tl.load(skip + head), 0.0)
    queries *= tl.exp(sums(g, at, dk, CHUNK, DK, CHANNEL))
    for v0 in tl.static_range(0, dv, BV):
        if v0 > 0:
            values = stored(v + values_at, at, time, dv, v0, CHUNK, BV)
            state = stored(states, 0, dk, dv, v0, DK, BV)
        found = dot(met, values, DOT) + dot(queries, state, DOT)
        put_columns(o + values_at, found, at, time, dv, v0, CHUNK, BV)


@triton.jit(do_not_specialize=LENGTHS)
def gradients(q, k, v, b, skip, g, states, d_states, d_o, d_q, d_k, d_v, d_log, d_b, d_skip, time, chunks, dk,
              dv: tl.constexpr, group, CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr,
              CHANNEL: tl.constexpr, STRONG: tl.constexpr, SKIP: tl.constexpr, DECAYS: tl.constexpr,
              DOT: tl.constexpr):  # fmt: skip
    """Compute all gradients of a chunk. Those of q and k are each head's own, also where heads share them. DECAYS: that
    of log a. G stands beside q and k alone, as q e^G and k e^-G, so its gradient is q dq - k dk, and that of the
    chunk's end what the state after it receives: a log decay gets the sum of those from its own token on."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, rows = chunk * CHUNK, chunk * CHUNK + tl.arange(0, CHUNK)
    g += head * chunks * CHUNK * (dk if CHANNEL else 1)
    if CHANNEL:  # noqa: SIM102 - the inner one is compiled only then
        if elsewhere(g, at, dk, CHUNK, LEVELS, DK):
            return
    q += head // group * time * dk
    k += head // group * time * dk
    v += head * time * dv
    d_o += head * time * dv
    d_v += head * time * dv
    d_q += head * time * dk
    states += (head * chunks + chunk) * dk * dv
    d_states += (head * chunks + chunk) * dk * dv
    d_skip += head * chunks + chunk
    if LEVELS == 0:
        gradients_of_values(q, k, b, skip, g, d_states, d_o, d_v, head, at, time, dk, dv, CHUNK, DK, BV, CHANNEL,
                            STRONG, SKIP, DOT)  # fmt: skip
        gradient, found, written = gradients_of_keys(q, k, v, b, g, states, d_states, d_o, d_q, d_skip, head, at, time,
                                                     dk, dv, CHUNK, DK, BV, CHANNEL, STRONG, SKIP, DOT)  # fmt: skip
    else:
        gradient, found, written = gradients_by_merges(q, k, v, b, skip, g, states, d_states, d_o, d_q, d_v, d_skip,
                                                       head, at, time, dk, dv, CHUNK, LEVELS, DK, BV, STRONG, SKIP,
                                                       DOT)  # fmt: skip
    pairs = tile(k, at, time, dk, CHUNK, DK) * found
    if STRONG:
        strength = per_token(b, head, at, time, CHUNK)
        tl.store(d_b + head * time + rows, tl.sum(pairs, axis=1), mask=rows < time)
        pairs *= strength
        found *= strength
    put(d_k + head * time * dk, found, at, time, dk, CHUNK, DK)
    if DECAYS:
        kept = over_states(states, d_states, dk, dv, DK, BV)
        last = tl.exp(sum_at(g, at + CHUNK - 1, dk, DK, CHANNEL)) * kept[None, :]
        if CHANNEL:
            last += tl.sum(written, axis=0)[None, :]
            total = tl.cumsum(gradient - pairs, axis=0, reverse=True) + last
            total = unless_gone(total, g, at, dk, CHUNK, DK, True)
            put(d_log + head * time * dk, total, at, time, dk, CHUNK, DK)
        else:
            total = tl.cumsum(gradient - tl.sum(pairs, axis=1), axis=0, reverse=True) + tl.sum(last) + tl.sum(written)
            total = unless_gone(total, g, at, dk, CHUNK, DK, False)
            tl.store(d_log + head * time + rows, total, mask=rows < time)


@triton.jit
def gradients_of_values(q, k, b, skip, g, d_states, d_o, d_v, head, at, time, dk, dv, CHUNK: tl.constexpr,
                        DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, STRONG: tl.constexpr,
                        SKIP: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Write dv, where rows meet at one point. Those of queries and keys come after, with tiles loaded again, from a
    cache: all at once would need more registers than there are."""
    queries, keys = tile(q, at, time, dk, CHUNK, DK), tile(k, at, time, dk, CHUNK, DK)
    pull, after = stored(d_o, at, time, dv, 0, CHUNK, BV), stored(d_states, 0, dk, dv, 0, DK, BV)
    met = tl.where(above(CHUNK, False), scores_across(queries, keys, g, at, dk, CHUNK, 0, DK, CHANNEL, DOT), 0.0)
    until = tl.exp(sum_at(g, at + CHUNK - 1, dk, DK, CHANNEL) - sums(g, at, dk, CHUNK, DK, CHANNEL))
    if STRONG:
        strength = per_token(b, head, at, time, CHUNK)
        met *= strength
        until *= strength
    if SKIP:
        met += tl.where(diagonal(CHUNK), tl.load(skip + head), 0.0)
    put_gradients_of_values(met, keys * until, pull, after, d_states, d_o, d_v, at, time, dk, dv, CHUNK, DK, BV, DOT)


@triton.jit
def put_gradients_of_values(met, keys, pull, after, d_states, d_o, d_v, at, time, dk, dv, CHUNK: tl.constexpr,
                            DK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Write dv, block by block. The first block's gradients of outputs and of the state after the chunk are given."""
    for v0 in tl.static_range(0, dv, BV):
        if v0 > 0:
            pull, after = stored(d_o, at, time, dv, v0, CHUNK, BV), stored(d_states, 0, dk, dv, v0, DK, BV)
        found = dot(met, pull, DOT) + dot(keys, after, DOT)
        put_columns(d_v, found, at, time, dv, v0, CHUNK, BV)


@triton.jit
def gradients_of_keys(q, k, v, b, g, states, d_states, d_o, d_q, d_skip, head, at, time, dk, dv, CHUNK: tl.constexpr,
                      DK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr, STRONG: tl.constexpr,
                      SKIP: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Write dq, where rows meet at one point, and return q dq, the gradient of strong keys, and those keys times the
    share of it that the state after the chunk has. With a decay per head q dq and the last are summed over a key's
    channels, which takes fewer registers."""
    weights = weights_of(d_o, v, at, time, dv, CHUNK, BV, False, DOT)
    if SKIP:
        tl.store(d_skip, tl.sum(tl.where(diagonal(CHUNK), weights, 0.0)))
    # Keys have their strengths here, not the weights: those are rounded alike in dq and dk, and their difference is
    # the gradient of the decay.
    queries, keys = tile(q, at, time, dk, CHUNK, DK), strong_keys(k, b, head, at, time, dk, CHUNK, DK, STRONG)
    if STRONG:
        keys = once(keys, dk)
    weights, alone = decayed(weights, g, at, dk, CHUNK, DK, CHANNEL)
    read = against_state(d_o, states, at, time, dk, dv, CHUNK, DK, BV, DOT)
    found = left_of(weights, alone, keys, read, g, at, dk, CHUNK, DK, CHANNEL, DOT)
    put(d_q, found, at, time, dk, CHUNK, DK)
    gradient = queries * found
    if not CHANNEL:
        gradient = tl.sum(gradient, axis=1)
    kept = against_state(v, d_states, at, time, dk, dv, CHUNK, DK, BV, DOT)
    found, by_state = right_of(weights, alone, queries, kept, g, at, dk, CHUNK, DK, CHANNEL, DOT)
    written = strong_keys(k, b, head, at, time, dk, CHUNK, DK, STRONG) * by_state
    if not CHANNEL:
        written = tl.sum(written, axis=1)
    return gradient, found, written


@triton.jit
def gradients_by_merges(q, k, v, b, skip, g, states, d_states, d_o, d_q, d_v, d_skip, head, at, time, dk, dv,
                        CHUNK: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr,
                        STRONG: tl.constexpr, SKIP: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Write dq and dv, where blocks are merged, and return what `gradients_of_keys` does. The decays to a seam are made
    once for the scores, for dq and for dk."""
    weights = weights_of(d_o, v, at, time, dv, CHUNK, BV, False, DOT)
    across = weights_across(d_o, v, at, time, dv, CHUNK, BV, False, DOT)
    queries, own = tile(q, at, time, dk, CHUNK, DK), sums(g, at, dk, CHUNK, DK, True)
    keys = strong_keys(k, b, head, at, time, dk, CHUNK, DK, STRONG)
    met = tl.where(diagonal(CHUNK), tl.sum(queries * keys, axis=1)[:, None], 0.0)
    alone = on_diagonal(weights, CHUNK)
    of_queries, of_keys = alone * keys, alone * queries
    for level in range(LEVELS):
        seam = to_seam(g, own, at, dk, level, CHUNK, DK)
        late, early = halves(queries * seam, level, True, CHUNK), halves(keys * seam, level, False, CHUNK)
        met += in_block(dot(early, tl.trans(late), DOT), level, CHUNK)
        to_late = seam * dot(in_block(weights, level, CHUNK), early, DOT)
        to_early = seam * dot(in_block(across, level, CHUNK), late, DOT)
        of_queries += halves(to_late, level, True, CHUNK)
        of_keys += halves(to_early, level, False, CHUNK)
    until = tl.exp(sum_at(g, at + CHUNK - 1, dk, DK, True) - own)
    if SKIP:
        tl.store(d_skip, tl.sum(alone))
        met += tl.where(diagonal(CHUNK), tl.load(skip + head), 0.0)
    pull, after = stored(d_o, at, time, dv, 0, CHUNK, BV), stored(d_states, 0, dk, dv, 0, DK, BV)
    put_gradients_of_values(met, keys * until, pull, after, d_states, d_o, d_v, at, time, dk, dv, CHUNK, DK, BV, DOT)
    of_queries += tl.exp(own) * against_state(d_o, states, at, time, dk, dv, CHUNK, DK, BV, DOT)
    put(d_q, of_queries, at, time, dk, CHUNK, DK)
    by_state = until * against_state(v, d_states, at, time, dk, dv, CHUNK, DK, BV, DOT)
    return queries * of_queries, of_keys + by_state, keys * by_state
