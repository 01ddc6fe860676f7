"""Triton kernels compute causal attention whose weights are a polynomial: Based's, without features or a state.

    w_ij = 1 + a + a^2 / 2,  a = q_i . k_j;   o_i = sum_{j<=i} w_ij v_j / n_i;   n_i = floor + sum_{j<=i} w_ij

A program has a block of rows and goes over the blocks of the others, as flash attention does, but without a maximum:
the weights are no exponentials. Its cost grows with the square of the length, but no features are ever stored. Heads
are (batch, heads, time, d) with any strides but of the last axis; sums are float32, results have the dtype of their
inputs.

    dw_ij = (do_i . v_j - do_i . o_i) / n_i;   da = dw (1 + a)
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn.axes import Read
from assay.nn.chunk_sizes import single_products
from assay.nn.head_blocks import Heads, dense
from assay.nn.row_blocks import LENGTHS, ROWS, Attention, head_of, put_rows, room, rows_of, strides


def taylor_attention(q: Heads, k: Heads, v: Read, *, floor: float) -> Read:
    with torch.autocast(v.device.type, enabled=False):
        return _Taylor.apply(q, k, v, floor, single_products(q))[0]


class _Taylor(Attention):
    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, floor: float, dot: str) -> tuple[Tensor, Tensor]:
        run = _Run(q, k, v, dot)
        o, n = room(v), torch.empty(v.shape[:3], device=v.device, dtype=torch.float32)
        _taylor_read[(*run.grid, run.blocks)](
            run.q, run.k, run.v, o, n, *strides(run.q, run.k, run.v, o), *run.sizes, floor, **run.kinds
        )
        return o, n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        q, k, v, o, n = ctx.saved_tensors
        run = _Run(q, k, v, ctx.options[-1])
        d_o, n = dense(d_o), n.contiguous()
        along = torch.empty_like(n)
        dq, dk, dv = (room(x) for x in (q, k, v))
        given = run.q, run.k, run.v, d_o
        _taylor_queries[run.grid](*given, dense(o), n, along, dq, *strides(*given, o, dq), *run.sizes, **run.kinds)
        _taylor_keys[run.grid](*given, n, along, dk, *strides(*given, dk), *run.sizes, **run.kinds)
        _taylor_values[(*run.grid, run.blocks)](run.q, run.k, d_o, n, dv, *strides(run.q, run.k, d_o, dv), *run.sizes,
                                            **run.kinds)  # fmt: skip
        return dq, dk, dv, None, None


class _Run:
    """Holds the sizes of the launches for one set of tensors."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, dot: str) -> None:
        self.q, self.k, self.v = (dense(x) for x in (q, k, v))
        batch, heads, time, e = v.shape
        block = min(64, max(16, triton.next_power_of_2(e)))
        self.grid, self.blocks = (batch * heads, triton.cdiv(time, ROWS)), triton.cdiv(e, block)
        self.sizes = (heads, time, q.shape[-1], e)
        width = max(16, triton.next_power_of_2(q.shape[-1]))
        self.kinds = {"ROWS": ROWS, "WIDTH": width, "BV": block, "DOT": dot}


@triton.jit
def _weights(a, at, to, ROWS: tl.constexpr):
    """Return 1 + a + a^2 / 2 for the rows from `at` and the columns from `to` on that they may see."""
    seen = (at + tl.arange(0, ROWS))[:, None] >= (to + tl.arange(0, ROWS))[None, :]
    return tl.where(seen, 1.0 + a * (1.0 + 0.5 * a), 0.0)


@triton.jit
def _gradients(a, do, v, n, mean, at, to, do_row, v_row, time, e, ROWS: tl.constexpr, BV: tl.constexpr,
               DOT: tl.constexpr):  # fmt: skip
    """Return da of the rows from `at` and the columns from `to` on; `mean` is do . o of the rows."""
    pulled = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    for first in range(0, e, BV):
        values = rows_of(v, to, v_row, time, e, first, ROWS, BV)
        pulled += tl.dot(rows_of(do, at, do_row, time, e, first, ROWS, BV), tl.trans(values), input_precision=DOT)
    rows = at + tl.arange(0, ROWS)
    total = tl.load(n + rows, mask=rows < time, other=1.0)[:, None]
    seen = rows[:, None] >= (to + tl.arange(0, ROWS))[None, :]
    return tl.where(seen, (pulled - mean[:, None]) / total * (1.0 + a), 0.0)


@triton.jit(do_not_specialize=LENGTHS)
def _taylor_read(q, k, v, o, n, q_seq, q_head, q_row, k_seq, k_head, k_row, v_seq, v_head, v_row, o_seq, o_head,
                 o_row, heads, time, d, e, floor, ROWS: tl.constexpr, WIDTH: tl.constexpr, BV: tl.constexpr,
                 DOT: tl.constexpr):  # fmt: skip
    program, at, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS, tl.program_id(2) * BV
    q, k = head_of(q, program, heads, q_seq, q_head), head_of(k, program, heads, k_seq, k_head)
    v, o = head_of(v, program, heads, v_seq, v_head), head_of(o, program, heads, o_seq, o_head)
    queries = rows_of(q, at, q_row, time, d, 0, ROWS, WIDTH)
    found, total = tl.zeros((ROWS, BV), dtype=tl.float32), tl.zeros((ROWS,), dtype=tl.float32)
    for to in range(0, at + ROWS, ROWS):
        a = tl.dot(queries, tl.trans(rows_of(k, to, k_row, time, d, 0, ROWS, WIDTH)), input_precision=DOT)
        weights = _weights(a, at, to, ROWS)
        total += tl.sum(weights, axis=1)
        found += tl.dot(weights, rows_of(v, to, v_row, time, e, first, ROWS, BV), input_precision=DOT)
    total += floor
    put_rows(o, found / total[:, None], at, o_row, time, e, first, ROWS, BV)
    rows = at + tl.arange(0, ROWS)
    tl.store(n + program * time + rows, total, mask=rows < time)  # every block of values has the same


@triton.jit(do_not_specialize=LENGTHS)
def _taylor_queries(q, k, v, do, o, n, along, dq, q_seq, q_head, q_row, k_seq, k_head, k_row, v_seq, v_head, v_row,
                    do_seq, do_head, do_row, o_seq, o_head, o_row, dq_seq, dq_head, dq_row, heads, time, d, e,
                    ROWS: tl.constexpr, WIDTH: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute dq, and write do . o, which `_taylor_keys` reads."""
    program, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS
    q, k = head_of(q, program, heads, q_seq, q_head), head_of(k, program, heads, k_seq, k_head)
    v, do = head_of(v, program, heads, v_seq, v_head), head_of(do, program, heads, do_seq, do_head)
    o = head_of(o, program, heads, o_seq, o_head)
    n += program * time
    rows = at + tl.arange(0, ROWS)
    mean = tl.zeros((ROWS,), dtype=tl.float32)
    for first in range(0, e, BV):
        read = rows_of(o, at, o_row, time, e, first, ROWS, BV)
        mean += tl.sum(rows_of(do, at, do_row, time, e, first, ROWS, BV) * read, axis=1)
    tl.store(along + program * time + rows, mean, mask=rows < time)
    queries = rows_of(q, at, q_row, time, d, 0, ROWS, WIDTH)
    found = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for to in range(0, at + ROWS, ROWS):
        keys = rows_of(k, to, k_row, time, d, 0, ROWS, WIDTH)
        a = tl.dot(queries, tl.trans(keys), input_precision=DOT)
        gradients = _gradients(a, do, v, n, mean, at, to, do_row, v_row, time, e, ROWS, BV, DOT)
        found += tl.dot(gradients, keys, input_precision=DOT)
    put_rows(head_of(dq, program, heads, dq_seq, dq_head), found, at, dq_row, time, d, 0, ROWS, WIDTH)


@triton.jit(do_not_specialize=LENGTHS)
def _taylor_keys(q, k, v, do, n, along, dk, q_seq, q_head, q_row, k_seq, k_head, k_row, v_seq, v_head, v_row, do_seq,
                 do_head, do_row, dk_seq, dk_head, dk_row, heads, time, d, e, ROWS: tl.constexpr, WIDTH: tl.constexpr,
                 BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    program, to = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS
    q, k = head_of(q, program, heads, q_seq, q_head), head_of(k, program, heads, k_seq, k_head)
    v, do = head_of(v, program, heads, v_seq, v_head), head_of(do, program, heads, do_seq, do_head)
    n += program * time
    along += program * time
    keys = rows_of(k, to, k_row, time, d, 0, ROWS, WIDTH)
    found = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for at in range(to, time, ROWS):
        queries = rows_of(q, at, q_row, time, d, 0, ROWS, WIDTH)
        a = tl.dot(queries, tl.trans(keys), input_precision=DOT)
        rows = at + tl.arange(0, ROWS)
        mean = tl.load(along + rows, mask=rows < time, other=0.0)
        gradients = _gradients(a, do, v, n, mean, at, to, do_row, v_row, time, e, ROWS, BV, DOT)
        found += tl.dot(tl.trans(gradients), queries, input_precision=DOT)
    put_rows(head_of(dk, program, heads, dk_seq, dk_head), found, to, dk_row, time, d, 0, ROWS, WIDTH)


@triton.jit(do_not_specialize=LENGTHS)
def _taylor_values(q, k, do, n, dv, q_seq, q_head, q_row, k_seq, k_head, k_row, do_seq, do_head, do_row, dv_seq,
                   dv_head, dv_row, heads, time, d, e, ROWS: tl.constexpr, WIDTH: tl.constexpr, BV: tl.constexpr,
                   DOT: tl.constexpr):  # fmt: skip
    program, to, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS, tl.program_id(2) * BV
    q, k = head_of(q, program, heads, q_seq, q_head), head_of(k, program, heads, k_seq, k_head)
    do = head_of(do, program, heads, do_seq, do_head)
    n += program * time
    keys = rows_of(k, to, k_row, time, d, 0, ROWS, WIDTH)
    found = tl.zeros((ROWS, BV), dtype=tl.float32)
    for at in range(to, time, ROWS):
        rows = at + tl.arange(0, ROWS)
        queries = rows_of(q, at, q_row, time, d, 0, ROWS, WIDTH)
        weights = _weights(tl.dot(queries, tl.trans(keys), input_precision=DOT), at, to, ROWS)
        weights = weights / tl.load(n + rows, mask=rows < time, other=1.0)[:, None]
        pull = rows_of(do, at, do_row, time, e, first, ROWS, BV)
        found += tl.dot(tl.trans(weights), pull, input_precision=DOT)
    put_rows(head_of(dv, program, heads, dv_seq, dv_head), found, to, dv_row, time, e, first, ROWS, BV)
