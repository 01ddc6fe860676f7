"""Principal components are the code that loses the least of the variance, and is not sparse at all.

a = V^T (x - mean),   V the d_code leading eigenvectors of the covariance

No paper: this is the textbook form, on all training rows in float64.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from assay.core.errors import UserError
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import FittedCoder, FittedModule, principal_axes


@sparse_coders.register("pca")
@dataclass(frozen=True, kw_only=True)
class PCA(FittedCoder):
    """Principal components: dense, and the least error any linear code of its size can have."""

    def check(self, d_in: int, d_code: int, batch: int) -> None:
        if d_code > d_in:
            raise UserError(f"pca: {d_in} inputs have {d_in} components, not {d_code}. Lower d_code or leave pca out.")

    def fit(self, x: Float[Tensor, "n d_in"], d_code: int, seed: int) -> FittedModule:
        mean, V, _ = principal_axes(x, d_code)
        return FittedModule(V.to(x.dtype), -(V @ mean).to(x.dtype), rectified=False)
