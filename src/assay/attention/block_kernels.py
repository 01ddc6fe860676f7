"""Triton kernels for attention over blocks of keys; imported on CUDA alone.

`attention` reads only the blocks that it is given lists of; where these kernels do not fit, FlexAttention does the same
more slowly (flex.py). `weights` finds the attention weight of each block for each block of queries, for methods that
choose by it, without a matrix of all queries and keys in memory.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from triton.tools.tensor_descriptor import TensorDescriptor

from assay.attention.layer import Layer

LOG2_E = 1.4426950408889634
"""The kernels compute powers of 2 in place of exp."""
PEAKS = 2**26
"""Numbers that `weights` keeps between its two kernels: one per query and tile of keys, for as many heads as fit."""


def attention(
    layer: Layer,
    count: Int[Tensor, "rows heads block"],
    index: Int[Tensor, "rows heads block block"],
    *,
    size: int,
) -> Float[Tensor, "rows heads time d"]:
    """Each block of `size` queries attends to its own keys, causally, and to the first `count` blocks of `index`, which
    lie before it, whole."""
    queries = min(_factor(size), 128)
    keys = max(16, queries // 2)
    q, k, v = (_in_place(x) for x in (layer.q, layer.k, layer.v))
    out = torch.empty_like(q)  # laid out as the queries are
    _attention[_grid(layer, queries)](
        _rows(q, queries), _rows(k, keys), _rows(v, keys), out, count.contiguous(), index.contiguous(), _scale(layer),
        layer.time, index.shape[-1], q.shape[1], k.shape[1], q.shape[-1], size, queries, keys,
        *(_by_token(x) for x in (q, k, v)), num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def weights(layer: Layer, *, size: int, queries: int = 0) -> Float[Tensor, "rows heads block block"]:
    """Return the highest weight that any query of a block, or any of its last `queries`, gives to any key of another,
    under causal attention.

    Every score is computed once: a first kernel keeps each query's highest score in each tile of keys, and the sum that
    its weights are divided by; a second one divides. At 16K tokens and 32 heads of 128 the products of all queries are
    1.1e12 operations, so that no exact form is below a millisecond on an H200; those of a few are in proportion."""
    side, blocks = min(_factor(size), 128), triton.cdiv(layer.time, size)
    taken = queries or size
    together = 128 if queries else side  # queries of a tile: the few of one block would not fill it
    q, k = _in_place(_last(layer.q, size, taken)), _in_place(layer.k)
    out = q.new_zeros(*q.shape[:2], blocks, blocks, dtype=torch.float32)
    length, tiles, heads = triton.cdiv(q.shape[2], together), triton.cdiv(layer.time, side), q.shape[0] * q.shape[1]
    at_once = min(heads, max(1, PEAKS // (length * tiles * together)))
    peaks = q.new_empty(at_once, length, tiles, together, dtype=torch.float32)
    log_sums = q.new_empty(at_once, length, together, dtype=torch.float32)
    sizes = size, taken, together, side
    for first in range(0, heads, at_once):
        grid = length, min(at_once, heads - first)
        _peaks[grid](
            _rows(q, together), _rows(k, side), peaks, log_sums, _scale(layer), layer.time, q.shape[2], tiles, first,
            q.shape[1], k.shape[1], q.shape[-1], *sizes, _by_token(q), _by_token(k),
            num_warps=8 if together == 128 else 4, num_stages=3,
        )  # fmt: skip
        _weights[grid](peaks, log_sums, out, layer.time, tiles, blocks, first, *sizes, num_warps=4)
    return out


def weighs(size: int, queries: int) -> bool:
    """Return whether `weights` takes so many queries of a block: all, or a power of 2 that tensor cores can cut."""
    return queries in (0, size) or (queries in (16, 32, 64, 128) and queries <= size)


def _last(q: Float[Tensor, "rows heads time d"], size: int, taken: int) -> Float[Tensor, "rows heads few d"]:
    """Return the last queries of each block, as many of each; those past the end are 0."""
    if taken == size:
        return q
    whole = pad(q, (0, 0, 0, missing)) if (missing := -q.shape[2] % size) else q
    return rearrange(rearrange(whole, "r h (m s) d -> r h m s d", s=size)[:, :, :, -taken:], "r h m s d -> r h (m s) d")


def longest(x: Float[Tensor, "rows heads time d"], *, size: int) -> Float[Tensor, "rows heads block d"]:
    """Return the vector of largest norm in each block, the first of several."""
    x, blocks = _in_place(x), triton.cdiv(x.shape[2], size)
    out = x.new_empty(*x.shape[:2], blocks, x.shape[3])
    grid = blocks, x.shape[0] * x.shape[1]
    places = x.shape[2], x.shape[1], *x.stride()[:3]
    _longest[grid](x, out, *places, x.shape[3], size, min(_factor(size), 64), num_warps=4)
    return out


def fits(layer: Layer, size: int) -> bool:
    """Return whether the kernels support this layer: 16-bit numbers, blocks that tensor cores can cut, no gradient."""
    d = layer.q.shape[-1]
    whole = d == layer.v.shape[-1] and d in (16, 32, 64, 128)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (layer.q, layer.k, layer.v))
    return layer.q.dtype in (torch.bfloat16, torch.float16) and whole and size % 16 == 0 and not learns


def _factor(size: int) -> int:
    """Return the largest power of 2 that divides `size`."""
    return size & -size


def _grid(layer: Layer, queries: int) -> tuple[int, int]:
    return triton.cdiv(layer.time, queries), layer.q.shape[0] * layer.q.shape[1]


def _by_token(x: Float[Tensor, "rows heads time d"]) -> bool:
    """Return whether the heads of a token lie side by side in memory, as the projections of a model leave them."""
    return x.shape[1] > 1 and x.transpose(1, 2).is_contiguous()


def _in_place(x: Float[Tensor, "rows heads time d"]) -> Float[Tensor, "rows heads time d"]:
    """Return the tensor itself where the kernels can read it as it lies, else a copy."""
    return x if _by_token(x) else x.contiguous()


def _rows(x: Float[Tensor, "rows heads time d"], count: int) -> Any:
    """Stack the tokens of all heads, to be read `count` at a time by the copy engine; where the heads of a token lie
    side by side, those of all sequences, from the columns of a head."""
    stacked = x.transpose(1, 2).flatten(2) if _by_token(x) else x
    return TensorDescriptor.from_tensor(stacked.view(-1, stacked.shape[-1]), [count, x.shape[-1]])


def _scale(layer: Layer) -> float:
    return LOG2_E * (layer.q.shape[-1] ** -0.5 if layer.scale is None else layer.scale)


@triton.jit
def _start(head, heads, time, D: tl.constexpr, BY_TOKEN: tl.constexpr):
    """The row and the column at which a head's tokens begin: see `_rows`."""
    if BY_TOKEN:
        return head // heads * time, head % heads * D
    return head * time, head * 0


@triton.jit
def _attention(
    q, k, v, out, count, index, scale, time, blocks, heads, kv_heads,
    D: tl.constexpr, SIZE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    Q_BY_TOKEN: tl.constexpr, K_BY_TOKEN: tl.constexpr, V_BY_TOKEN: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # longest lists first
    own = head // (heads // kv_heads)
    q_row, q_column = _start(head, heads, time, D, Q_BY_TOKEN)
    k_row, k_column = _start(own, kv_heads, time, D, K_BY_TOKEN)
    v_row, v_column = _start(own, kv_heads, time, D, V_BY_TOKEN)
    block = first // SIZE
    given = q.load([q_row + first, q_column])
    rows = first + tl.arange(0, QUERIES)
    largest = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, D), tl.float32)
    parts: tl.constexpr = SIZE // KEYS
    listed = index + (head * blocks + block).to(tl.int64) * blocks
    for part in tl.range(0, tl.load(count + head * blocks + block) * parts):
        place = tl.load(listed + part // parts) * SIZE + part % parts * KEYS
        scores = tl.dot(given, k.load([k_row + place, k_column]).T) * scale
        largest, total, sums = _take(scores, v.load([v_row + place, v_column]), largest, total, sums)
    for column in range(block * SIZE, first + QUERIES, KEYS):
        scores = tl.dot(given, k.load([k_row + column, k_column]).T) * scale
        seen = rows[:, None] >= column + tl.arange(0, KEYS)[None, :]
        scores = tl.where(seen, scores, -float("inf"))
        # Rows past the end belong to another head or sequence. Their weight is 0, but 0 times infinity is NaN.
        inside = (column + tl.arange(0, KEYS) < time)[:, None]
        values = tl.where(inside, v.load([v_row + column, v_column]), 0.0)
        largest, total, sums = _take(scores, values, largest, total, sums)
    stride = heads if Q_BY_TOKEN else 1
    at = (q_row + rows).to(tl.int64)[:, None] * stride * D + q_column + tl.arange(0, D)[None, :]
    tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), mask=(rows < time)[:, None])


@triton.jit
def _take(scores, values, largest, total, sums):
    """Update the running softmax with some more keys."""
    larger = tl.maximum(largest, tl.max(scores, 1))
    weights = tl.math.exp2(scores - larger[:, None])
    shrunk = tl.math.exp2(largest - larger)
    return larger, total * shrunk + tl.sum(weights, 1), tl.dot(weights.to(values.dtype), values, sums * shrunk[:, None])


@triton.jit
def _peaks(
    q, k, peaks, log_sums, scale, time, length, tiles, skipped, heads, kv_heads,
    D: tl.constexpr, SIZE: tl.constexpr, TAKEN: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    Q_BY_TOKEN: tl.constexpr, K_BY_TOKEN: tl.constexpr,
):  # fmt: skip
    head = skipped + tl.program_id(1)
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # longest rows first
    q_row, q_column = _start(head, heads, length, D, Q_BY_TOKEN)
    k_row, k_column = _start(head // (heads // kv_heads), kv_heads, time, D, K_BY_TOKEN)
    given = q.load([q_row + tile * QUERIES, q_column])
    rows = tl.arange(0, QUERIES)
    place = _place(tile * QUERIES + rows, SIZE, TAKEN)
    row = (tl.program_id(1) * tl.num_programs(0) + tile).to(tl.int64)
    own = peaks + row * tiles * QUERIES + rows
    largest = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    # Every query of the tile sees all keys up to the first one's own; later keys are seen by some.
    whole = (_place(tile * QUERIES, SIZE, TAKEN) + 1) // KEYS
    for column in tl.range(0, tl.minimum(whole, tiles)):
        scores = tl.dot(given, k.load([k_row + column * KEYS, k_column]).T) * scale
        largest, total = _weighed(own + column * QUERIES, scores, largest, total)
    for column in range(whole, tl.cdiv(_end(tile, time, SIZE, TAKEN, QUERIES), KEYS)):
        scores = tl.dot(given, k.load([k_row + column * KEYS, k_column]).T) * scale
        seen = place[:, None] >= column * KEYS + tl.arange(0, KEYS)[None, :]
        largest, total = _weighed(own + column * QUERIES, tl.where(seen, scores, -float("inf")), largest, total)
    # Rows past the end belong to another head or sequence: they weigh nothing.
    log_sum = tl.where(place < time, largest + tl.math.log2(total), float("inf"))
    tl.store(log_sums + row * QUERIES + rows, log_sum)


@triton.jit
def _weighed(peaks, scores, largest, total):
    """Store each query's highest score of some keys, and update the running sum."""
    peak = tl.max(scores, 1)
    tl.store(peaks, peak)
    larger = tl.maximum(largest, peak)
    return larger, total * tl.math.exp2(largest - larger) + tl.sum(tl.math.exp2(scores - larger[:, None]), 1)


@triton.jit
def _place(number, SIZE: tl.constexpr, TAKEN: tl.constexpr):
    """The position in the text of a query, which is among the last TAKEN of its block."""
    return number // TAKEN * SIZE + SIZE - TAKEN + number % TAKEN


@triton.jit
def _end(tile, time, SIZE: tl.constexpr, TAKEN: tl.constexpr, QUERIES: tl.constexpr):
    """How many keys the last query of a tile sees."""
    return tl.minimum(_place((tile + 1) * QUERIES - 1, SIZE, TAKEN) + 1, time)


@triton.jit
def _weights(
    peaks, log_sums, out, time, tiles, blocks, skipped,
    SIZE: tl.constexpr, TAKEN: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    AT_ONCE: tl.constexpr = 16
    GROUP: tl.constexpr = TAKEN if TAKEN < QUERIES else QUERIES  # queries of one block in a tile
    GROUPS: tl.constexpr = QUERIES // GROUP
    tile = tl.program_id(0)
    row = (tl.program_id(1) * tl.num_programs(0) + tile).to(tl.int64)
    rows = tl.arange(0, QUERIES)
    log_sum = tl.load(log_sums + row * QUERIES + rows)
    block = (tile * QUERIES + tl.arange(0, GROUPS) * GROUP) // TAKEN
    target = out + ((skipped + tl.program_id(1)) * blocks + block).to(tl.int64) * blocks
    end = tl.cdiv(_end(tile, time, SIZE, TAKEN, QUERIES), KEYS)
    for first in tl.range(0, end, AT_ONCE):
        columns = first + tl.arange(0, AT_ONCE)
        inside = columns < end
        at = (row * tiles + columns[:, None]) * QUERIES + rows[None, :]
        own = tl.load(peaks + at, mask=inside[:, None], other=-float("inf")) - log_sum[None, :]
        highest = tl.math.exp2(tl.max(tl.reshape(own, (AT_ONCE, GROUPS, GROUP)), 2))
        there = inside[:, None] & (block < blocks)[None, :]
        tl.atomic_max(target[None, :] + (columns * KEYS // SIZE)[:, None], highest, mask=there)


@triton.jit
def _longest(x, out, time, heads, by_row, by_head, by_token, D: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr):
    block, head = tl.program_id(0), tl.program_id(1)
    places = tl.arange(0, D)
    x += (head // heads).to(tl.int64) * by_row + (head % heads).to(tl.int64) * by_head
    best = -1.0
    where = block * SIZE
    for part in range(0, SIZE, ROWS):
        rows = block * SIZE + part + tl.arange(0, ROWS)
        at = rows.to(tl.int64)[:, None] * by_token + places[None, :]
        own = tl.load(x + at, mask=(rows < time)[:, None], other=0.0).to(tl.float32)
        norms = tl.where(rows < time, tl.sqrt(tl.sum(own * own, 1)), -1.0)
        top = tl.max(norms, 0)
        where = tl.where(top > best, block * SIZE + part + tl.argmax(norms, 0), where)
        best = tl.maximum(best, top)
    found = tl.load(x + where.to(tl.int64) * by_token + places)
    tl.store(out + (head * tl.num_programs(0) + block).to(tl.int64) * D + places, found)
