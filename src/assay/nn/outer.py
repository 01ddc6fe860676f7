"""Triton kernels compute the outer recurrence of nn/scan.py on CUDA, forward and backward: the scan of
gated_linear_attn, of retention, mamba2, mlstm and mesa.

The kernels are those of nn/outer_kernels.py and, with a decay per head, of nn/by_head_kernels.py, under the rules of
nn/triton.py: fixed shapes, no tuning, a bank's models as more sequences.
"""

import math
from functools import partial
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.nn import by_head_kernels, outer_kernels
from assay.nn.chunk_sizes import (
    BUSY,
    LARGEST_KEY,
    MOST_REGISTERS,
    WIDEST_KEY,
    Folded,
    check_keys,
    chunk_of,
    kept_in,
    keys_of,
    products,
    remember,
    warps_of,
    width_of,
)
from assay.nn.scan import Decay, Keys, PerChannel, PerHead, Scanned, Start, Values

BLOCK, KEYS, WRITTEN = 64, 32, 128
"""Value channels that a program holds at a time, and key channels of one that makes their gradients and of one that
writes a state or pulls at it, at most."""
REGISTERS = 168
"""Registers of a thread that makes gradients and multiplies bf16: three programs share a multiprocessor."""
PASSED, AHEAD = 1024, 4
"""Numbers of a state that a warp carries from chunk to chunk, about, and how many chunks ahead it loads."""
MANY, NARROW, STAGES = 2 * BUSY, 64, 3
"""Programs, one for each head of a sequence and block of its values, from which on each goes through all chunks by
itself; the channels of a key up to which its state fits into registers; and how many chunks it loads at a time. A state
is not rounded to bf16 between such chunks: models of a bank have other last digits than a few of them alone."""


def outer_scan(
    q: Keys, k: Keys, v: Values, log_decay: Decay, *, state: Start = None, scale: float = 1.0,
    strength: PerHead | None = None, skip: Float[Tensor, " heads"] | None = None,
) -> Scanned:  # fmt: skip
    """Return what `scan.outer_loop` gives; with a decay per head k_t may come times the strength of its head and token,
    and the head's share `skip` of v_t be added to o_t."""
    if log_decay.ndim == 4:
        assert strength is None and skip is None, "strengths and skips go with a decay per head"
    check_keys(k, LARGEST_KEY if log_decay.ndim == 4 else WIDEST_KEY)
    (sequences, heads), q = v.shape[:2], q if scale == 1.0 else scale * q
    # Whole before it is saved for the gradients, so that it is not copied there once more.
    log_decay = log_decay.float().expand(sequences, heads, *log_decay.shape[2:]).contiguous()
    skip = None if skip is None else skip.float().expand(sequences, heads)
    state = None if state is None else state.float()
    with torch.autocast(v.device.type, enabled=False):
        o, last, *_ = _Scan.apply(q, k, v, log_decay, strength, skip, state, products(q))  # type: ignore[no-untyped-call]
    return o, last


def normed_scan(
    q: PerChannel, k: PerChannel, v: Values, log_decay: PerHead, *, strength: PerHead
) -> tuple[Values, PerHead]:
    """Return what `outer_scan` gives at each token, and what it would give, in float32, for a value of 1."""
    check_keys(k, WIDEST_KEY)
    with torch.autocast(v.device.type, enabled=False):
        o, n, *_ = _Normed.apply(q, k, v, log_decay.float(), strength.float(), products(q))  # type: ignore[no-untyped-call]
    return o, n


class _Scan(Folded):
    """Computes (q, k, v, log a, b, D, S) -> (o, S after the last token); heads and sequences are one axis of the
    kernels."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor | None, skip: Tensor | None,
        state: Tensor | None, dot: str,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        return Chunks(q, k, v, log_decay, strength, skip, dot).forward(state)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        remember(ctx, inputs, output, 6)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor | None, d_last: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        q, k, v, log_decay, strength, skip, g, states = ctx.saved_tensors
        chunks, needed = Chunks(q, k, v, log_decay, strength, skip, ctx.dot), ctx.needs_input_grad
        return (*chunks.backward(d_o, d_last, g, states, decays=needed[3], first=needed[6]), None)


class _Normed(Folded):
    """Computes (q, k, v, log a, b) -> (o, n), from a state of zeros."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor, dot: str) -> tuple[Tensor, ...]:
        return _NormedChunks(q, k, v, log_decay, strength, None, dot).forward(None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        remember(ctx, inputs, output, 5)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor | None, d_n: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        q, k, v, log_decay, strength, *kept = ctx.saved_tensors
        return (*_NormedChunks(q, k, v, log_decay, strength, None, ctx.dot).normed_backward(d_o, d_n, *kept), None)


class Chunks:
    """Holds the sizes for one set of tensors, and launches the kernels. Sequences x heads is a grid's first axis, the
    only one on which CUDA allows more than 65,535 programs."""

    normed = False

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor | None, skip: Tensor | None, dot: str
    ) -> None:
        shared = max(q.shape[1], k.shape[1])
        self.q, self.k = (x.expand(len(v), shared, *x.shape[2:]).contiguous() for x in (q, k))
        self.v, self.log_decay = v.contiguous(), log_decay.contiguous()
        self.strength, self.skip = (None if x is None else x.contiguous() for x in (strength, skip))
        self.shape, (time, dk, dv) = v.shape, (*k.shape[2:], v.shape[-1])
        self.heads, self.chunk, self.key = v.shape[0] * v.shape[1], chunk_of(time), width_of(dk)
        self.chunks, self.channel = triton.cdiv(time, self.chunk), log_decay.ndim == 4
        self.sizes = (time, self.chunks, dk, dv, v.shape[1] // shared)
        self.grid = (self.heads, self.chunks)
        self.block = min(BLOCK, width_of(dv))
        self.by_values = (self.heads, triton.cdiv(dv, self.block))
        self.through = self.key <= NARROW and math.prod(self.by_values) >= MANY
        self.dot, self.registers = dot, REGISTERS if dot == "bf16" else MOST_REGISTERS
        self.more = {"STRONG": strength is not None, "SKIP": skip is not None, "NORMED": self.normed}
        # Chunks whose rows meet at one point, and those whose blocks are merged.
        self.levels = (0, self.chunk.bit_length() - 1) if self.channel else (0,)
        self.empty = partial(torch.empty, device=v.device, dtype=torch.float32)
        self.states = partial(torch.empty, (*self.shape[:2], self.chunks, dk, dv), device=v.device, dtype=kept_in(dot))

    def options(self, width: int, warps: int, **more: Any) -> dict[str, Any]:
        """Return the shapes of tiles of so many key channels. A program of one chunk has loops too short to fetch ahead
        in, which would take the room of other programs."""
        shape = {"CHUNK": self.chunk, "DK": width, "BV": self.block, "DOT": self.dot}
        return shape | {"num_warps": warps, "num_stages": 1} | more

    def scored(self, levels: int) -> dict[str, Any]:
        """Return options of kernels with scores, which hold all channels of a key, and another tile where blocks are
        merged."""
        warps = warps_of(self.key * (2 if levels else 1), 64)
        return self.options(self.key, warps, LEVELS=levels, maxnreg=MOST_REGISTERS)

    def read(self) -> dict[str, Any]:
        """Return options of kernels of by_head_kernels.py. A thread holds few numbers of a tile."""
        shape = {"CHUNK": self.chunk, "BK": min(64, self.key), "BV": self.block, "DOT": self.dot}
        return {**shape, **self.more, "num_warps": 4, "num_stages": 1}

    def write(self, g: Tensor, states: Tensor, n_states: Tensor) -> None:
        # What is not there is not read either, but a kernel takes no None beside tensors of other calls.
        width = keys_of(self.sizes[2], WRITTEN)
        outer_kernels.written[(*self.grid, triton.cdiv(self.sizes[2], width))](
            self.k, self.v, g if self.strength is None else self.strength, self.log_decay, g, states, n_states,
            *self.sizes, CHANNEL=self.channel, STRONG=self.more["STRONG"], NORMED=self.more["NORMED"],
            **self.options(width, 4),
        )  # fmt: skip

    def pull(self, g: Tensor, d_o: Tensor, d_n: Tensor, d_states: Tensor, d_n_states: Tensor) -> None:
        width = keys_of(self.sizes[2], WRITTEN)
        outer_kernels.pulled[(*self.grid, triton.cdiv(self.sizes[2], width))](
            self.q, g, d_o, d_n, d_states, d_n_states, *self.sizes, CHANNEL=self.channel, NORMED=self.more["NORMED"],
            **self.options(width, 4),
        )  # fmt: skip

    def passed(
        self, states: Tensor, n_states: Tensor, g: Tensor, given: Tensor | None, left: Tensor | None, *, back: bool
    ) -> None:
        _, chunks, dk, dv, _ = self.sizes
        width, (ends, which) = width_of(dv), _ends(g, given, left)
        rows = max(1, PASSED // width)
        outer_kernels.passed[(self.heads, triton.cdiv(dk, rows))](
            states, n_states, g, *ends, chunks, dk, dv, CHUNK=self.chunk, ROWS=rows, DV=width, STAGES=AHEAD,
            CHANNEL=self.channel, BACK=back, **which, NORMED=self.more["NORMED"], num_warps=1,
        )  # fmt: skip

    def carried(self, state: Tensor | None = None, last: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return G, and the states before every chunk; that after the last is written to `last`."""
        _, chunks, dk, _, _ = self.sizes
        g, states = self.empty(*self.shape[:2], chunks * self.chunk, dk if self.channel else 1), self.states()
        if self.through:
            ends, which = _ends(g, state, last)
            strength = g if self.strength is None else self.strength
            outer_kernels.carried[self.by_values](
                self.k, self.v, strength, self.log_decay, g, states, *ends, *self.sizes, CHANNEL=self.channel,
                STRONG=self.more["STRONG"], **which, **self.options(self.key, 4, num_stages=STAGES),
            )  # fmt: skip
        else:
            self.write(g, states, g)
            self.passed(states, g, g, state, last, back=False)
        return g, states

    def carried_back(self, g: Tensor, d_o: Tensor, d_last: Tensor | None, d_first: Tensor | None) -> Tensor:
        """Return the gradients of the states after every chunk; that of the first state is written to `d_first`."""
        d_states = self.states()
        if self.through:
            ends, which = _ends(g, d_last, d_first)
            outer_kernels.carried_back[self.by_values](
                self.q, g, d_o, d_states, *ends, *self.sizes, CHANNEL=self.channel, **which,
                **self.options(self.key, 4, num_stages=STAGES),
            )  # fmt: skip
        else:
            self.pull(g, d_o, g, d_states, g)
            self.passed(d_states, g, g, d_last, d_first, back=True)
        return d_states

    def forward(self, state: Tensor | None) -> tuple[Tensor, ...]:
        _, _, dk, dv, _ = self.sizes
        last = self.empty(*self.shape[:2], dk, dv)
        g, states = self.carried(state, last)
        o = torch.empty_like(self.v)
        if self.channel:
            for levels in self.levels:
                outer_kernels.outputs[self.grid](
                    self.q, self.k, self.v, g, states, o, *self.sizes, **self.scored(levels)
                )
        else:
            self.outputs(g, states, g, o, g)
        return o, last, g, states

    def outputs(self, g: Tensor, states: Tensor, n_states: Tensor, o: Tensor, n: Tensor) -> None:
        strength, skip = (g if x is None else x for x in (self.strength, self.skip))
        by_head_kernels.outputs_by_head[self.grid](
            self.q, self.k, self.v, strength, skip, g, states, n_states, o, n, *self.sizes, **self.read()
        )

    def backward(
        self, d_o: Tensor | None, d_last: Tensor | None, g: Tensor, states: Tensor, *, decays: bool, first: bool
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of all inputs; that of the log decay only if `decays`, of the state only if `first`."""
        d_o = torch.zeros_like(self.v) if d_o is None else d_o.contiguous()
        time, _, dk, dv, group = self.sizes
        d_first = self.empty(*self.shape[:2], dk, dv) if first else None
        d_states = self.carried_back(g, d_o, d_last, d_first)
        d_q, d_k = (x.new_empty(*self.shape[:2], time, dk) for x in (self.q, self.k))
        d_v, d_log = torch.empty_like(self.v), torch.empty_like(self.log_decay) if decays else None
        d_strength = None if self.strength is None else torch.empty_like(self.strength)
        d_skip = None if self.skip is None else self.empty(*self.shape[:2], self.chunks)
        if self.channel:
            width = keys_of(dk, KEYS)
            registers = self.registers if width <= KEYS else MOST_REGISTERS
            for levels in self.levels:
                outer_kernels.gradients_of_values[self.grid](
                    self.q, self.k, g, d_states, d_o, d_v, *self.sizes, **self.scored(levels)
                )
                outer_kernels.gradients_of_keys[(*self.grid, triton.cdiv(dk, width))](
                    self.q, self.k, self.v, g, states, d_states, d_o, d_q, d_k, g if d_log is None else d_log,
                    *self.sizes, DECAYS=decays,
                    **self.options(width, warps_of(width, KEYS), LEVELS=levels, maxnreg=registers),
                )  # fmt: skip
        else:
            self.gradients(g, states, g, d_states, g, d_o, g, d_q, d_k, d_v, d_log, d_strength, d_skip)
        if group > 1:
            d_q, d_k = (x.unflatten(1, (-1, group)).sum(dim=2) for x in (d_q, d_k))
        return d_q, d_k, d_v, d_log, d_strength, None if d_skip is None else d_skip.sum(dim=-1), d_first

    def gradients(
        self, g: Tensor, states: Tensor, n_states: Tensor, d_states: Tensor, d_n_states: Tensor, d_o: Tensor,
        d_n: Tensor, *found: Tensor | None,
    ) -> None:  # fmt: skip
        """Write the gradients of q, k, v, log a, b and D, with a decay per head; that of log a only where it is."""
        strength, skip, *outputs = (g if x is None else x for x in (self.strength, self.skip, *found))
        by_head_kernels.gradients_by_head[self.grid](
            self.q, self.k, self.v, strength, skip, g, states, n_states, d_states, d_n_states, d_o, d_n, *outputs,
            *self.sizes, DECAYS=found[3] is not None, maxnreg=self.registers, **self.read(),
        )  # fmt: skip


def _ends(g: Tensor, given: Tensor | None, left: Tensor | None) -> tuple[tuple[Tensor, Tensor], dict[str, bool]]:
    """Return what a sequence begins with and what gets its end, and which of them there is; G stands for the other."""
    ends = (g if given is None else given.contiguous(), g if left is None else left)
    return ends, {"GIVEN": given is not None, "LEFT": left is not None}


class _NormedChunks(Chunks):
    """Launches the kernels with a normaliser: decays are per head, and there are strengths."""

    normed = True

    def forward(self, state: Tensor | None) -> tuple[Tensor, ...]:
        _, chunks, dk, _, _ = self.sizes
        g, states = self.empty(*self.shape[:2], chunks * self.chunk, 1), self.states()
        n, n_states = self.empty(self.shape[:3]), self.empty(*self.shape[:2], chunks, dk)
        self.write(g, states, n_states)
        self.passed(states, n_states, g, state, None, back=False)
        o = torch.empty_like(self.v)
        self.outputs(g, states, n_states, o, n)
        return o, n, g, states, n_states

    def normed_backward(
        self, d_o: Tensor | None, d_n: Tensor | None, g: Tensor, states: Tensor, n_states: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the gradients of all inputs."""
        d_o = torch.zeros_like(self.v) if d_o is None else d_o.contiguous()
        d_n = torch.zeros_like(self.log_decay) if d_n is None else d_n.contiguous()
        d_states, d_n_states = self.states(), torch.empty_like(n_states)
        self.pull(g, d_o, d_n, d_states, d_n_states)
        self.passed(d_states, d_n_states, g, None, None, back=True)
        found = [torch.empty_like(x) for x in (self.q, self.k, self.v, self.log_decay, self.strength)]  # type: ignore[arg-type]
        self.gradients(g, states, n_states, d_states, d_n_states, d_o, d_n, *found, None)
        return tuple(found)
