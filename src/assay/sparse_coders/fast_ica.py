"""FastICA (Hyvarinen 1999) whitens components and rotates them until they are as far from Gaussian as they can be.

What variance and decorrelation terms aim at, in closed form but for the rotation: independent units of one variance.
scikit-learn's symmetric fixed point with log cosh.

Differs from the paper: at most 200 iterations on at most 20,000 rows, converged or not. `rectified` is ours.
"""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import UserError
from assay.core.seeds import derive
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import FittedCoder, FittedModule, principal_axes

VARIES = 1e-10
"""Smallest variance of a component, as a share of the largest: less is rounding."""


@sparse_coders.register("fast_ica")
@dataclass(frozen=True, kw_only=True)
class FastICA(FittedCoder):
    """Independent components: decorrelated, of one variance, as far from Gaussian as they can be."""

    version: ClassVar[int] = 2

    iterations: int = 200
    """Most steps towards the rotation; fewer where it stands still earlier."""
    rows: int = 20_000
    """Most training rows that the rotation is fitted to: each iteration goes through all of them."""
    rectified: bool = False
    """relu(s) and relu(-s) of half as many components instead of s: a sparse, non-negative code."""

    def check(self, d_in: int, d_code: int, batch: int) -> None:
        if d_code // (2 if self.rectified else 1) > d_in:
            raise UserError(f"{self.label}: {d_in} inputs have no more than {d_in} components. Lower d_code.")

    def fit(self, x: Float[Tensor, "n d_in"], d_code: int, seed: int) -> FittedModule:
        """Whiten on all rows, as pca does, so that both keep the same subspace; fit the rotation on some of them. Units
        beyond the components that vary stay silent."""
        components = d_code // 2 if self.rectified else d_code
        mean, axes, variances = principal_axes(x, components)
        vary = variances > VARIES * variances[0]
        whiten = axes[vary] / variances[vary].sqrt()[:, None]
        W = axes.new_zeros(components, x.shape[1])
        W[: len(whiten)] = self._rotation((x.double() - mean) @ whiten.mT, seed) @ whiten
        if self.rectified:
            W = torch.cat([W, -W])
        return FittedModule(W.to(x), -(W @ mean).to(x), rectified=self.rectified)

    def _rotation(self, z: Float[Tensor, "n components"], seed: int) -> Float[Tensor, "components components"]:
        from sklearn.decomposition import FastICA as Fixed
        from sklearn.exceptions import ConvergenceWarning

        rng, some = derive(seed, "fit") >> 32, z
        if len(z) > self.rows:
            order = torch.randperm(len(z), generator=torch.Generator().manual_seed(rng))
            some = z[order[: self.rows].to(z.device)]
        # Whitened here: scikit-learn's own multiplies a component by the sign of its first input's weight, and that is
        # 0 where the first input never varies.
        ica = Fixed(whiten=False, max_iter=self.iterations, random_state=rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # iterations are an option, the same for every seed
            ica.fit(some.cpu().numpy())
        return torch.from_numpy(ica.components_).to(z)
