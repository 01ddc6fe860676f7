"""The size of a module is its parameters, and its cost the floating-point operations per token.

    nn.Linear(24, 32) on a sequence of 10 vectors:  800 parameters, 1,536 FLOPs per token (24 x 32 multiply-adds of 2)

Both are columns beside a score: what it was bought with.
"""

import copy

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from assay.nn import scan


def parameters(module: nn.Module) -> int:
    """Return the number of parameters, trainable or frozen, a shared one counted once."""
    return sum(parameter.numel() for parameter in module.parameters())


def flops_per_token(module: nn.Module, length: int, d_in: int) -> float:
    """Return the FLOPs of a forward pass of one sequence (1, length, d_in), divided by its length: matrix products and
    convolutions, a multiply-add as 2, no elementwise work. A copy is run, on the CPU and in evaluation mode."""
    twin = copy.deepcopy(module).eval().requires_grad_(True)
    try:
        return _count(twin.to("meta"), length, d_in) / length  # shapes are enough, and no kernel is fused
    except Exception:  # noqa: BLE001 - a forward that makes tensors of its own, or looks at values, may fail in any way
        return _count(copy.deepcopy(module).cpu().eval().requires_grad_(True), length, d_in) / length


def _count(module: nn.Module, length: int, d_in: int) -> int:
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    x = torch.zeros(1, length, d_in, dtype=like.dtype, device=like.device)
    # Fused forms are opaque to the counter: nn.MultiheadAttention's fast path, which needs a forward without
    # gradients, scaled_dot_product_attention's CPU kernel, and (on real tensors) oneDNN's and cuDNN's recurrences.
    with (
        scan.as_written(),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        module(x)
    return counter.get_total_flops()
