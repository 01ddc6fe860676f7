"""What the kernels around a recurrence share: grids over (models, sequences, heads, time, d), sums for parameters.

A program of a forward pass has a block of rows of one head; one of a backward pass has every so-manieth block of a
model's tokens, for one head, and sums of its own for the parameters.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 1024
"""Numbers in a block of rows of one head."""
PROGRAMS = 256
"""Programs that share the tokens of one head of a model in the backward pass."""


def of_a_bank(models: int, dims: Sequence[int | None], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Take a bank's axis as that of the models. No tensor has one yet but of size 1."""
    pairs = zip(inputs, dims, strict=True)
    return [(x.expand(models, *x.shape) if dim is None else x.movedim(dim, 0)).squeeze(1) for x, dim in pairs]


def block(heads: Tensor) -> tuple[int, int]:
    """Return the width and the rows of a block."""
    width = triton.next_power_of_2(heads.shape[-1])
    return width, min(64, max(1, NUMBERS // width))


def sizes(heads: Tensor) -> tuple[int, int, int, int]:
    return heads.shape[1], heads.shape[2], heads.shape[3], heads.shape[4]


def grid(heads: Tensor) -> tuple[int, int]:
    models, sequences, count, time, _ = heads.shape
    return models * sequences * count, triton.cdiv(time, block(heads)[1])


def shared(heads: Tensor, kinds: int) -> tuple[tuple[int, int, int], Tensor]:
    """Return the grid of a backward pass, and room for sums of so many kinds of parameters."""
    models, sequences, count, time, d = heads.shape
    programs = min(PROGRAMS, sequences * triton.cdiv(time, block(heads)[1]))
    return (programs, count, models), torch.empty(models, programs, kinds, count * d, device=heads.device)


def totals(sums: Tensor) -> tuple[Tensor, ...]:
    return sums.sum(dim=1).unbind(1)


@triton.jit
def load(x, at, inside):
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


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
