"""Triton kernels compute the general recurrence of nn/scan.py on CUDA, forward and backward: rwkv7's scan.

The kernels are those of nn/general_kernels.py, under the rules of nn/triton.py: fixed shapes, no tuning, products
with float32 sums, a bank's models as more sequences.
"""

from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn import chunk_forward, general_kernels
from assay.nn.chunk_sizes import MOST_REGISTERS, KernelScan, chunk_of, kept_in, keys_of, warps_of, ways, width_of
from assay.nn.scan import Keys, PerChannel, Scanned, Start, Values

KEYS = 32
"""Key channels that a program with scores or gradients of keys has at a time, at most."""


def general_scan(
    q: Keys, k: Keys, v: Values, a: Keys, b: Keys, log_decay: PerChannel, *, state: Start = None, scale: float = 1.0
) -> Scanned:
    """Return what `scan.general_loop` gives."""
    return _General.run(q, k, v, a, b, log_decay=log_decay, state=state, scale=scale)


class _General(KernelScan):
    """Computes (q, k, v, a, b, log w, S) -> (o, S after the last token); heads and sequences are one axis of the
    kernels."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor, state: Tensor | None, dot: str
    ) -> tuple[Tensor, ...]:
        return _Chunks(q, k, v, a, b, dot).forward(log_decay.contiguous(), state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor | None, d_last: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        q, k, v, a, b, *kept = ctx.saved_tensors
        d_o = torch.zeros_like(v) if d_o is None else d_o.contiguous()
        *gradients, d_first = _Chunks(q, k, v, a, b, ctx.dot).backward(d_o, d_last, *kept)
        return (*gradients, d_first if ctx.needs_input_grad[6] else None, None)


class _Chunks:
    """Holds the sizes for one set of tensors, and launches the kernels; sequences x heads is a grid's first axis."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, dot: str) -> None:
        self.q, self.k, self.v, self.a, self.b = (x.contiguous() for x in (q, k, v, a, b))
        self.shape, dk, dv = v.shape, k.shape[-1], v.shape[-1]
        self.heads, time = v.shape[0] * v.shape[1], v.shape[2]
        chunk, key = chunk_of(time), width_of(dk)
        chunks = triton.cdiv(time, chunk)
        self.chunks, self.sizes = chunks, (time, chunks, dk, dv)
        self.block = min(64, width_of(dv))
        self.narrow = ways(self.heads, dv, self.block)
        self.kinds: dict[str, Any] = {"CHUNK": chunk, "DK": key, "DOT": dot}
        # A program of one chunk has loops too short to fetch ahead in: see nn/triton.py.
        self.alone: dict[str, Any] = {**self.kinds, "BV": self.block, "num_stages": 1}
        self.keys = keys_of(dk, KEYS)
        blocks = {**self.alone, "DK": self.keys, "num_warps": warps_of(self.keys, 64), "maxnreg": MOST_REGISTERS}
        # Chunks whose rows meet at one point, and those whose blocks are merged.
        self.launches = [{**blocks, "LEVELS": levels} for levels in (0, chunk.bit_length() - 1)]
        # Few programs of few channels fetch the next chunk ahead; many fill a GPU by themselves, if they take no room.
        self.carried: dict[str, Any] = {**self.kinds, "BV": self.narrow, "num_stages": 2 if self.narrow < 64 else 1}
        self.empty = partial(torch.empty, device=v.device, dtype=torch.float32)
        # What only products read again is kept as they take it.
        self.kept = partial(torch.empty, device=v.device, dtype=kept_in(dot))
        self.matrices = (*self.shape[:2], chunks, chunk, chunk)

    def forward(self, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, ...]:
        time, chunks, dk, dv = self.sizes
        grid, chunk, key = (self.heads, chunks), self.kinds["CHUNK"], self.kinds["DK"]
        g = self.empty(*self.shape[:2], chunks * chunk, dk)
        chunk_forward.cumulate[grid](log_decay, g, time, chunks, dk, chunk, key)
        ba, (bk, solved, qk, qa) = self.empty(self.matrices), (self.kept(self.matrices) for _ in range(4))
        for launch in self.launches:
            general_kernels.overlaps_general[grid](self.a, self.b, self.k, g, ba, bk, *self.sizes, KEY=key, **launch)
        chunk_forward.solve[grid](ba, solved, chunk, EXACT=solved.dtype == torch.float32, num_warps=1)
        fresh, moved, y = self.kept(self.shape), self.kept(self.k.shape), self.kept(self.shape)
        general_kernels.unwritten_general[grid](self.b, self.v, g, bk, solved, fresh, moved, *self.sizes, **self.alone)
        states, last = self.kept(*self.shape[:2], chunks + 1, dk, dv), self.empty(*self.shape[:2], dk, dv)
        general_kernels.carry_general[(self.heads, triton.cdiv(dv, self.narrow))](
            self.k, self.v, self.a, g, fresh, moved, y, states, last if state is None else state.contiguous(), last,
            *self.sizes, GIVEN=state is not None, **self.carried,
        )  # fmt: skip
        o = torch.empty(self.shape, device=self.v.device, dtype=self.v.dtype)
        wide = min(2 * self.block, width_of(dv))
        for launch in self.launches:
            general_kernels.outputs_general[(*grid, triton.cdiv(dv, wide))](
                self.q, self.k, self.a, self.v, y, g, states, qk, qa, o, *self.sizes, KEY=key, **launch | {"BV": wide}
            )
        return o, last, g, states, y, moved, solved, bk, qk, qa

    def backward(
        self, d_o: Tensor, d_last: Tensor | None, g: Tensor, states: Tensor, y: Tensor, moved: Tensor, solved: Tensor,
        bk: Tensor, qk: Tensor, qa: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Return the gradients of q, k, v, a, b, the log decay and the state before the first token."""
        _, chunks, dk, dv = self.sizes
        grid = (self.heads, chunks)
        d_states, d_first = self.kept(*self.shape[:2], chunks, dk, dv), self.empty(*self.shape[:2], dk, dv)
        dy, dz, d_v = self.kept(self.shape), self.kept(self.shape), torch.empty_like(self.v)
        general_kernels.carry_back_general[(self.heads, triton.cdiv(dv, self.narrow))](
            self.q, self.a, g, qa, moved, d_o, dy, d_states, d_first if d_last is None else d_last.contiguous(),
            d_first, *self.sizes, GIVEN=d_last is not None, **self.carried,
        )  # fmt: skip
        general_kernels.gradients_of_values_general[(*grid, triton.cdiv(dv, self.block))](
            self.k, g, solved, bk, qk, d_o, dy, d_states, dz, d_v, *self.sizes, **self.alone
        )
        d_q, d_k, d_a, d_b = (torch.empty_like(x) for x in (self.q, self.k, self.a, self.b))
        d_log = self.empty(self.k.shape)
        for launch in self.launches:
            general_kernels.gradients_of_keys_general[(*grid, triton.cdiv(dk, self.keys))](
                self.q, self.k, self.a, self.b, self.v, y, g, states, d_states, d_o, dz, d_q, d_k, d_a, d_b, d_log,
                *self.sizes, **launch,
            )  # fmt: skip
        return d_q, d_k, d_v, d_a, d_b, d_log, d_first
