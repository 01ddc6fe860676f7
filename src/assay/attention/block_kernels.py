"""Triton kernels for attention over blocks of keys; imported on CUDA alone.

`attention` reads only the blocks that it is given lists of; where these kernels do not fit, FlexAttention does the same
more slowly (flex.py). `weights` finds the attention weight of each block for each block of queries, for methods that
choose by it, without a matrix of all queries and keys in memory.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from assay.attention.layer import Layer

LOG2_E = 1.4426950408889634
"""The kernels compute powers of 2 in place of exp."""


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
    q, k, v = (x.contiguous() for x in (layer.q, layer.k, layer.v))
    out = torch.empty_like(q)
    _attention[_grid(layer, queries)](
        _rows(q, queries), _rows(k, keys), _rows(v, keys), out, count.contiguous(), index.contiguous(), _scale(layer),
        layer.time, index.shape[-1], layer.group, q.shape[-1], size, queries, keys, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def weights(layer: Layer, *, size: int) -> Float[Tensor, "rows heads block block"]:
    """Return the highest weight that any query of a block gives to any key of another, under causal attention."""
    side, blocks = min(_factor(size), 128), triton.cdiv(layer.time, size)
    q, k = layer.q.contiguous(), layer.k.contiguous()
    out = q.new_zeros(*q.shape[:2], blocks, blocks, dtype=torch.float32)
    _weights[_grid(layer, side)](
        _rows(q, side), _rows(k, side), out, _scale(layer), layer.time, blocks, layer.group, size, side,
        num_warps=8 if side == 128 else 4, num_stages=3,
    )  # fmt: skip
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


def _rows(x: Tensor, count: int) -> Any:
    """Stack all heads, to be read `count` rows at a time by the copy engine."""
    return TensorDescriptor.from_tensor(x.view(-1, x.shape[-1]), [count, x.shape[-1]])


def _scale(layer: Layer) -> float:
    return LOG2_E * (layer.q.shape[-1] ** -0.5 if layer.scale is None else layer.scale)


@triton.jit
def _attention(
    q, k, v, out, count, index, scale, time, blocks, group,
    D: tl.constexpr, SIZE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # longest lists first
    start = head // group * time
    block = first // SIZE
    given = q.load([head * time + first, 0])
    rows = first + tl.arange(0, QUERIES)
    largest = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, D), tl.float32)
    parts: tl.constexpr = SIZE // KEYS
    listed = index + (head * blocks + block).to(tl.int64) * blocks
    for part in tl.range(0, tl.load(count + head * blocks + block) * parts):
        place = start + tl.load(listed + part // parts) * SIZE + part % parts * KEYS
        scores = tl.dot(given, k.load([place, 0]).T) * scale
        largest, total, sums = _take(scores, v.load([place, 0]), largest, total, sums)
    for column in range(block * SIZE, first + QUERIES, KEYS):
        scores = tl.dot(given, k.load([start + column, 0]).T) * scale
        seen = rows[:, None] >= column + tl.arange(0, KEYS)[None, :]
        scores = tl.where(seen, scores, -float("inf"))
        # Rows past the end belong to the next head. Their weight is 0, but 0 times infinity is NaN.
        inside = (column + tl.arange(0, KEYS) < time)[:, None]
        values = tl.where(inside, v.load([start + column, 0]), 0.0)
        largest, total, sums = _take(scores, values, largest, total, sums)
    at = (head * time + rows).to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), mask=(rows < time)[:, None])


@triton.jit
def _take(scores, values, largest, total, sums):
    """Update the running softmax with some more keys."""
    larger = tl.maximum(largest, tl.max(scores, 1))
    weights = tl.math.exp2(scores - larger[:, None])
    shrunk = tl.math.exp2(largest - larger)
    return larger, total * shrunk + tl.sum(weights, 1), tl.dot(weights.to(values.dtype), values, sums * shrunk[:, None])


@triton.jit
def _weights(q, k, out, scale, time, blocks, group, SIZE: tl.constexpr, SIDE: tl.constexpr):
    head = tl.program_id(1)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * SIDE
    start = head // group * time
    given = q.load([head * time + first, 0])
    rows = first + tl.arange(0, SIDE)
    seen = rows[:, None] >= first + tl.arange(0, SIDE)[None, :]
    # Queries see only earlier keys of their own block, and every key of the blocks before.
    scores = tl.where(seen, tl.dot(given, k.load([start + first, 0]).T) * scale, -float("inf"))
    largest = tl.max(scores, 1)
    total = tl.sum(tl.math.exp2(scores - largest[:, None]), 1)
    own = scores
    for column in tl.range(0, first, SIDE):
        scores = tl.dot(given, k.load([start + column, 0]).T) * scale
        larger = tl.maximum(largest, tl.max(scores, 1))
        total = total * tl.math.exp2(largest - larger) + tl.sum(tl.math.exp2(scores - larger[:, None]), 1)
        largest = larger
    # Rows past the end belong to the next head: they weigh nothing.
    log_sum = tl.where(rows < time, largest + tl.math.log2(total), float("inf"))
    row = out + (head * blocks + first // SIZE).to(tl.int64) * blocks
    tl.atomic_max(row + first // SIZE, tl.max(tl.math.exp2(own - log_sum[:, None])))
    for column in tl.range(0, first, SIDE):
        scores = tl.dot(given, k.load([start + column, 0]).T) * scale
        tl.atomic_max(row + column // SIZE, tl.max(tl.math.exp2(scores - log_sum[:, None])))
