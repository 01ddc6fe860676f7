"""JumpReLU (Rajamanoharan et al. 2024) has a threshold for each unit, above which it fires and keeps its whole size.

    a_j = z_j 1[z_j > t_j],   |x - x'|^2 + l0 sum_j 1[z_j > t_j]

Steps have no gradient; that with respect to the threshold is taken from the inputs within half a bandwidth of it:
d/dt 1[z > t] = -1[|z - t| < w/2] / w. Decoder rows are brought back to length 1 after each step.

Differs from the paper: the bandwidth and the start of the thresholds are .1, where the paper has .001 for both, to suit
short training; the penalty is not warmed up. z is what comes before any ReLU, where the paper's listing rectifies
first: thresholds are above 0, so that the code is the same, but one below w/2 is not moved by every row in which its
unit is off. b_dec starts at the mean of the training rows.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import Codes, DecoderModule, Rows, Terms, TrainedCoder, steady


class Jump(torch.autograd.Function):
    """z 1[z > t], with the gradient of an open gate to z; and 1[z > t], with none."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, t: Tensor, width: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(z, t)
        ctx.width = width
        return z * (z > t), (z > t).to(z.dtype)

    @staticmethod
    def backward(ctx: Any, *above: Any) -> tuple[Tensor, Tensor, None]:
        (z, t), (to_a, to_fired) = ctx.saved_tensors, above
        near = ((z - t).abs() < ctx.width / 2).to(z.dtype)
        to_t = (t / ctx.width * near * to_a).sum(dim=1, keepdim=True)
        return (z > t) * to_a, -to_t - (near / ctx.width * to_fired).sum(dim=1, keepdim=True), None


class Module(DecoderModule):
    l0: Tensor

    def __init__(self, models: int, d_in: int, d_code: int, *, bandwidth: float, threshold: float, l0: Tensor) -> None:
        super().__init__(models, d_in, d_code)
        self.bandwidth, self.start = bandwidth, threshold
        self.log_threshold = nn.Parameter(torch.zeros(models, d_code))
        self.register_buffer("l0", l0.float())

    def fresh(self, mean: Float[Tensor, " d_in"]) -> dict[str, Tensor]:
        start = torch.full((self.d_code,), math.log(self.start))
        return {**super().fresh(mean), "log_threshold": start}

    @property
    def threshold(self) -> Float[Tensor, "models d_code"]:
        return steady(torch.exp, self.log_threshold)

    def encode(self, x: Rows) -> Codes:
        z = self.preactivations(x)
        return z * (z > self.threshold[:, None])

    def loss(self, x: Rows) -> Terms:
        z, t = self.preactivations(x), self.threshold[:, None]
        a, fired = Jump.apply(z, t, self.bandwidth)  # type: ignore[no-untyped-call]
        mse = self.reconstruction_error(x, self.decode(a))
        active = fired.sum(dim=2).mean(dim=1)
        return {"total": mse + self.l0 * active, "mse": mse, "l0": active}


@sparse_coders.register("jump_relu")
@dataclass(frozen=True, kw_only=True)
class JumpReLU(TrainedCoder):
    """Units with a threshold each, under a penalty on how many fire."""

    version: ClassVar[int] = 2
    module: ClassVar = Module
    columns: ClassVar = ("l0",)
    level_option: ClassVar = "l0"
    weights: ClassVar = ("l0",)
    scales: ClassVar = ("bandwidth", "threshold")

    l0: float = 0.1
    """Price of an active unit, in squared error."""
    bandwidth: float = 0.1
    """Width of the window around a threshold whose inputs give it a gradient."""
    threshold: float = 0.1
    """Initial threshold. Its logarithm is learned: from 0.01, short training hardly moves it."""
