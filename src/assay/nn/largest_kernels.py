"""A Triton kernel keeps the largest numbers of each row; imported on CUDA alone.

torch's `topk` reads a row in memory some twenty times and sorts what it found, and a code is made of that by scattering
it into zeros. Here a row is read once, its threshold found bit by bit while it lies in registers, and written once.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd import Function

LONGEST = 8192
"""Numbers of a row that a program holds."""
LEAST = tl.constexpr(-(2**31))
"""Below the key of every number."""


def fits(z: Float[Tensor, "models rows units"]) -> bool:
    return z.dtype == torch.float32 and z.shape[2] <= LONGEST


def largest(
    z: Float[Tensor, "models rows units"],
    count: Int[Tensor, " models"],
    among: Bool[Tensor, "models units"] | None = None,
) -> Float[Tensor, "models rows units"]:
    """Return what nn.largest does. Of equal numbers the first are kept. A 0 gets no gradient, kept or not."""
    return _Largest.apply(z, count, among)


class _Largest(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, count: Tensor, among: Tensor | None) -> Tensor:
        z = z.contiguous()
        models, rows, units = z.shape
        width = max(32, triton.next_power_of_2(units))
        kept = torch.empty_like(z)
        open_ = z if among is None else among.contiguous().view(torch.uint8)
        masked, warps = among is not None, max(1, width // 512)
        _largest[(models * rows,)](z, count, open_, kept, rows, units, masked, width, num_warps=warps)
        ctx.save_for_backward(kept)
        return kept

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return torch.where(kept != 0, gradient, 0.0), None, None


@triton.jit
def _largest(z, count, among, kept, rows, units, MASKED: tl.constexpr, WIDTH: tl.constexpr):
    row, unit = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    model = row // rows
    open_ = unit < units
    x = tl.load(z + row * units + unit, mask=open_, other=0.0)
    if MASKED:
        open_ = open_ & (tl.load(among + model * units + unit, mask=open_, other=0) != 0)
    bits = x.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # in the order of the numbers
    key = tl.where(open_, key, LEAST)
    most = tl.load(count + model).to(tl.int32)
    # The largest threshold that `most` keys reach: its sign first, then bit by bit.
    threshold = tl.where(tl.sum((key >= 0).to(tl.int32)) >= most, 0, LEAST)
    for place in range(31):
        higher = threshold + (1 << (30 - place))
        threshold = tl.where(tl.sum((key >= higher).to(tl.int32)) >= most, higher, threshold)
    above, equal = key > threshold, (key == threshold) & open_
    left = most - tl.sum(above.to(tl.int32))
    first = tl.cumsum(equal.to(tl.int32), axis=0) <= left
    tl.store(kept + row * units + unit, tl.where(above | (equal & first), x, 0.0), mask=unit < units)
