"""A Triton kernel makes the cosines and sines of rotary positions; nn/head_kernels.py turns heads by them."""

import math

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from assay.nn.rotary import BASE

ANGLES = 256
"""Angles that a program makes."""


def angles(time: int, d: int, device: torch.device) -> tuple[Float[Tensor, "time half"], Float[Tensor, "time half"]]:
    """Return what `rotary.turns` does in float32: one kernel in the place of eight, each of which takes longer to start
    than to run."""
    cos, sin = (torch.empty(time, d // 2, device=device) for _ in range(2))
    _angles[(triton.cdiv(cos.numel(), ANGLES),)](cos, sin, cos.numel(), d // 2, math.log2(BASE), ANGLES)
    return cos, sin


@triton.jit(do_not_specialize=["numbers"])
def _angles(cos, sin, numbers, half, OCTAVES: tl.constexpr, BLOCK: tl.constexpr):
    """Angles are float64: those of late positions are large, and their digits behind the point are few."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    angle = (at // half).to(tl.float64) * tl.exp2((at % half).to(tl.float64) / half * -OCTAVES)
    tl.store(cos + at, tl.cos(angle).to(tl.float32), mask=at < numbers)
    tl.store(sin + at, tl.sin(angle).to(tl.float32), mask=at < numbers)
