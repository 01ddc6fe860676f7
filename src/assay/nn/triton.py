"""Triton kernels of our own compute the recurrences of nn/scan.py on CUDA, forward and backward: `--backend triton`.

    recurrence                                   mixers it serves
    outer (nn/outer.py), either decay            gated_linear_attn; retention, mamba2, mlstm, mesa
    delta, without a decay or with either        delta_net, gated_delta_net, delta_product; kda
    general (nn/general.py)                      rwkv7
    least squares (nn/least_squares_kernels.py)  mesa

The kernels (those of the delta rule: nn/chunk_forward.py, nn/chunk_backward.py) have a few fixed shapes and are never
tuned, so that a new length or batch costs one compilation at most; they can be captured in a CUDA graph, and the models
of a bank are more sequences. Products have float32 sums: of bf16 where queries come as that, else of TF32; where inputs
are float32 and the run's matmul precision is "highest", each is three of TF32, which is near float32. Keys of more than
128 channels are an error, or of more than 256 where the outer recurrence has a decay per head.
"""

from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn import chunk_backward, chunk_forward
from assay.nn.chunk_sizes import MOST_REGISTERS, KernelScan, chunk_of, kept_in, keys_of, warps_of, ways, width_of
from assay.nn.general import general_scan as general_scan
from assay.nn.least_squares_kernels import ridge_scan as ridge_scan
from assay.nn.outer import outer_scan as outer_scan
from assay.nn.scan import Decay, Keys, PerHead, Scanned, Start, Values

NEAR_WARPS = 4
"""Warps of a program of a chunk whose rows meet at one point."""
KEYS = 32
"""Key channels of a program that makes their gradients with a decay for each, at most."""
REGISTERS = 168
"""Registers of a thread at most, where that is faster: three programs run side by side. More may be needed for values
of more than 64 channels, or for other products than those of bf16."""


def delta_scan(
    q: Keys, k: Keys, v: Values, beta: PerHead, log_decay: Decay | None = None, *, state: Start = None,
    scale: float = 1.0,
) -> Scanned:  # fmt: skip
    """Return what `scan.delta_loop` gives."""
    log_decay = torch.zeros_like(beta) if log_decay is None else log_decay
    return _Scan.run(q, k, v, beta, log_decay=log_decay, state=state, scale=scale)


class _Scan(KernelScan):
    """Computes (q, k, v, b, log a, S) -> (o, S after the last token); heads and sequences are one axis of the
    kernels."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor | None, dot: str
    ) -> tuple[Tensor, ...]:
        return _Chunks(q, k, v, beta, log_decay, dot).forward(state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor | None, d_last: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        q, k, v, beta, log_decay, *kept = ctx.saved_tensors
        chunks = _Chunks(q, k, v, beta, log_decay, ctx.dot)
        *gradients, d_first = chunks.backward(d_o, d_last, *kept, decays=ctx.needs_input_grad[4])
        return (*gradients, d_first if ctx.needs_input_grad[5] else None, None)


class _Chunks:
    """Holds the sizes for one set of tensors, and launches the kernels. Sequences x heads is a grid's first axis, the
    only one on which CUDA allows more than 65,535 programs."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, dot: str) -> None:
        self.q, self.k, self.v, self.beta, self.log_decay = (x.contiguous() for x in (q, k, v, beta, log_decay))
        self.shape, dk, dv = v.shape, k.shape[-1], v.shape[-1]
        self.heads, time = v.shape[0] * v.shape[1], v.shape[2]
        self.channel = log_decay.ndim == 4
        self.chunk, key = chunk_of(time), width_of(dk)
        self.chunks = triton.cdiv(time, self.chunk)
        self.block = min(64, width_of(dv))
        # Scores with a decay per channel are dear: one program has all value channels of a chunk, up to 128.
        self.wide = 2 * self.block if self.channel and dv > self.block else self.block
        self.blocks = triton.cdiv(dv, self.wide)
        self.narrow = ways(self.heads, dv, self.block)
        self.ways = triton.cdiv(dv, self.narrow)
        self.grid, self.sizes = (self.heads, self.chunks), (time, self.chunks, dk, dv)
        self.shapes = {"CHUNK": self.chunk, "DK": key}
        self.keys = keys_of(dk, KEYS) if self.channel else key
        # A program of one chunk has loops too short to fetch ahead in, which would take the room of other programs.
        self.alone: dict[str, Any] = {**self.shapes, "CHANNEL": self.channel, "DOT": dot, "num_stages": 1}
        if dot == "tf32x3":
            self.alone["maxnreg"] = MOST_REGISTERS
        # Chunks whose rows meet at one point, and those whose blocks are merged, which hold five tiles meanwhile.
        self.launches: list[dict[str, Any]] = [{"LEVELS": 0, "num_warps": NEAR_WARPS, **self.alone}]
        if self.channel:
            warps = 8 if self.chunk * key >= 4096 else 4
            self.launches.append({"LEVELS": self.chunk.bit_length() - 1, "num_warps": warps, **self.alone})
        # More stages of keys of 128 channels are more than the shared memory of a Hopper GPU.
        stages = 2 if key == 128 or self.narrow == self.block == 64 else 3
        stages = 1 if key == 128 and dot == "tf32x3" else stages
        self.carried: dict[str, Any] = {**self.alone, "BV": self.narrow, "num_stages": stages}
        self.empty = partial(torch.empty, device=v.device, dtype=torch.float32)
        # What only products read again is kept as they take it.
        self.kept = partial(torch.empty, device=v.device, dtype=kept_in(dot))

    def few(self) -> dict[str, int]:
        """Return the registers that a kernel may have that holds a tile of values too."""
        plenty = self.channel or self.alone["DOT"] != "bf16" or max(self.shapes["DK"], self.shape[-1]) > 64
        return {} if plenty else {"maxnreg": REGISTERS}

    def finer(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return options for blocks of keys, with products of TF32 for those of bf16 where a decay per channel gets its
        gradient: it is a difference of sums in which nearly all cancels, but for the operands' rounding."""
        dot = options["DOT"]
        fine = {"bf16": "fine", "rounded": "tf32"}.get(dot, dot) if self.channel else dot
        registers = REGISTERS if dot == "bf16" and self.channel and self.keys <= KEYS else MOST_REGISTERS
        warps = warps_of(self.keys, KEYS) if self.channel else NEAR_WARPS
        return {**options, "DK": self.keys, "DOT": fine, "num_warps": warps, "maxnreg": registers}

    def forward(self, state: Tensor | None) -> tuple[Tensor, ...]:
        _, chunks, dk, dv = self.sizes
        g, fresh, erased, solved = self.prepared()
        u, states = self.kept(self.shape), self.kept(*self.shape[:2], chunks + 1, dk, dv)
        last = self.empty(*self.shape[:2], dk, dv)
        chunk_forward.carry[(self.heads, self.ways)](
            self.k, fresh, g, erased, u, states, last if state is None else state.contiguous(), last, *self.sizes,
            GIVEN=state is not None, **self.carried,
        )  # fmt: skip
        o = torch.empty_like(self.v)
        width = self.keys if self.channel and self.shapes["DK"] > 64 else self.shapes["DK"]
        for launch in self.launches:
            chunk_forward.outputs[(*self.grid, self.blocks)](
                self.q, self.k, u, g, states, o, *self.sizes, BV=self.wide, KEY=self.shapes["DK"],
                **launch | {"DK": width},
            )  # fmt: skip
        return o, last, g, states, u, fresh, erased, solved

    def prepared(self) -> tuple[Tensor, ...]:
        """Return G, fresh, erased and T."""
        time, chunks, dk, _ = self.sizes
        width = dk if self.channel else 1
        g = self.empty(*self.shape[:2], chunks * self.chunk, width)
        chunk_forward.cumulate[self.grid](
            self.log_decay, g, time, chunks, width, self.chunk, self.shapes["DK"] if self.channel else 1
        )
        matrices = (*self.shape[:2], chunks, self.chunk, self.chunk)
        overlap, solved = self.empty(matrices), self.kept(matrices)
        for launch in self.launches:
            chunk_forward.overlaps[self.grid](self.k, self.beta, g, overlap, time, chunks, dk, **launch)
        chunk_forward.solve[self.grid](overlap, solved, self.chunk, EXACT=solved.dtype == torch.float32, num_warps=1)
        fresh, erased = self.kept(self.shape), self.kept(*self.shape[:3], dk)
        chunk_forward.unwritten[self.grid](
            self.k, self.v, self.beta, g, solved, fresh, erased, *self.sizes, BV=self.block, **self.alone
        )
        return g, fresh, erased, solved

    def backward(
        self, d_o: Tensor | None, d_last: Tensor | None, g: Tensor, states: Tensor, u: Tensor, fresh: Tensor,
        erased: Tensor, solved: Tensor, *, decays: bool,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        """Return the gradients of all inputs; that of the log decay only if `decays`."""
        d_o = torch.zeros_like(self.v) if d_o is None else d_o.contiguous()
        _, chunks, dk, dv = self.sizes
        du, d_states = self.kept(self.shape), self.kept(*self.shape[:2], chunks, dk, dv)
        d_first = self.empty(*self.shape[:2], dk, dv)
        for launch in self.launches:
            chunk_backward.gradients_of_writes[(*self.grid, self.blocks)](
                self.q, self.k, g, d_o, du, *self.sizes, BV=self.wide, **launch
            )
        warps = warps_of(self.shapes["DK"] if self.channel else 0, 64)
        chunk_backward.carry_back[(self.heads, self.ways)](
            self.q, self.k, g, erased, d_o, du, d_states, d_first if d_last is None else d_last.contiguous(), d_first,
            *self.sizes, GIVEN=d_last is not None, **self.carried | {"num_warps": warps},
        )  # fmt: skip
        d_v, d_strength, d_a = torch.empty_like(self.v), self.empty(self.shape[:3]), torch.empty_like(solved)
        # A decay's gradient is a difference with this, which needs all its digits.
        d_erasing = (self.empty if decays else self.kept)(self.k.shape)
        chunk_backward.gradients_of_solution[self.grid](
            self.v, self.k, self.beta, g, solved, fresh, erased, du, states, d_v, d_erasing, d_a, d_strength,
            *self.sizes, BV=self.block, **self.alone, **self.few(),
        )  # fmt: skip
        blocks = triton.cdiv(dk, self.keys)
        d_q, d_k, d_beta = torch.empty_like(self.q), torch.empty_like(self.k), self.empty(blocks, *self.shape[:3])
        d_log = torch.empty_like(self.log_decay) if decays else None
        for launch in self.launches:
            chunk_backward.gradients_of_keys[(*self.grid, blocks)](
                self.q, self.k, self.beta, u, g, states, d_states, d_o, d_a, d_erasing, d_strength, d_q, d_k, d_beta,
                d_beta if d_log is None else d_log, *self.sizes, BV=self.block, DECAYS=decays, **self.finer(launch),
            )  # fmt: skip
        return d_q, d_k, d_v, d_beta.sum(dim=0) if blocks > 1 else d_beta[0], d_log, d_first
