"""A Triton kernel solves what nn/least_squares.py does on CUDA, forward and backward, by conjugate gradients.

A program has a chunk of tokens, whose systems it solves side by side, one row of a tile each. With G and E as in
chunk_blocks.py, keys k and strengths b, and S the Gram matrix before the chunk, that of token i maps a row p_i to

    p_i G_i = e^G_i p_i S + sum_{j<=i} E_ij b_j (p_i . k_j) k_j

in three products of tiles, all operands of which stay where they are. Keys, queries and S are divided by the root of
the ridge first, so that the ridge is 1 in every channel. Steps are taken until no residual of the chunk, as the method
carries it from step to step, is above the tolerance. S of every chunk is computed by the outer recurrence's kernels,
with keys for values.

Backward, with y_t = (G_t + L)^-1 dx_t by the same kernel, dq_t = y_t, dL = -sum_t y_t x_t, and the other gradients are
those of -sum_t y_t . (G_t x_t), which is an outer recurrence.

Answers are float32 also where queries are bf16, so that this recurrence, and the one that reads with them, multiply as
float32 is multiplied. The gradient of a decay is a small difference of large sums: with operands rounded to bf16, that
of a gate's bias was up to a quarter wrong.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn import least_squares
from assay.nn.chunk_blocks import below, columns, dot, once, put, sums, tile
from assay.nn.chunk_forward import LENGTHS
from assay.nn.chunk_sizes import Folded, check_keys, products, single_products
from assay.nn.least_squares import Gram, Ridge
from assay.nn.outer import Chunks
from assay.nn.outer_kernels import per_token, put_vector
from assay.nn.scan import PerChannel, PerHead, as_written

TOLERANCE = {"tf32": 1e-3, "tf32x3": 1e-6}
"""Length of a residual over that of its query at which a system is solved, by how tiles are multiplied."""
STEPS = 4
"""Steps at most, as a multiple of a key's channels: without rounding one for each channel would do."""
WIDEST = 64
"""Channels of a key at most where each product is three of TF32: more would need more shared memory than a Hopper GPU
has."""


def ridge_scan(
    q: PerChannel, k: PerChannel, beta: PerHead, log_decay: PerHead, ridge: Ridge, *, state: Gram | None = None
) -> PerChannel:
    """Return what `least_squares.ridge_scan` gives, to the tolerance."""
    check_keys(k)
    if single_products(q) == "tf32x3" and k.shape[-1] > WIDEST:
        with as_written():
            return least_squares.ridge_scan(q, k, beta, log_decay, ridge, state=state)
    given = (log_decay.float(), beta.float(), ridge.float().expand(len(q), *ridge.shape))
    state = None if state is None else state.float()
    with torch.autocast(q.device.type, enabled=False):
        x, *_ = _Solved.apply(q, k, *given, state, single_products(q))
    return x


class _Solved(Folded):
    """Computes (q, k, log a, b, L, G before the first token) -> (x, what is kept for the gradients)."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, log_decay: Tensor, beta: Tensor, ridge: Tensor, state: Tensor | None, dot: str
    ) -> tuple[Tensor, ...]:
        chunks = Chunks(q, k, k, log_decay, beta, None, dot)
        g, states = chunks.carried(state)
        x = torch.empty_like(chunks.q, dtype=torch.float32)
        _solve(chunks, dot, chunks.q, g, states, ridge, x)
        return x, g, states

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, k, log_decay, beta, ridge, _, ctx.dot = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # zeros for what is kept would be as large as that
        ctx.save_for_backward(k, log_decay, beta, ridge, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        k, log_decay, beta, ridge, x, g, states = ctx.saved_tensors
        chunks = Chunks(x, k, k, log_decay, beta, None, products(x))
        d_q, pull = torch.empty_like(k), torch.empty_like(k)
        d_ridge = chunks.empty(*chunks.grid, x.shape[-1])
        _solve(chunks, ctx.dot, d_x.contiguous(), g, states, ridge, d_q, pull, d_ridge)
        needed = ctx.needs_input_grad
        found: Any = chunks.backward(pull, None, g, states, decays=needed[2], first=needed[5])
        _, d_k, d_v, d_log, d_beta, _, d_state = found
        d_state = None if d_state is None else d_state.mT  # -y x^T, where the recurrence has x (-y)^T
        return d_q, d_k + d_v, d_log, d_beta, d_ridge.sum(dim=1).view(ridge.shape), d_state, None


def _solve(
    chunks: Chunks, dot: str, q: Tensor, g: Tensor, states: Tensor, ridge: Tensor, x: Tensor,
    pull: Tensor | None = None, d_ridge: Tensor | None = None,
) -> None:  # fmt: skip
    """Write (G + L)^-1 q to x; backward, where the queries of `chunks` are the answers, the other two as well."""
    time, count, dk, *_ = chunks.sizes
    # What is not there is not written either, but a kernel takes no None beside tensors of other calls.
    solved[chunks.grid](
        q, chunks.q, chunks.k, chunks.strength, g, states, ridge.contiguous(), x, x if pull is None else pull,
        g if d_ridge is None else d_ridge, time, count, dk, STEPS * dk, TOLERANCE[dot] ** 2, CHUNK=chunks.chunk,
        DK=chunks.key, BACK=pull is not None, DOT=dot, num_stages=1, num_warps=8 if chunks.key > 64 else 4,
    )  # fmt: skip


@triton.jit(do_not_specialize=LENGTHS)
def solved(q, answers, k, b, g, states, ridge, x, pull, d_ridge, time, chunks, dk, most, tolerance,
           CHUNK: tl.constexpr, DK: tl.constexpr, BACK: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """Write (G + L)^-1 q of a chunk to x. BACK: q are gradients of the `answers`; -x is written too, and the chunk's
    share of the ridge's gradient."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, rows, channels = chunk * CHUNK, head * time * dk, tl.arange(0, DK)
    root = tl.rsqrt(tl.load(ridge + head * dk + channels, mask=channels < dk, other=1.0))
    residual = tile(q + rows, at, time, dk, CHUNK, DK) * root[None, :]
    keys = tile(k + rows, at, time, dk, CHUNK, DK) * root[None, :]
    state = columns(states + (head * chunks + chunk) * dk * dk, 0, dk, dk, 0, DK, DK) * (root[:, None] * root[None, :])
    own = sums(g + head * chunks * CHUNK, at, dk, CHUNK, DK, False)
    weights = tl.trans(per_token(b, head, at, time, CHUNK)) * tl.exp(tl.minimum(own - tl.trans(own), 0.0))
    weights, since = tl.where(below(CHUNK, False), weights, 0.0), tl.exp(own)
    found, along, left = tl.zeros((CHUNK, DK), dtype=tl.float32), residual, tl.sum(residual * residual, axis=1)
    goal, step = tolerance * left, 0
    while (step < most) & (tl.max(tl.where(left > goal, 1, 0), axis=0) > 0):
        # From shared memory at every step: as registers that are kept from step to step they would not fit.
        own_keys, before = once(keys, most - step), once(state, most - step)
        met = dot(along, tl.trans(own_keys), DOT) * weights
        image = along + since * dot(along, before, DOT) + dot(met, own_keys, DOT)
        rise = tl.sum(along * image, axis=1)
        stride = tl.where(rise > 0.0, left / rise, 0.0)[:, None]
        found += stride * along
        residual -= stride * image
        now = tl.sum(residual * residual, axis=1)
        along = residual + tl.where(left > 0.0, now / left, 0.0)[:, None] * along
        left = now
        step += 1
    # What no step could solve has no answer, and not one of zeros.
    found = tl.where((left == left)[:, None], found * root[None, :], float("nan"))
    put(x + rows, found, at, time, dk, CHUNK, DK)
    if BACK:
        put(pull + rows, -found, at, time, dk, CHUNK, DK)
        gradient = -tl.sum(found * tile(answers + rows, at, time, dk, CHUNK, DK), axis=0)
        put_vector(d_ridge, gradient, head * chunks + chunk, dk, DK)
