"""Triton kernels compute softmax attention to the last tokens, without copies of keys or scores in memory.

    a_ij = scale q_i . k_j,  i - window < j <= i;   p_ij = exp(a_ij - l_i);   o_i = sum_j p_ij v_j
    l_i = log sum_j exp(a_ij)

A program has a block of rows and goes over the blocks of the others that some of them see, as flash attention does.
Heads are (batch, heads, time, d); sums are float32, results have the dtype of their inputs.

    da_ij = p_ij (do_i . v_j - do_i . o_i)
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

LOWEST = tl.constexpr(-1e30)
"""Stands for minus infinity, which less itself would be no number."""


def attention_in_window(q: Heads, k: Heads, v: Read, *, window: int) -> Read:
    """Return softmax attention of every query to `window` keys, its own the last."""
    with torch.autocast(v.device.type, enabled=False):
        return _Window.apply(q, k, v, window, q.shape[-1] ** -0.5, single_products(q))[0]


class _Window(Attention):
    """Computes (q, k, v, window, scale, products) -> (o, l)."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, window: int, scale: float, dot: str) -> tuple[Tensor, Tensor]:
        run = _Run(q, k, v, window, scale, dot)
        o, logs = room(v), torch.empty(v.shape[:3], device=v.device, dtype=torch.float32)
        _window_read[run.grid](run.q, run.k, run.v, o, logs, *strides(run.q, run.k, run.v, o), *run.sizes, **run.kinds)
        return o, logs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        q, k, v, o, logs = ctx.saved_tensors
        run = _Run(q, k, v, *ctx.options)
        d_o, o, logs = dense(d_o), dense(o), logs.contiguous()
        along, (dq, dk, dv) = torch.empty_like(logs), (room(x) for x in (q, k, v))
        given = run.q, run.k, run.v, d_o
        _window_queries[run.grid](*given, o, logs, along, dq, *strides(*given, o, dq), *run.sizes, **run.kinds)
        _window_keys[run.grid](*given, logs, along, dk, dv, *strides(*given, dk, dv), *run.sizes, **run.kinds)
        return dq, dk, dv, None, None, None


class _Run:
    """Holds the sizes of the launches for one set of tensors."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, window: int, scale: float, dot: str) -> None:
        self.q, self.k, self.v = (dense(x) for x in (q, k, v))
        batch, heads, time, e = v.shape
        self.grid, self.sizes = (batch * heads, triton.cdiv(time, ROWS)), (heads, time, q.shape[-1], e, window, scale)
        width, values = (max(16, triton.next_power_of_2(d)) for d in (q.shape[-1], e))
        warps = 8 if width + values > 128 else 4
        self.kinds = {"ROWS": ROWS, "WIDTH": width, "BV": values, "DOT": dot, "num_warps": warps}


@triton.jit
def _seen(at, to, time, window, ROWS: tl.constexpr):
    """Return which columns from `to` on each row from `at` on may see."""
    row, column = (at + tl.arange(0, ROWS))[:, None], (to + tl.arange(0, ROWS))[None, :]
    return (column <= row) & (row - column < window) & (row < time)


@triton.jit
def _earliest(at, window, ROWS: tl.constexpr):
    """Return the first row of the first block that the row `at` sees."""
    return tl.maximum(at - window + 1, 0) // ROWS * ROWS


@triton.jit(do_not_specialize=LENGTHS)
def _window_read(q, k, v, o, logs, q_seq, q_head, q_row, k_seq, k_head, k_row, v_seq, v_head, v_row, o_seq, o_head,
                 o_row, heads, time, d, e, window, scale, ROWS: tl.constexpr, WIDTH: tl.constexpr, BV: tl.constexpr,
                 DOT: tl.constexpr):  # fmt: skip
    program, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS
    q, k = head_of(q, program, heads, q_seq, q_head), head_of(k, program, heads, k_seq, k_head)
    v, o = head_of(v, program, heads, v_seq, v_head), head_of(o, program, heads, o_seq, o_head)
    queries = rows_of(q, at, q_row, time, d, 0, ROWS, WIDTH) * scale
    most, total = tl.full((ROWS,), LOWEST, dtype=tl.float32), tl.zeros((ROWS,), dtype=tl.float32)
    found = tl.zeros((ROWS, BV), dtype=tl.float32)
    for to in range(_earliest(at, window, ROWS), at + ROWS, ROWS):
        keys, seen = rows_of(k, to, k_row, time, d, 0, ROWS, WIDTH), _seen(at, to, time, window, ROWS)
        a = tl.where(seen, tl.dot(queries, tl.trans(keys), input_precision=DOT), LOWEST)
        now = tl.maximum(most, tl.max(a, axis=1))
        weights, less = tl.where(seen, tl.exp(a - now[:, None]), 0.0), tl.exp(most - now)
        values = rows_of(v, to, v_row, time, e, 0, ROWS, BV)
        found = found * less[:, None] + tl.dot(weights, values, input_precision=DOT)
        total, most = total * less + tl.sum(weights, axis=1), now
    total = tl.where(total > 0, total, 1.0)  # rows past the last token see nothing
    put_rows(o, found / total[:, None], at, o_row, time, e, 0, ROWS, BV)
    rows = at + tl.arange(0, ROWS)
    tl.store(logs + program * time + rows, most + tl.log(total), mask=rows < time)


@triton.jit(do_not_specialize=LENGTHS)
def _window_queries(q, k, v, do, o, logs, along, dq, q_seq, q_head, q_row, k_seq, k_head, k_row, v_seq, v_head, v_row,
                    do_seq, do_head, do_row, o_seq, o_head, o_row, dq_seq, dq_head, dq_row, heads, time, d, e, window,
                    scale, ROWS: tl.constexpr, WIDTH: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute dq, and write do . o, which `_window_keys` reads."""
    program, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS
    q, k = head_of(q, program, heads, q_seq, q_head), head_of(k, program, heads, k_seq, k_head)
    v, do = head_of(v, program, heads, v_seq, v_head), head_of(do, program, heads, do_seq, do_head)
    o, rows = head_of(o, program, heads, o_seq, o_head), at + tl.arange(0, ROWS)
    pulls = rows_of(do, at, do_row, time, e, 0, ROWS, BV)
    mean = tl.sum(pulls * rows_of(o, at, o_row, time, e, 0, ROWS, BV), axis=1)
    tl.store(along + program * time + rows, mean, mask=rows < time)
    total = tl.load(logs + program * time + rows, mask=rows < time, other=0.0)
    queries = rows_of(q, at, q_row, time, d, 0, ROWS, WIDTH) * scale
    found = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for to in range(_earliest(at, window, ROWS), at + ROWS, ROWS):
        keys, values = rows_of(k, to, k_row, time, d, 0, ROWS, WIDTH), rows_of(v, to, v_row, time, e, 0, ROWS, BV)
        a = tl.dot(queries, tl.trans(keys), input_precision=DOT)
        weights = tl.where(_seen(at, to, time, window, ROWS), tl.exp(a - total[:, None]), 0.0)
        gradients = weights * (tl.dot(pulls, tl.trans(values), input_precision=DOT) - mean[:, None])
        found += tl.dot(gradients, keys, input_precision=DOT)
    put_rows(head_of(dq, program, heads, dq_seq, dq_head), found * scale, at, dq_row, time, d, 0, ROWS, WIDTH)


@triton.jit(do_not_specialize=LENGTHS)
def _window_keys(q, k, v, do, logs, along, dk, dv, q_seq, q_head, q_row, k_seq, k_head, k_row, v_seq, v_head, v_row,
                 do_seq, do_head, do_row, dk_seq, dk_head, dk_row, dv_seq, dv_head, dv_row, heads, time, d, e, window,
                 scale, ROWS: tl.constexpr, WIDTH: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Compute dk and dv."""
    program, to = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS
    q, k = head_of(q, program, heads, q_seq, q_head), head_of(k, program, heads, k_seq, k_head)
    v, do = head_of(v, program, heads, v_seq, v_head), head_of(do, program, heads, do_seq, do_head)
    keys, values = rows_of(k, to, k_row, time, d, 0, ROWS, WIDTH), rows_of(v, to, v_row, time, e, 0, ROWS, BV)
    of_keys, of_values = tl.zeros((ROWS, WIDTH), dtype=tl.float32), tl.zeros((ROWS, BV), dtype=tl.float32)
    for at in range(to, tl.minimum(time, to + ROWS + window - 1), ROWS):
        rows = at + tl.arange(0, ROWS)
        queries = rows_of(q, at, q_row, time, d, 0, ROWS, WIDTH) * scale
        pulls = rows_of(do, at, do_row, time, e, 0, ROWS, BV)
        total = tl.load(logs + program * time + rows, mask=rows < time, other=0.0)
        mean = tl.load(along + program * time + rows, mask=rows < time, other=0.0)
        a = tl.dot(queries, tl.trans(keys), input_precision=DOT)
        weights = tl.where(_seen(at, to, time, window, ROWS), tl.exp(a - total[:, None]), 0.0)
        of_values += tl.dot(tl.trans(weights), pulls, input_precision=DOT)
        gradients = weights * (tl.dot(pulls, tl.trans(values), input_precision=DOT) - mean[:, None])
        of_keys += tl.dot(tl.trans(gradients), queries, input_precision=DOT)
    put_rows(head_of(dk, program, heads, dk_seq, dk_head), of_keys, to, dk_row, time, d, 0, ROWS, WIDTH)
    put_rows(head_of(dv, program, heads, dv_seq, dv_head), of_values, to, dv_row, time, e, 0, ROWS, BV)
