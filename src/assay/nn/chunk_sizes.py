"""What the launches of the chunked recurrences share: precision, room, the cut of value channels, a bank's models."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from assay.core.errors import UserError

BUSY = 128
"""Programs that keep a GPU busy."""
LARGEST_KEY = 128
"""Channels of a key that a program can hold."""


def products(q: Tensor) -> str:
    """Return how Triton multiplies: three products of TF32, near float32, where the run asks for that."""
    return "tf32x3" if q.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"


def room(k: Tensor, v: Tensor) -> Tensor:
    """Return the state before the first token, zeros."""
    return v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1], dtype=torch.float32)


def check_keys(k: Tensor) -> None:
    if k.shape[-1] > LARGEST_KEY:
        raise UserError(
            f"--backend triton has keys of at most {LARGEST_KEY} channels, and these have {k.shape[-1]}: "
            "choose more heads, or leave it out."
        )


def ways(heads: int, values: int, block: int) -> int:
    """Return the value channels of a program that goes from chunk to chunk. They go their own ways there: few long
    sequences are cut finer."""
    while block > 16 and heads * triton.cdiv(values, block) < BUSY:
        block //= 2
    return block


def folded(
    function: Any, models: int, dims: Sequence[int | None], inputs: Sequence[Any]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Run an autograd function under vmap with the models of a bank folded into the sequences."""

    def flat(x: Any, dim: int | None) -> Any:
        if not isinstance(x, Tensor):
            return x
        x = x.expand(models, *x.shape) if dim is None else x.movedim(dim, 0)
        return x.flatten(0, 1)

    found = function.apply(*map(flat, inputs, dims))
    return tuple(x.unflatten(0, (models, -1)) for x in found), (0,) * len(found)
