"""The spectra of a bilinear model's forms: eigenvalues, effective rank, and divergence of distributions."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import UserError
from assay.studies.modular.metrics.tensor_similarity import Factors, Matrix, weights

Values = Float[Tensor, "*batch rank"]
Square = Float[Tensor, "*batch n n"]


@torch.no_grad()
def interaction_matrices(model: Factors) -> Float[Tensor, "P inputs inputs"]:
    """The symmetric forms B_r = 1/2 (L^T D_r R + R^T D_r L), with D_r the readout of r on its diagonal."""
    half = torch.einsum("hi,rh,hj->rij", model.w_l.detach(), model.w_p.detach(), model.w_r.detach()) / 2
    return half + half.mT


@torch.no_grad()
def interaction_eigenvalues(model: Factors) -> Float[Tensor, "P rank"]:
    """The eigenvalues of each B_r that need not be zero, by size: 2 d_hidden of them, or 2P if that is less."""
    _, small = _compressed(model, torch.float64)
    return by_size(torch.linalg.eigvalsh(small))[0]


@torch.no_grad()
def eigendecomposition(
    model: Factors, dtype: torch.dtype = torch.float64, *, largest: int | None = None
) -> tuple[Float[Tensor, "P rank"], Float[Tensor, "P inputs rank"]]:
    """Return `interaction_eigenvalues` and their eigenvectors, all or only the largest."""
    basis, small = _compressed(model, dtype)
    few = largest is not None and small.shape[-1] >= 8 * largest and small.device.type == "cpu"
    values, vectors = _outermost(small, largest or 1) if few else torch.linalg.eigh(small)
    values, order = by_size(values)
    kept = order[:, None, :largest].expand(-1, vectors.shape[1], -1)
    return values[:, :largest], basis @ vectors.gather(2, kept)


def _outermost(
    matrices: Float[Tensor, "batch n n"], k: int
) -> tuple[Float[Tensor, "batch pairs"], Float[Tensor, "batch n pairs"]]:
    """The k lowest and the k highest eigenvalues of symmetric matrices, with their vectors: among them are the k
    largest by size. Reduction to a tridiagonal matrix, its outermost pairs, and these turned back, by LAPACK: some 60 %
    of the time that all pairs take."""
    from scipy.linalg import lapack

    given = matrices.numpy()
    kind, n = ("s" if given.dtype == np.float32 else "d"), given.shape[-1]
    reduce, pairs, turn = (getattr(lapack, kind + name) for name in ("sytrd", "stemr", "ormqr"))
    values = np.empty((len(given), 2 * k), given.dtype)
    vectors = np.empty((len(given), n, 2 * k), given.dtype)
    side = np.empty(n, given.dtype)
    for place, matrix in enumerate(given):
        reflectors, diagonal, beside, tau, failed = reduce(matrix, lower=1, lwork=32 * n)
        for half, first in ((slice(0, k), 1), (slice(k, 2 * k), n - k + 1)):
            side[:-1] = beside  # it is overwritten
            _, w, z, more = pairs(diagonal, side, 2, 0.0, 0.0, first, first + k - 1, lwork=18 * n, liwork=10 * n)
            values[place, half], vectors[place, :, half] = w[:k], z[:, :k]
            failed |= more
        # The first coordinate stays as it is; the reflectors below the diagonal act on the others.
        turned, _, more = turn("L", "N", reflectors[1:, :-1], tau, np.asfortranarray(vectors[place, 1:]), 128 * k)
        vectors[place, 1:] = turned
        assert not (failed | more), "LAPACK found no eigenvectors of a finite matrix"
    return torch.from_numpy(values), torch.from_numpy(vectors)


@torch.no_grad()
def eigenpairs(matrix: Square) -> tuple[Float[Tensor, "*batch n"], Square]:
    """All eigenvalues of a symmetric matrix by size, and eigenvectors as columns."""
    values, vectors = torch.linalg.eigh(matrix)
    values, order = by_size(values)
    return values, vectors.gather(-1, order[..., None, :].expand_as(vectors))


def by_size(values: Values) -> tuple[Values, Int[Tensor, "*batch rank"]]:
    """Eigenvalues by their size, the largest first, and their places before."""
    order = values.abs().argsort(dim=-1, descending=True)
    return values.gather(-1, order), order


def _compressed(
    model: Factors, dtype: torch.dtype
) -> tuple[Float[Tensor, "inputs rank"], Float[Tensor, "P rank rank"]]:
    """Write every B_r as Q S_r Q^T, of the rank's size: B_r = 1/2 [L; R]^T [[0, D], [D, 0]] [L; R], and Q is the
    orthogonal basis of a QR of [L; R]^T. S_r has the eigenvalues of B_r that need not be zero."""
    plain = weights(model, dtype)
    basis, triangle = torch.linalg.qr(torch.cat([plain.w_l, plain.w_r]).T)
    left, right = triangle.chunk(2, dim=1)
    half = torch.einsum("ih,rh,jh->rij", left, plain.w_p, right) / 2
    return basis, half + half.mT


def entropy_effective_rank(eigenvalues: Values) -> Float[Tensor, "*batch"]:
    """exp(-sum p ln p) with p the shares of the squares: the effective number of eigenvalues; 0 for a form of zeros."""
    squares = eigenvalues.square()
    total = squares.sum(dim=-1, keepdim=True)
    shares = torch.where(total > 0, squares / total, 0.0)
    found = (-torch.xlogy(shares, shares).sum(dim=-1)).exp()
    return torch.where(total[..., 0] > 0, found, 0.0)


def ratio_effective_rank(eigenvalues: Values) -> Float[Tensor, "*batch"]:
    """sum |x| / max |x|; 0 for a form of zeros."""
    size = eigenvalues.abs()
    largest = size.amax(dim=-1)
    return torch.where(largest > 0, size.sum(dim=-1) / largest, 0.0)


def cumulative_explained_variance(eigenvalues: Values) -> Values:
    """The share of the sum of squares that the largest 1, 2, ... eigenvalues have; 1 throughout for a form of zeros."""
    squares = by_size(eigenvalues)[0].square()
    total = squares.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, squares.cumsum(dim=-1) / total, 1.0)


def components_for_variance_threshold(eigenvalues: Values, threshold: float = 0.99) -> Int[Tensor, "*batch"]:
    """The fewest of the largest eigenvalues that have at least this share of the sum of squares."""
    if not 0 < threshold <= 1:
        raise UserError(f"threshold={threshold}: a share lies above 0 and is at most 1.")
    # The last share is 1 but for rounding: it always counts as enough.
    enough = cumulative_explained_variance(eigenvalues)[..., :-1] >= threshold
    return 1 + (~enough).sum(dim=-1)


def JS_divergence(p: Any, q: Any) -> Any:
    """1/2 KL(p | m) + 1/2 KL(q | m), m = (p + q) / 2, along the last axis, in nats: between 0 and ln 2. Its root is a
    metric (Endres and Schindelin 2003). What is given is made to sum to 1."""
    p, q = shares_of(p), shares_of(q)
    found = np.maximum(_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2, 0)
    return float(found) if found.ndim == 0 else found


def js_divergence_matrix(laws: Float[np.ndarray, "models remainders frequencies"]) -> Matrix:
    """The divergence of all pairs of models, summed over remainders as in the spec: at most P ln 2."""
    shares = shares_of(laws)
    own = _entropy(shares).sum(axis=-1)
    found = np.zeros((len(shares), len(shares)))
    for i, law in enumerate(shares):
        found[i, :i] = _entropy((law + shares[:i]) / 2).sum(axis=-1) - (own[i] + own[:i]) / 2
    found = np.maximum(found, 0)
    return found + found.T


def shares_of(values: Any) -> Any:
    """Normalise the last axis to sum to 1; uniform where all are zero."""
    found = np.asarray(values, dtype=np.float64)
    total = found.sum(axis=-1, keepdims=True)
    return np.divide(found, total, out=np.full_like(found, 1 / found.shape[-1]), where=total > 0)


def _entropy(shares: np.ndarray) -> np.ndarray:
    from scipy.special import entr

    return np.asarray(entr(shares).sum(axis=-1))
