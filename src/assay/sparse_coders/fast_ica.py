"""FastICA (Hyvarinen 1999): whitened components, rotated until they are as far from Gaussian as they can be.

What variance and decorrelation terms aim at, in closed form but for the rotation: independent units of one variance.
scikit-learn's symmetric fixed point with log cosh.
"""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import UserError
from assay.core.seeds import derive
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import FittedCoder, FittedModule


@sparse_coders.register("fast_ica")
@dataclass(frozen=True, kw_only=True)
class FastICA(FittedCoder):
    """Independent components: decorrelated, of one variance, as far from Gaussian as they can be."""

    iterations: int = 200
    rows: int = 20_000
    """Of the training data that it is fitted to, at most: each iteration goes through all of them."""
    rectified: bool = False
    """relu(s) and relu(-s) of half as many components instead of s: a sparse, non-negative code."""

    def check(self, d_in: int, d_code: int, batch: int) -> None:
        if d_code // (2 if self.rectified else 1) > d_in:
            raise UserError(f"{self.label}: {d_in} inputs have no more than {d_in} components. Lower d_code.")

    def fit(self, x: Float[Tensor, "n d_in"], d_code: int, seed: int) -> FittedModule:
        from sklearn.decomposition import FastICA as Fixed
        from sklearn.exceptions import ConvergenceWarning

        components, rng = d_code // 2 if self.rectified else d_code, derive(seed, "fit") >> 32
        ica = Fixed(components, whiten="unit-variance", max_iter=self.iterations, random_state=rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # iterations are an option, the same for every seed
            ica.fit(self._some(x, rng).double().cpu().numpy())
        W, mean = torch.from_numpy(ica.components_), torch.from_numpy(ica.mean_)
        if self.rectified:
            W = torch.cat([W, -W])
        return FittedModule(W.to(x), -(W @ mean).to(x), rectified=self.rectified)

    def _some(self, x: Float[Tensor, "n d_in"], rng: int) -> Float[Tensor, "m d_in"]:
        if len(x) <= self.rows:
            return x
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(rng))
        return x[order[: self.rows].to(x.device)]
