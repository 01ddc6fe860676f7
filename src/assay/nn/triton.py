"""Triton kernels of our own compute the recurrences of nn/scan.py on CUDA, forward and backward: `--backend triton`.

    recurrence                                   mixers it serves
    outer (nn/outer.py), either decay            gated_linear_attn; retention, mamba2, mlstm, mesa
    delta, without a decay or with either        delta_net, gated_delta_net, delta_product; kda
    general (nn/general.py)                      rwkv7

The kernels (of the delta rule: nn/chunk_forward.py, nn/chunk_backward.py) have a few fixed shapes and are never tuned, so that a new
length or batch costs one compilation at most; they can be captured in a CUDA graph, and the models of a bank are
more sequences. Products have float32 sums: of bf16 where queries come as that, else of TF32; where inputs are float32
and the run's matmul precision is "highest", each is three of TF32, which is near float32. Keys of more than 128
channels are an error.
"""

from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn import chunk_backward, chunk_forward
from assay.nn.chunk_sizes import KernelScan, ways
from assay.nn.general import general_scan as general_scan
from assay.nn.outer import outer_scan as outer_scan
from assay.nn.scan import Decay, Keys, PerHead, Scanned, Start, Values


def delta_scan(
    q: Keys, k: Keys, v: Values, beta: PerHead, log_decay: Decay | None = None, *, state: Start = None,
    scale: float = 1.0,
) -> Scanned:  # fmt: skip
    """Return what `scan.delta_loop` gives."""
    log_decay = torch.zeros_like(beta) if log_decay is None else log_decay
    return _Scan.run(q, k, v, beta, log_decay=log_decay, state=state, scale=scale)


class _Scan(KernelScan):
    """(q, k, v, b, log a, S) -> (o, S after the last token); heads and sequences are one axis of the kernels."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, log_decay: Tensor, state: Tensor, dot: str
    ) -> tuple[Tensor, ...]:
        return _Chunks(q, k, v, beta, log_decay, dot).forward(state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor | None, d_last: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        q, k, v, beta, log_decay, *kept = ctx.saved_tensors
        chunks = _Chunks(q, k, v, beta, log_decay, ctx.dot)
        return (*chunks.backward(d_o, d_last, *kept, decays=ctx.needs_input_grad[4]), None)


class _Chunks:
    """Sizes and launches of the kernels for one set of tensors. Sequences x heads is a grid's first axis, the only one
    on which CUDA allows more than 65,535 programs."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, log_decay: Tensor, dot: str) -> None:
        self.q, self.k, self.v, self.log_decay = (x.contiguous() for x in (q, k, v, log_decay))
        self.beta = None if beta is None else beta.contiguous()
        self.shape, (self.dk, self.dv) = v.shape, (k.shape[-1], v.shape[-1])
        self.heads, self.time = v.shape[0] * v.shape[1], v.shape[2]
        self.channel, self.delta = log_decay.ndim == 4, beta is not None
        chunk = 16 if self.time <= 16 else 64
        self.chunks, self.chunk = triton.cdiv(self.time, chunk), chunk
        self.block = min(64, max(16, triton.next_power_of_2(self.dv)))
        # Scores with a decay per channel are dear: one program has all value channels of a chunk.
        self.wide = 2 * self.block if self.channel and self.dv > self.block else self.block
        self.blocks = triton.cdiv(self.dv, self.wide)
        self.narrow = ways(self.heads, self.dv, self.block)
        self.ways = triton.cdiv(self.dv, self.narrow)
        key = max(16, triton.next_power_of_2(self.dk))
        self.sizes = (self.time, self.chunks, self.dk, self.dv)
        self.shapes = {"CHUNK": chunk, "DK": key}
        # A program of one chunk has loops too short to fetch ahead in, which would take the room of other programs.
        self.alone = {"num_stages": 1}
        self.way: dict[str, Any] = {"CHANNEL": self.channel, "DOT": dot}
        self.merged: dict[str, Any] = {"LEVELS": chunk.bit_length() - 1, **self.way, **self.alone}
        if self.channel and chunk * key >= 4096:
            self.merged["num_warps"] = 8  # five tiles of a chunk are held while blocks are merged
        self.carried: dict[str, Any] = {**self.shapes, **self.way, "BV": self.narrow, "DELTA": self.delta}
        # Three stages of keys of 128 channels are more than the shared memory of a Hopper GPU.
        self.carried["num_stages"] = 2 if key == 128 or self.narrow == self.block == 64 else 3
        self.empty = partial(torch.empty, device=v.device, dtype=torch.float32)

    def forward(self, state: Tensor) -> tuple[Tensor, ...]:
        g, u, fresh, erased, solved = self.prepared()
        states = self.empty(*self.shape[:2], self.chunks + 1, self.dk, self.dv)
        states[:, :, 0] = state
        written = fresh if self.delta else self.v
        chunk_forward.carry[(self.heads, self.ways)](self.k, written, g, erased, u, states, *self.sizes, **self.carried)
        o = torch.empty(self.shape, device=self.v.device, dtype=self.v.dtype)
        chunk_forward.outputs[(self.heads, self.chunks, self.blocks)](
            self.q, self.k, u, g, states, o, *self.sizes, BV=self.wide, **self.shapes, **self.merged
        )
        kept = (g, states, u, fresh, erased, solved) if self.delta else (g, states)
        return (o, states[:, :, -1].clone(), *kept)

    def prepared(self) -> tuple[Tensor, ...]:
        """Return G, room for u (v itself without the delta rule), and fresh, erased and T under it."""
        time, chunks, dk, _ = self.sizes
        padded = chunks * self.chunk
        width = dk if self.channel else 1
        g = self.empty(*self.shape[:2], padded, width)
        chunk_forward.cumulate[(self.heads, chunks)](
            self.log_decay, g, time, chunks, width, self.chunk, self.shapes["DK"] if self.channel else 1
        )
        if not self.delta:
            return g, self.v, self.v, self.k, self.k  # the last three are not read
        overlap, solved = (self.empty(*self.shape[:2], chunks, self.chunk, self.chunk) for _ in range(2))
        chunk_forward.overlaps[(self.heads, chunks)](
            self.k, self.beta, g, overlap, time, chunks, dk, **self.shapes, **self.merged
        )
        chunk_forward.solve[(self.heads, chunks)](overlap, solved, self.chunk, num_warps=1)
        fresh, erased, u = self.empty(self.shape), self.empty(*self.shape[:3], dk), self.empty(self.shape)
        chunk_forward.unwritten[(self.heads, chunks)](
            self.k, self.v, self.beta, g, solved, fresh, erased, *self.sizes, BV=self.block, **self.shapes, **self.way,
            **self.alone,
        )  # fmt: skip
        return g, u, fresh, erased, solved

    def backward(
        self, d_o: Tensor | None, d_last: Tensor | None, g: Tensor, states: Tensor, *kept: Tensor, decays: bool
    ) -> tuple[Tensor | None, ...]:
        """Return the slopes of all inputs; that of the log decay, which needs a pass of its own, only if `decays`."""
        d_o = torch.zeros_like(self.v) if d_o is None else d_o.contiguous()
        u, fresh, erased, solved = kept if self.delta else (self.v, self.v, self.k, self.k)
        d_states = torch.empty_like(states)
        d_states[:, :, -1] = 0.0 if d_last is None else d_last
        merged = {**self.shapes, **self.merged}
        # Slopes that no later kernel reads have the dtype of their inputs at once.
        du = self.empty(self.shape) if self.delta else torch.empty_like(self.v)
        if self.delta:
            chunk_backward.slopes_of_writes[(self.heads, self.chunks, self.blocks)](
                self.q, self.k, g, d_o, du, d_states, *self.sizes, CARRIED=False, BV=self.wide, **merged
            )
        chunk_backward.carry_back[(self.heads, self.ways)](
            self.q, self.k, g, erased, d_o, du, d_states, *self.sizes, **self.carried
        )
        if not self.delta:
            chunk_backward.slopes_of_writes[(self.heads, self.chunks, self.blocks)](
                self.q, self.k, g, d_o, du, d_states, *self.sizes, CARRIED=True, BV=self.wide, **merged
            )
        dq = self.empty(self.q.shape) if decays else torch.empty_like(self.q)
        d_right = self.empty(self.k.shape) if decays or self.delta else torch.empty_like(self.k)
        chunk_backward.slopes_of_keys[(self.heads, self.chunks)](
            self.q, self.k, u, g, states, d_states, d_o, dq, d_right, *self.sizes, BV=self.block, **merged
        )
        d_k = torch.empty_like(self.k) if decays or self.delta else d_right
        d_erasing, d_beta, d_v = d_right, None, du
        if self.delta:
            d_v, d_erasing, d_beta = self.through_solution(
                g, states, du, d_right, fresh, erased, solved, None if decays else d_k
            )
        if not decays:
            return dq, d_k, d_v, d_beta, None, d_states[:, :, 0]
        d_log, d_q = torch.empty_like(self.log_decay), torch.empty_like(self.q)
        chunk_backward.slopes_of_decay[(self.heads, self.chunks)](
            self.q, self.k, g, dq, d_erasing, d_right, states, d_states, d_log, d_q, d_k, *self.sizes, **self.shapes,
            BV=self.block, CHANNEL=self.channel, DELTA=self.delta, **self.alone,
        )  # fmt: skip
        return d_q, d_k, d_v, d_beta, d_log, d_states[:, :, 0]

    def through_solution(
        self, g: Tensor, states: Tensor, du: Tensor, d_right: Tensor, fresh: Tensor, erased: Tensor, solved: Tensor,
        d_k: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return dv, the slope of the keys that erase, and db; adds to the slope of the keys that are written, and
        writes the sum of both to `d_k` if there is one."""
        time, chunks, dk, _ = self.sizes
        d_v, d_beta = torch.empty_like(self.v), self.empty(self.shape[:3])
        d_erasing = self.empty(self.k.shape)
        d_a = torch.empty_like(solved)
        chunk_backward.slopes_of_solution[(self.heads, chunks)](
            self.v, self.k, self.beta, g, solved, fresh, erased, du, states, d_v, d_erasing, d_a, d_beta, *self.sizes,
            BV=self.block, **self.shapes, **self.way, **self.alone,
        )  # fmt: skip
        chunk_backward.slopes_of_overlaps[(self.heads, chunks)](
            self.k, self.beta, g, d_a, d_erasing, d_right, d_beta, d_right if d_k is None else d_k, time, chunks, dk,
            JOINED=d_k is not None, **self.shapes, **self.merged,
        )  # fmt: skip
        return d_v, d_erasing, d_beta
