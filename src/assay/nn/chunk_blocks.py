# ruff: noqa: RET505 - a branch on a constant needs its else: the other one is not compiled
"""Blocks of rows are loaded, decayed and multiplied by these functions of the chunked recurrences' Triton kernels.

With G_i the sum of log a over a chunk's tokens up to i, rows i and j <= i of a chunk meet as E_ij = exp(G_i - G_j).
With a decay per channel E is no factor of a product of two matrices, unless rows meet at a moment between the two:
blocks are merged two by two, and every row of the late one meets every row of the early one at the seam s between
them, e^(G_i - G_s) e^(G_s - G_j), of which no exponent is positive. A chunk of 64 rows takes 6 such products, each of
all rows, of which the pairs that meet elsewhere are masked. Tensors are contiguous (sequences x heads, time, channels);
G has time padded to whole chunks.

A chunk in which no channel decays by more than e^-REACH needs one product: all its rows meet at half of the decay,
e^(G_i - G_end / 2) e^(G_end / 2 - G_j), of which neither factor leaves the range of float32. Which chunks these are
depends on the data, so a kernel with a decay per channel is launched twice, with LEVELS = 0 for them and with as many
LEVELS as there are merges for the others, and a program of the wrong launch ends at once (`elsewhere`).

G_end depends on the tokens after row i. Forward, half of it is therefore rounded to a power of two, which changes no
digit of a factor and cancels in the product: as long as the launch of a chunk is the same, later tokens change no bit
of what comes before them.
"""

import triton
import triton.language as tl

REACH = tl.constexpr(120.0)
"""Half of it is the largest exponent of a factor: e^60 = 1e26, which leaves keys and their sums room to e^88."""
FLOOR = tl.constexpr(-32.0)
"""A log decay below counts as this, so that a difference of two sums over a chunk keeps four digits."""
GONE = tl.constexpr(-16.0)
"""A log decay below leaves nothing of a state that a float32 could tell, and has no gradient."""
LOG2_E = tl.constexpr(1.4426950408889634)
WHOLE = tl.constexpr(12582912.0)
"""1.5 * 2^23: a small number added to it is rounded to an integer, which its lowest bits hold."""
WHOLE_BITS = tl.constexpr(0x4B400000)


@triton.jit
def dot(x, y, DOT: tl.constexpr):
    """Return x y in float32. DOT is how Triton multiplies float32, or "bf16": both are rounded to that first;
    "rounded" is the same for the interpreter, which multiplies no bf16. "fine" is TF32, which two operands in bf16 need
    not become: it holds all their digits."""
    if DOT == "bf16":
        return tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16))
    elif DOT == "fine":
        if x.dtype == tl.bfloat16 and y.dtype == tl.bfloat16:
            return tl.dot(x, y)
        else:
            return tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="tf32")
    elif DOT == "rounded":
        return tl.dot(x.to(tl.bfloat16).to(tl.float32), y.to(tl.bfloat16).to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision=DOT)


@triton.jit
def once(x, size):
    """Return x, for a product; `size` is any number above 0 that is known at run time alone. Triton moves what is made
    of loads alone to the layout of a product's operand right after each load, and computes it there: anew for every
    product, by every warp, and with a wait for memory before the next load where the operand is transposed. What
    depends on a condition is computed once, and goes through shared memory."""
    return tl.where(size > 0, x, 0.0)


@triton.jit
def tile(x, row, time, d, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows row.. of a (time, d) matrix in float32, zeros outside it."""
    rows, columns = row + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (rows < time)[:, None] & (columns < d)[None, :]
    return tl.load(x + rows[:, None] * d + columns[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def floored(log_decay):
    """Return log decays of at least FLOOR, and what is no number as that."""
    return tl.maximum(log_decay, FLOOR, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def square_across(x, ROWS: tl.constexpr):
    """Load the transpose of a (ROWS, ROWS) matrix in float32."""
    return tl.load(x + tl.arange(0, ROWS)[:, None] + tl.arange(0, ROWS)[None, :] * ROWS).to(tl.float32)


@triton.jit
def put(x, values, row, time, d, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows, columns = row + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (rows < time)[:, None] & (columns < d)[None, :]
    tl.store(x + rows[:, None] * d + columns[None, :], values, mask=inside)


@triton.jit
def columns(x, row, time, dv, v0, ROWS: tl.constexpr, BV: tl.constexpr):
    """Load rows of a (time, dv) matrix in float32, BV columns from v0 on."""
    return stored(x, row, time, dv, v0, ROWS, BV).to(tl.float32)


@triton.jit
def stored(x, row, time, dv, v0, ROWS: tl.constexpr, BV: tl.constexpr):
    """Load `columns` in the dtype of x, for what only products read: bf16 goes to them as it lies in memory."""
    rows, at = row + tl.arange(0, ROWS), v0 + tl.arange(0, BV)
    inside = (rows < time)[:, None] & (at < dv)[None, :]
    return tl.load(x + rows[:, None] * dv + at[None, :], mask=inside, other=0.0)


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
def sums_before(g, at, dk, ROWS: tl.constexpr, DK: tl.constexpr):
    """Load G of the rows before those of a chunk that begins at `at`: (ROWS, DK), 0 for the first."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, DK)
    inside = (rows > 0)[:, None] & (columns < dk)[None, :]
    return tl.load(g + (at + rows - 1)[:, None] * dk + columns[None, :], mask=inside, other=0.0)


@triton.jit
def unless_gone(gradient, g, at, dk, ROWS: tl.constexpr, DK: tl.constexpr, CHANNEL: tl.constexpr):
    """Return the gradients of log decays, (ROWS, DK) or (ROWS,), with zeros where everything is forgotten. They are
    sums over later tokens, in which pairs of tokens that are both later cancel but for their rounding. The gradient of
    a rate of decay is this one times the log decay, which has no bound: at -1000 it would be all rounding."""
    if CHANNEL:
        step = sums(g, at, dk, ROWS, DK, True) - sums_before(g, at, dk, ROWS, DK)
    else:
        rows = tl.arange(0, ROWS)
        step = tl.load(g + at + rows) - tl.load(g + at + rows - 1, mask=rows > 0, other=0.0)
    return tl.where(step < GONE, 0.0, gradient)


@triton.jit
def below(rows: tl.constexpr, strict: tl.constexpr):
    """Return where j <= i, or j < i."""
    i, j = tl.arange(0, rows)[:, None], tl.arange(0, rows)[None, :]
    return (i > j) if strict else (i >= j)


@triton.jit
def above(rows: tl.constexpr, strict: tl.constexpr):
    """Return where j >= i, or j > i: the transpose of `below`."""
    i, j = tl.arange(0, rows)[:, None], tl.arange(0, rows)[None, :]
    return (i < j) if strict else (i <= j)


@triton.jit
def diagonal(rows: tl.constexpr):
    return tl.arange(0, rows)[:, None] == tl.arange(0, rows)[None, :]


@triton.jit
def elsewhere(g, at, dk, ROWS: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr):
    """Return whether the chunk that begins at `at` is for the other launch."""
    far = tl.min(sum_at(g, at + ROWS - 1, dk, DK, True)) < -REACH
    return far if LEVELS == 0 else not far


@triton.jit
def from_middle(g, own, at, dk, ROWS: tl.constexpr, DK: tl.constexpr):
    """Return G_i - G_end / 2."""
    return own - 0.5 * sum_at(g, at + ROWS - 1, dk, DK, True)


@triton.jit
def half_of(end):
    """Return the integer next to the half of e^end's exponent of 2."""
    return (end * (0.5 * LOG2_E) + WHOLE).to(tl.int32, bitcast=True) - WHOLE_BITS


@triton.jit
def shifted_exp(x, power):
    """Return e^x 2^power, whose digits are those of e^x."""
    t = x * LOG2_E
    near = t + WHOLE
    exponent = near.to(tl.int32, bitcast=True) - WHOLE_BITS + power
    return tl.exp2(t - (near - WHOLE)) * ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def to_seam(g, own, at, dk, level, ROWS: tl.constexpr, DK: tl.constexpr):
    """Return e^-|G_i - G_s|, s the last row of the early half of i's block of 2^(level + 1) rows: `own` is G_i."""
    start = (tl.arange(0, ROWS) >> (level + 1)) << (level + 1)
    seam, columns = at + start + (1 << level) - 1, tl.arange(0, DK)
    middle = tl.load(g + seam[:, None] * dk + columns[None, :], mask=(columns < dk)[None, :], other=0.0)
    return tl.exp(-tl.abs(own - middle))


@triton.jit
def halves(x, level, LATE: tl.constexpr, ROWS: tl.constexpr):
    """Return x with zeros in the rows of early halves, or in those of late ones."""
    late = ((tl.arange(0, ROWS) >> level) & 1) == (1 if LATE else 0)
    return tl.where(late[:, None], x, 0.0)


@triton.jit
def in_block(x, level, ROWS: tl.constexpr):
    """Return x with zeros where row and column are not of one block of 2^(level + 1)."""
    i, j = tl.arange(0, ROWS) >> (level + 1), tl.arange(0, ROWS) >> (level + 1)
    return tl.where(i[:, None] == j[None, :], x, 0.0)


@triton.jit
def on_diagonal(x, ROWS: tl.constexpr):
    return tl.sum(tl.where(diagonal(ROWS), x, 0.0), axis=1)[:, None]


@triton.jit
def merged_scores(x, y, since, own, g, at, dk, ROWS: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr,
                  BEFORE: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Return sum_d x_id E_ijd y_jd for j <= i with a decay per channel, zeros elsewhere. BEFORE: x reads the state
    before its own token, and j < i. `since` is G of what x reads, `own` that of y."""
    if LEVELS == 0:
        half = half_of(sum_at(g, at + ROWS - 1, dk, DK, True))
        late, early = once(x * shifted_exp(since, -half), dk), once(y * shifted_exp(-own, half), dk)
        found = tl.where(below(ROWS, BEFORE), dot(late, tl.trans(early), DOT), 0.0)
    elif BEFORE:
        found = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    else:
        found = tl.where(diagonal(ROWS), tl.sum(x * y, axis=1)[:, None], 0.0)
    for level in range(LEVELS):
        late = halves(x * to_seam(g, since, at, dk, level, ROWS, DK), level, True, ROWS)
        early = halves(y * to_seam(g, own, at, dk, level, ROWS, DK), level, False, ROWS)
        found += in_block(dot(late, tl.trans(early), DOT), level, ROWS)
    return found


@triton.jit
def merged_scores_across(x, y, own, g, at, dk, ROWS: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr,
                         DOT: tl.constexpr):  # fmt: skip
    """Return the transpose of `merged_scores`, of what reads the state after its own token."""
    if LEVELS == 0:
        past = from_middle(g, own, at, dk, ROWS, DK)
        late, early = once(x * tl.exp(past), dk), once(y * tl.exp(-past), dk)
        found = tl.where(above(ROWS, False), dot(early, tl.trans(late), DOT), 0.0)
    else:
        found = tl.where(diagonal(ROWS), tl.sum(x * y, axis=1)[:, None], 0.0)
    for level in range(LEVELS):
        seam = to_seam(g, own, at, dk, level, ROWS, DK)
        late, early = halves(x * seam, level, True, ROWS), halves(y * seam, level, False, ROWS)
        found += in_block(dot(early, tl.trans(late), DOT), level, ROWS)
    return found


@triton.jit
def merged_gradients(weights, others, theirs, own, g, at, dk, ROWS: tl.constexpr, LEVELS: tl.constexpr,
                     DK: tl.constexpr, LATE: tl.constexpr, BEFORE: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Return sum_j weights_ij E_ij others_j: the gradient of `merged_scores` in x, whose rows are LATE and the others
    y, or that in y, by the transpose of the weights. Sums of decays are `own` and `theirs`. No weight stands on the
    other side of the diagonal, or BEFORE on it."""
    found = tl.zeros((ROWS, DK), dtype=tl.float32)
    if not BEFORE:
        found = on_diagonal(weights, ROWS) * others
    for level in range(LEVELS):
        half = halves(others * to_seam(g, theirs, at, dk, level, ROWS, DK), level, not LATE, ROWS)
        product = dot(in_block(weights, level, ROWS), half, DOT)
        found += halves(to_seam(g, own, at, dk, level, ROWS, DK) * product, level, LATE, ROWS)
    return found


@triton.jit
def scores(x, y, g, at, dk, ROWS: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr, CHANNEL: tl.constexpr,
           DOT: tl.constexpr):  # fmt: skip
    """Return sum_d x_id E_ijd y_jd for rows i and j <= i of a chunk; what stands above is no score."""
    own = sums(g, at, dk, ROWS, DK, CHANNEL)
    if CHANNEL:
        return merged_scores(x, y, own, own, g, at, dk, ROWS, LEVELS, DK, False, DOT)
    else:
        return dot(x, tl.trans(once(y, dk)), DOT) * tl.exp(tl.minimum(own - tl.trans(own), 0.0))


@triton.jit
def scores_across(x, y, g, at, dk, ROWS: tl.constexpr, LEVELS: tl.constexpr, DK: tl.constexpr, CHANNEL: tl.constexpr,
                  DOT: tl.constexpr):  # fmt: skip
    """Return the transpose of `scores` as a product of its own, which the next product takes as it is: a product that
    is transposed goes through shared memory first."""
    own = sums(g, at, dk, ROWS, DK, CHANNEL)
    if CHANNEL:
        return merged_scores_across(x, y, own, g, at, dk, ROWS, LEVELS, DK, DOT)
    else:
        return dot(y, tl.trans(once(x, dk)), DOT) * tl.exp(tl.minimum(tl.trans(own) - own, 0.0))


@triton.jit
def decayed(weights, g, at, dk, ROWS: tl.constexpr, DK: tl.constexpr, CHANNEL: tl.constexpr):
    """Return what `left_of` and `right_of` take, the gradients of `scores` in x and y where all rows meet at one point:
    with a decay per head weights_ij E_ij, and 0; with one per channel the weights off the diagonal, and those on it.
    A pair of a token with itself is not rounded then: it cancels in the gradient of a decay, where little else is left
    in channels that forget fast. No weight stands above the diagonal."""
    if CHANNEL:
        return tl.where(diagonal(ROWS), 0.0, weights), on_diagonal(weights, ROWS)
    else:
        own = sums(g, at, dk, ROWS, DK, False)
        return weights * tl.exp(tl.minimum(own - tl.trans(own), 0.0)), 0.0


@triton.jit
def left_of(met, alone, y, read, g, at, dk, ROWS: tl.constexpr, DK: tl.constexpr, CHANNEL: tl.constexpr,
            DOT: tl.constexpr):  # fmt: skip
    """Return sum_j weights_ij E_ij y_j + e^G_i read_i, given what `decayed` gives."""
    own = sums(g, at, dk, ROWS, DK, CHANNEL)
    if CHANNEL:
        end, past = sum_at(g, at + ROWS - 1, dk, DK, True), from_middle(g, own, at, dk, ROWS, DK)
        found = dot(met, once(y * tl.exp(-past), dk), DOT) + tl.exp(0.5 * end) * read
        return tl.exp(past) * found + alone * y
    else:
        return dot(met, y, DOT) + tl.exp(own) * read


@triton.jit
def right_of(met, alone, x, kept, g, at, dk, ROWS: tl.constexpr, DK: tl.constexpr, CHANNEL: tl.constexpr,
             DOT: tl.constexpr):  # fmt: skip
    """Return sum_i weights_ij E_ij x_i + e^(G_end - G_j) kept_j, and the second part of it."""
    own, end = sums(g, at, dk, ROWS, DK, CHANNEL), sum_at(g, at + ROWS - 1, dk, DK, CHANNEL)
    if CHANNEL:
        past = from_middle(g, own, at, dk, ROWS, DK)
        back = tl.exp(-past)
        kept = back * (tl.exp(0.5 * end) * kept)
        found = back * dot(tl.trans(met), once(x * tl.exp(past), dk), DOT)
        return found + alone * x + kept, kept
    else:
        kept = tl.exp(end - own) * kept
        return dot(tl.trans(met), x, DOT) + kept, kept


@triton.jit
def over_states(states, d_states, dk, dv, DK: tl.constexpr, BV: tl.constexpr):
    """Return the sum over value channels of a state times its gradient, (DK,)."""
    found = tl.zeros((DK,), dtype=tl.float32)
    for v0 in range(0, dv, BV):
        state = columns(states, 0, dk, dv, v0, DK, BV)
        found += tl.sum(state * columns(d_states, 0, dk, dv, v0, DK, BV), axis=1)
    return found


@triton.jit
def over_values(x, y, at, time, dv, ROWS: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):
    """Return x_i . y_j over all value channels, for the rows of a chunk."""
    found = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    for v0 in range(0, dv, BV):
        others = stored(y, at, time, dv, v0, ROWS, BV)
        found += dot(stored(x, at, time, dv, v0, ROWS, BV), tl.trans(once(others, time)), DOT)
    return found


@triton.jit
def weights_of(x, y, at, time, dv, ROWS: tl.constexpr, BV: tl.constexpr, STRICT: tl.constexpr, DOT: tl.constexpr):
    """Return x_i . y_j for j <= i, or STRICT j < i, zeros elsewhere."""
    return tl.where(below(ROWS, STRICT), over_values(x, y, at, time, dv, ROWS, BV, DOT), 0.0)


@triton.jit
def weights_across(x, y, at, time, dv, ROWS: tl.constexpr, BV: tl.constexpr, STRICT: tl.constexpr, DOT: tl.constexpr):
    """Return the transpose of `weights_of` as a product of its own, as `scores_across` does."""
    return tl.where(above(ROWS, STRICT), over_values(y, x, at, time, dv, ROWS, BV, DOT), 0.0)


@triton.jit
def against_state(x, states, at, time, dk, dv, ROWS: tl.constexpr, DK: tl.constexpr, BV: tl.constexpr,
                  DOT: tl.constexpr):  # fmt: skip
    """Return x S^T, (ROWS, DK)."""
    found = tl.zeros((ROWS, DK), dtype=tl.float32)
    for v0 in range(0, dv, BV):
        state = stored(states, 0, dk, dv, v0, DK, BV)
        found += dot(stored(x, at, time, dv, v0, ROWS, BV), tl.trans(once(state, time)), DOT)
    return found
