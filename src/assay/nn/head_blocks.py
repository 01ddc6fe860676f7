"""The kernels around a recurrence share this: grids over (models, sequences, heads, time, d), sums for parameters.

A program of a forward pass has a block of rows of one head; each of the n of a backward pass has every n-th block of a
model's tokens, for one head, and sums of its own for the parameters.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

Heads = Float[Tensor, "batch heads time d"]
Inner = Float[Tensor, "batch time channels"]
Channels = Float[Tensor, " channels"]
NUMBERS = 1024
"""Numbers in a block of rows of one head."""
PROGRAMS = 256
"""Programs that share the tokens of one head of a model in the backward pass."""


class Kernels(Function):
    """An operation by kernels derives from this. Its first inputs are tensors, or None; options follow, without a
    gradient."""

    own: ClassVar[int]
    """How many inputs have an axis of models in front: it is of size 1, but in a bank."""
    shared: ClassVar[int] = 0
    """How many tensors after them have none, and are all models'."""

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors = cls.own + cls.shared
        ctx.save_for_backward(*inputs[:tensors])
        ctx.options = inputs[tensors:]

    @classmethod
    def vmap(cls, info: Any, dims: Sequence[int | None], *inputs: Any) -> tuple[Any, Any]:
        """Take a bank's axis as that of the models. No tensor has one yet but of size 1."""

        def moved(x: Tensor | None, dim: int | None) -> Tensor | None:
            if x is None:
                return None
            return (x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)).squeeze(1)

        found = cls.apply(*map(moved, inputs[: cls.own], dims[: cls.own]), *inputs[cls.own :])
        if isinstance(found, Tensor):
            return found[:, None], 0
        return tuple(x[:, None] for x in found), (0,) * len(found)


def dense(x: Tensor) -> Tensor:
    """Return x with neighbouring channels; any other strides will do."""
    return x if x.stride(-1) == 1 else x.contiguous()


def block_of(channels: int, *, numbers: int = NUMBERS, most: int = 64) -> tuple[int, int]:
    """Return the width and the rows of a block of so many numbers."""
    width = triton.next_power_of_2(channels)
    return width, min(most, max(1, numbers // width))


def sizes(heads: Tensor) -> tuple[int, ...]:
    return tuple(heads.shape[1:])


def grid(heads: Tensor) -> tuple[int, int]:
    models, sequences, count, time, _ = heads.shape
    return models * sequences * count, triton.cdiv(time, block_of(heads.shape[-1])[1])


def shared(heads: Tensor, kinds: int) -> tuple[tuple[int, int, int], Tensor]:
    """Return the grid of a backward pass, and room for sums of so many kinds of parameters."""
    models, sequences, count, time, d = heads.shape
    programs = min(PROGRAMS, sequences * triton.cdiv(time, block_of(d)[1]))
    return (programs, count, models), torch.empty(models, programs, kinds, count * d, device=heads.device)


def totals(sums: Tensor) -> tuple[Tensor, ...]:
    return sums.sum(dim=1).unbind(1)


@triton.jit
def nothing(COUNT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return so many blocks of zeros."""
    found = ()
    for _ in tl.static_range(COUNT):
        found = also(found, tl.zeros((ROWS, WIDTH), dtype=tl.float32))
    return found


@triton.jit
def also(found, x):
    """Return a tuple with one more. Triton unpacks none inside another."""
    return found + (x,)  # noqa: RUF005


@triton.jit
def load(x, at, inside):
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + e^-x): the square of 1 / sqrt is one instruction more than that, a division is eight."""
    over = tl.rsqrt(1.0 + tl.exp2(-1.4426950408889634 * x))
    return over * over


@triton.jit
def places(sequence, head, rows, own, heads, time, d):
    """Return which numbers of a block of rows of a head are there, and where they lie by head and by token."""
    inside = (rows < time)[:, None] & (own < d)[None, :]
    by_head = ((sequence * heads + head) * time + rows)[:, None] * d + own[None, :]
    by_token = (sequence * time + rows)[:, None] * (heads * d) + head * d + own[None, :]
    return inside, by_head, by_token


@triton.jit
def normed(o, inside, d, eps):
    """Return the rows of o with mean 0 and variance 1, and 1 / their deviation."""
    centred = tl.where(inside, o - tl.sum(o, axis=1)[:, None] / d, 0.0)
    over = tl.rsqrt(tl.sum(centred * centred, axis=1) / d + eps)[:, None]
    return centred * over, over
