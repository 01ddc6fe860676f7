"""The largest numbers of each row are kept, and the others are 0."""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.on_use import Later
from assay.nn.whole import has_kernels

kernels: Any = Later("assay.nn.largest_kernels")  # Triton, which is on CUDA alone


def largest(
    z: Float[Tensor, "models rows units"],
    count: Int[Tensor, " models"],
    most: int,
    among: Bool[Tensor, "models units"] | None = None,
) -> Float[Tensor, "models rows units"]:
    """Keep the `count` largest numbers of each row; of those units of a model that are in `among`, where it is given,
    and all of them if they are fewer. `most` is the largest count, which the host need not ask the device for."""
    if has_kernels(z.device) and kernels.fits(z):
        return kernels.largest(z, count, among)
    if among is not None:
        z = z.masked_fill(~rearrange(among, "m u -> m 1 u"), -torch.inf)
    values, units = z.topk(most, dim=2)
    mine = torch.arange(most, device=z.device) < rearrange(count, "m -> m 1 1")
    return torch.zeros_like(z).scatter(2, units, torch.where(mine & (values != -torch.inf), values, 0.0))
