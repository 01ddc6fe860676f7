"""Dictionary learning (Mairal et al. 2009) learns atoms online, and codes each row by a search rather than a layer.

    x - mean = a D + rest,  |D_j| = 1;  a by orthogonal matching pursuit with k atoms

No encoder has to be learned, so this says what the sparse linear model itself can do. scikit-learn's minibatch form.

Differs from the paper: rows are coded by matching pursuit with k atoms, where the paper uses the lasso throughout;
while atoms are learned it is the lasso here too (LARS, alpha 1). One pass over 4,096 rows, in batches of 256.
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import UserError
from assay.core.seeds import derive
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import CoderModule, Codes, Directions, FittedCoder, Guesses, Rows


class Module(CoderModule):
    atoms: Tensor
    mean: Tensor

    def __init__(self, atoms: Float[Tensor, "d_code d_in"], mean: Float[Tensor, " d_in"], k: int) -> None:
        super().__init__(1, atoms.shape[1], atoms.shape[0])
        self.k = k
        self.register_buffer("atoms", atoms[None])
        self.register_buffer("mean", mean[None])

    def encode(self, x: Rows) -> Codes:
        """Code by matching pursuit: k times choose the atom nearest to the residual and refit all chosen ones."""
        from sklearn.decomposition import sparse_encode

        rows = rearrange(x, "1 b d -> b d") - self.mean
        atoms = self.atoms[0].double().cpu().numpy()
        code = sparse_encode(rows.double().cpu().numpy(), atoms, algorithm="omp", n_nonzero_coefs=self.k)
        return torch.from_numpy(code).to(x)[None]

    def decode(self, code: Codes) -> Guesses:
        return code @ self.atoms + self.mean[:, None]

    def directions(self) -> Directions:
        return self.atoms


@sparse_coders.register("dictionary_learning")
@dataclass(frozen=True, kw_only=True)
class DictionaryLearning(FittedCoder):
    """Atoms learned online, rows coded by matching pursuit: the sparse linear model without an encoder."""

    level_option = "k"

    k: int = 8
    """Atoms of a row."""
    rows: int = 4096
    """Most training rows to learn from; coding by search is slow."""

    def check(self, d_in: int, d_code: int, batch: int) -> None:
        if not 1 <= self.k <= min(d_in, d_code):
            raise UserError(f"{self.label}: k must be between 1 and {min(d_in, d_code)}.")

    def fit(self, x: Float[Tensor, "n d_in"], d_code: int, seed: int) -> Module:
        from sklearn.decomposition import MiniBatchDictionaryLearning

        mean = x.mean(dim=0)
        rng = derive(seed, "fit") >> 32
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(rng))[: self.rows]
        learner = MiniBatchDictionaryLearning(
            d_code, alpha=1.0, max_iter=1, batch_size=256, random_state=rng, fit_algorithm="lars",
            transform_algorithm="omp", transform_n_nonzero_coefs=self.k,
        )  # fmt: skip
        learner.fit((x[order.to(x.device)] - mean).double().cpu().numpy())
        return Module(torch.from_numpy(learner.components_).to(x), mean, self.k)
