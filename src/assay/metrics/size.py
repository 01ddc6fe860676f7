"""The size of a module is its parameters, and its cost the floating-point operations per token.

    nn.Linear(24, 32) on a sequence of 10 vectors:  800 parameters, 1,536 FLOPs per token (24 x 32 multiply-adds of 2)

Both are columns beside a score: what it was bought with.
"""

import copy
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from assay.nn import scan


def parameters(module: nn.Module) -> int:
    """Return the number of parameters, trainable or frozen, a shared one counted once."""
    return sum(parameter.numel() for parameter in module.parameters())


def flops_per_token(module: nn.Module, length: int, d_in: int) -> float:
    """Return the FLOPs of a forward pass of one sequence (1, length, d_in), divided by its length: matrix products and
    convolutions, a multiply-add as 2, no elementwise work. A copy is run, on the CPU and in evaluation mode; what would
    take a second there, with its shapes alone: importing torch's kernels for shapes takes longer than a short run."""
    twin = copy.deepcopy(module).eval().requires_grad_(True)
    if length <= 1024 and parameters(module) * length <= 2**28:
        return _count(twin.cpu(), length, d_in) / length
    try:
        return _count(twin.to("meta"), length, d_in) / length  # shapes are enough, and no kernel is fused
    except Exception:  # noqa: BLE001 - a forward that makes tensors of its own, or looks at values, may fail in any way
        return _count(copy.deepcopy(module).cpu().eval().requires_grad_(True), length, d_in) / length


def _count(module: nn.Module, length: int, d_in: int) -> int:
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    x = torch.zeros(1, length, d_in, dtype=like.dtype, device=like.device)
    # Fused forms are opaque to the counter: nn.MultiheadAttention's fast path, which needs a forward without
    # gradients, scaled_dot_product_attention's CPU kernel, and (on real tensors) oneDNN's recurrences.
    with (
        warnings.catch_warnings(action="ignore"),  # oneDNN's flags are restored all together, those of Intel GPUs too
        scan.as_written(),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False),
        _Counter() as counter,
    ):
        module(x)
    return counter.total


class _Counter(TorchDispatchMode):
    """Counts with torch's own formulas what its FlopCounterMode counts, which imports torch's compiler first."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping it is what imports it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        with self:
            parts = func.decompose(*args, **given)
        if parts is not NotImplemented:
            return parts
        out = func(*args, **given)
        if formula := flop_registry.get(func.overloadpacket):
            self.total += formula(*args, **given, out_val=out)
        return out
