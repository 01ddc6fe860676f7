"""Triton kernels compute the outer recurrence of nn/scan.py on CUDA, forward and backward: the scan of
gated_linear_attn, of retention, mamba2, mlstm and mesa.

The kernels are those of nn/outer_kernels.py and, with a normaliser, of nn/normed_kernels.py, under the rules of
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

from assay.nn import normed_kernels, outer_kernels
from assay.nn.chunk_sizes import BUSY, Folded, check_keys, chunk_of, kept_in, products, remember, width_of
from assay.nn.scan import Decay, Keys, PerChannel, PerHead, Scanned, Start, Values

BLOCK = {"written": 64, "pulled": 64, "outputs": 64, "gradients": 64}
"""Value channels that a program holds at a time, at most."""
WARPS = {"written": 4, "pulled": 4, "outputs": 4, "gradients": 4}
WIDE_WARPS = {"written": 4, "pulled": 4, "outputs": 8, "gradients": 8}
"""Warps of a program, and those of one with keys of more than 64 channels, or of more than 32 where blocks are
merged."""
REGISTERS = {"gradients": 168}
"""Registers of a thread at most, by kernel, with one block of values in bf16 and 4 warps: fewer let more programs run
side by side, and may be spilled."""
MOST_REGISTERS = 255
"""The most registers that a thread can have, for `gradients` where its products are three of TF32 each. Left to choose,
the compiler gave it 32 of them, and each thread spilled 14 kB."""
NORMED_REGISTERS = 128
"""Registers of a thread of `normed_gradients` that multiplies bf16: two programs share a multiprocessor, and hardly any
register is spilled."""
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
    """Return what `scan.outer_loop` gives, with k_t times the strength of its head and token, and with the head's share
    `skip` of v_t added to o_t."""
    check_keys(k)
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
    check_keys(k)
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
        return (*_NormedChunks(q, k, v, log_decay, strength, None, ctx.dot).gradients(d_o, d_n, *kept), None)


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
        self.by_head = (self.heads, triton.cdiv(dv, min(BLOCK["written"], width_of(dv))))
        self.through = self.key <= NARROW and math.prod(self.by_head) >= MANY
        self.kinds = {"CHANNEL": self.channel, "DOT": dot}
        self.more = {"STRONG": strength is not None, "SKIP": skip is not None}
        # Chunks whose rows meet at one point, and those whose blocks are merged.
        self.levels = (0, self.chunk.bit_length() - 1) if self.channel else (0,)
        self.empty = partial(torch.empty, device=v.device, dtype=torch.float32)
        self.states = partial(torch.empty, (*self.shape[:2], self.chunks, dk, dv), device=v.device, dtype=kept_in(dot))

    def options(self, kernel: str, levels: int = 0) -> dict[str, Any]:
        """Return the shapes of a kernel's tiles. A program of one chunk has loops too short to fetch ahead in, which
        would take the room of other programs."""
        block = min(BLOCK[kernel], width_of(self.shape[-1]))
        wide = self.key * (2 if levels else 1) > 64
        warps = (WIDE_WARPS if wide else WARPS)[kernel]
        one = block == width_of(self.shape[-1]) and self.kinds["DOT"] == "bf16" and warps == 4 and not levels
        few = {"maxnreg": REGISTERS[kernel]} if one and kernel in REGISTERS else {}
        few = {"maxnreg": MOST_REGISTERS} if (kernel, self.kinds["DOT"]) == ("gradients", "tf32x3") else few
        shape = {"CHUNK": self.chunk, "DK": self.key, "BV": block}
        return {**shape, "num_warps": warps, "num_stages": 1, **few, **self.kinds}

    def write(self, g: Tensor, states: Tensor, n_states: Tensor) -> None:
        # What is not there is not read either, but a kernel takes no None beside tensors of other calls.
        outer_kernels.written[self.grid](
            self.k, self.v, g if self.strength is None else self.strength, self.log_decay, g, states, n_states,
            *self.sizes, STRONG=self.more["STRONG"], NORMED=self.normed, **self.options("written"),
        )  # fmt: skip

    def pull(self, g: Tensor, d_o: Tensor, d_n: Tensor, d_states: Tensor, d_n_states: Tensor) -> None:
        outer_kernels.pulled[self.grid](
            self.q, g, d_o, d_n, d_states, d_n_states, *self.sizes, NORMED=self.normed, **self.options("pulled")
        )

    def passed(
        self, states: Tensor, n_states: Tensor, g: Tensor, given: Tensor | None, left: Tensor | None, *, back: bool
    ) -> None:
        _, chunks, dk, dv, _ = self.sizes
        width, (ends, which) = width_of(dv), _ends(g, given, left)
        rows = max(1, PASSED // width)
        outer_kernels.passed[(self.heads, triton.cdiv(dk, rows))](
            states, n_states, g, *ends, chunks, dk, dv, CHUNK=self.chunk, ROWS=rows, DV=width, STAGES=AHEAD,
            CHANNEL=self.channel, BACK=back, **which, NORMED=self.normed, num_warps=1,
        )  # fmt: skip

    def carried(self, state: Tensor | None = None, last: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return G, and the states before every chunk; that after the last is written to `last`."""
        _, chunks, dk, _, _ = self.sizes
        g, states = self.empty(*self.shape[:2], chunks * self.chunk, dk if self.channel else 1), self.states()
        if self.through:
            ends, which = _ends(g, state, last)
            strength = g if self.strength is None else self.strength
            outer_kernels.carried[self.by_head](
                self.k, self.v, strength, self.log_decay, g, states, *ends, *self.sizes, STRONG=self.more["STRONG"],
                **which, **self.options("written") | {"num_stages": STAGES},
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
            outer_kernels.carried_back[self.by_head](
                self.q, g, d_o, d_states, *ends, *self.sizes, **which,
                **self.options("pulled") | {"num_stages": STAGES},
            )  # fmt: skip
        else:
            self.pull(g, d_o, g, d_states, g)
            self.passed(d_states, g, g, d_last, d_first, back=True)
        return d_states

    def forward(self, state: Tensor | None) -> tuple[Tensor, ...]:
        _, _, dk, dv, _ = self.sizes
        last = self.empty(*self.shape[:2], dk, dv)
        g, states = self.carried(state, last)
        strength, skip = (g if x is None else x for x in (self.strength, self.skip))
        o = torch.empty_like(self.v)
        for levels in self.levels:
            outer_kernels.outputs[self.grid](
                self.q, self.k, self.v, strength, skip, g, states, o, *self.sizes, **self.more, LEVELS=levels,
                **self.options("outputs", levels),
            )  # fmt: skip
        return o, last, g, states

    def backward(
        self, d_o: Tensor | None, d_last: Tensor | None, g: Tensor, states: Tensor, *, decays: bool, first: bool
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of all inputs; that of the log decay only if `decays`, of the state only if `first`."""
        d_o = torch.zeros_like(self.v) if d_o is None else d_o.contiguous()
        time, _, dk, dv, group = self.sizes
        d_first = self.empty(*self.shape[:2], dk, dv) if first else None
        d_states = self.carried_back(g, d_o, d_last, d_first)
        strength, skip = (g if x is None else x for x in (self.strength, self.skip))
        d_q, d_k = (x.new_empty(*self.shape[:2], time, dk) for x in (self.q, self.k))
        d_v, d_log = torch.empty_like(self.v), torch.empty_like(self.log_decay) if decays else None
        d_strength = None if self.strength is None else torch.empty_like(self.strength)
        d_skip = None if self.skip is None else self.empty(*self.shape[:2], self.chunks)
        found = (d_q, d_k, d_v, *(g if x is None else x for x in (d_log, d_strength, d_skip)))
        for levels in self.levels:
            outer_kernels.gradients[self.grid](
                self.q, self.k, self.v, strength, skip, g, states, d_states, d_o, *found, *self.sizes, **self.more,
                LEVELS=levels, DECAYS=decays, **self.options("gradients", levels),
            )  # fmt: skip
        if group > 1:
            d_q, d_k = (x.unflatten(1, (-1, group)).sum(dim=2) for x in (d_q, d_k))
        return d_q, d_k, d_v, d_log, d_strength, None if d_skip is None else d_skip.sum(dim=-1), d_first


def _ends(g: Tensor, given: Tensor | None, left: Tensor | None) -> tuple[tuple[Tensor, Tensor], dict[str, bool]]:
    """Return what a sequence begins with and what gets its end, and which of them there is; G stands for the other."""
    ends = (g if given is None else given.contiguous(), g if left is None else left)
    return ends, {"GIVEN": given is not None, "LEFT": left is not None}


class _NormedChunks(Chunks):
    """Launches the kernels with a normaliser: decays are per head, and there are strengths."""

    normed = True

    def read(self, kernel: str) -> dict[str, Any]:
        """Return the shapes of tiles of what reads states. A thread holds few numbers of a tile."""
        key, value = min(64, self.key), min(BLOCK[kernel], width_of(self.shape[-1]))
        warps = 8 if self.chunk * max(key, value) >= 4096 else 4
        dot = self.kinds["DOT"]
        few = {"maxnreg": NORMED_REGISTERS} if (kernel, dot, warps) == ("gradients", "bf16", 8) else {}
        return {"CHUNK": self.chunk, "BK": key, "BV": value, "DOT": dot, "num_warps": warps, "num_stages": 1, **few}

    def forward(self, state: Tensor | None) -> tuple[Tensor, ...]:
        _, chunks, dk, _, _ = self.sizes
        g, states = self.empty(*self.shape[:2], chunks * self.chunk, 1), self.states()
        n, n_states = self.empty(self.shape[:3]), self.empty(*self.shape[:2], chunks, dk)
        self.write(g, states, n_states)
        self.passed(states, n_states, g, state, None, back=False)
        o = torch.empty_like(self.v)
        normed_kernels.normed_outputs[self.grid](
            self.q, self.k, self.v, self.strength, g, states, n_states, o, n, *self.sizes[:4], **self.read("outputs")
        )
        return o, n, g, states, n_states

    def gradients(
        self, d_o: Tensor | None, d_n: Tensor | None, g: Tensor, states: Tensor, n_states: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the gradients of all inputs."""
        d_o = torch.zeros_like(self.v) if d_o is None else d_o.contiguous()
        d_n = torch.zeros_like(self.log_decay) if d_n is None else d_n.contiguous()
        d_states, d_n_states = self.states(), torch.empty_like(n_states)
        self.pull(g, d_o, d_n, d_states, d_n_states)
        self.passed(d_states, d_n_states, g, None, None, back=True)
        found = [torch.empty_like(x) for x in (self.q, self.k, self.v, self.log_decay, self.strength)]  # type: ignore[arg-type]
        normed_kernels.normed_gradients[self.grid](
            self.q, self.k, self.v, self.strength, g, states, n_states, d_states, d_n_states, d_o, d_n, *found,
            *self.sizes[:4], **self.read("gradients"),
        )  # fmt: skip
        return tuple(found)
