"""What modules hold, counted from their shapes: the parts of `Study.memory`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from assay.nn import scan

TRAINED = 16
"""Bytes of a float32 weight with its gradient and Adam's two moments."""


def stored(module: nn.Module) -> int:
    """Count the numbers in a module's parameters and buffers."""
    return sum(tensor.numel() for tensor in (*module.parameters(), *module.buffers()))


def passing(module: nn.Module, x: Tensor) -> int:
    """Bytes of the inputs and outputs of a forward pass's largest operation, on the meta device; 0 for a module that
    depends on values."""
    try:
        with scan.as_written(), torch.device("meta"), torch.no_grad(), _Largest() as found:  # type: ignore[no-untyped-call]
            module(x)
    except Exception:  # noqa: BLE001 - a forward pass without values may fail in any way
        return 0
    return found.bytes


class _Largest(TorchDispatchMode):
    bytes: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        held = {id(part): part.nbytes for part in tree_leaves((args, given)) if isinstance(part, Tensor)}
        self.bytes = max(self.bytes, sum(held.values()))
        return given
