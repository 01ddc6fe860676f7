"""These operations stay whole under vmap.

A bank runs one model's forward pass under vmap. Where torch has no rule for an operation it takes it apart (a fused
norm into twelve kernels, three times as slow) or goes wrong (attention's gradients: misaligned, or not numbers). So an
operation may bring its own form for many models.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_under_vmap = False


@contextmanager
def kept_whole() -> Iterator[None]:
    """Run operations that have a form for many models in that form, inside the block; for use under vmap."""
    global _under_vmap
    before, _under_vmap = _under_vmap, True
    try:
        yield
    finally:
        _under_vmap = before


def has_kernels(device: torch.device) -> bool:
    """Return whether assay.nn.kernels can be used there: Triton comes with torch on CUDA, but not on every system."""
    return device.type == "cuda" and find_spec("triton") is not None


def whole(alone: Callable[..., Tensor], together: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Return alone(*tensors); or, under vmap, together(*tensors with a first axis of models) for all models at once."""
    if not _under_vmap:
        return alone(*tensors)
    return _Together.apply(together, *tensors)  # type: ignore[no-untyped-call]


class _Together(Function):
    """Its vmap rule is the operation itself, which autograd then sees as it would any other."""

    @staticmethod
    def forward(together: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        raise RuntimeError("kept_whole() is for use under vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], together: Callable[..., Tensor], *tensors: Tensor
    ) -> tuple[Tensor, int]:
        models = info.batch_size
        given = zip(tensors, in_dims[1:], strict=True)
        return together(*(x.expand(models, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in given)), 0
