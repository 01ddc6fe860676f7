"""k-means codes each row by its nearest centre, or by how much nearer than usual each centre is.

hard      a_j = 1[j is the nearest centre]                                one active unit
triangle  a_j = max(0, mean_i |x - c_i| - |x - c_j|)                      about half of them (Coates, Ng & Lee 2011)

Differs from the paper: rows are neither normalised nor whitened first, centres are learned from minibatches of 1,024
from one start, and `hard` is the default where the paper finds `triangle` better.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from assay.core.seeds import derive
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import CoderModule, Codes, Directions, FittedCoder, Rows


class Module(CoderModule):
    centres: Tensor

    def __init__(self, centres: Float[Tensor, "d_code d_in"], code: str) -> None:
        super().__init__(1, centres.shape[1], centres.shape[0])
        self.code = code
        self.register_buffer("centres", centres[None])

    def encode(self, x: Rows) -> Codes:
        rows, centres = rearrange(x, "1 b d -> b d"), self.centres[0]
        # In float64: the matrix form cancels for rows near a centre, in float32 by an amount that depends on how many
        # rows there are.
        squares = rows.double().square().sum(dim=1)[:, None] + centres.double().square().sum(dim=1)
        distance = (squares - 2 * rows.double() @ centres.double().mT).clamp_min(0).sqrt()
        if self.code == "hard":
            found = torch.zeros_like(distance).scatter_(1, distance.argmin(dim=1, keepdim=True), 1.0)
        else:
            found = (distance.mean(dim=1, keepdim=True) - distance).relu()
        return found.to(x.dtype)[None]

    def directions(self) -> Directions:
        return self.centres


@sparse_coders.register("kmeans")
@dataclass(frozen=True, kw_only=True)
class KMeans(FittedCoder):
    """The nearest of d_code centres, or how near each is."""

    code: Literal["hard", "triangle"] = "hard"
    """`hard`: 1 for the nearest centre, 0 for the others; `triangle`: how much nearer than the mean each centre is."""

    def fit(self, x: Float[Tensor, "n d_in"], d_code: int, seed: int) -> Module:
        from sklearn.cluster import MiniBatchKMeans

        found = MiniBatchKMeans(d_code, n_init=1, batch_size=1024, random_state=derive(seed, "fit") >> 32)
        found.fit(x.double().cpu().numpy())
        return Module(torch.from_numpy(found.cluster_centers_).to(x), self.code)
