"""What the forms of a bilinear model are made of: eigenvalues, how many count, and how far distributions lie apart."""

from typing import Any, Literal, assert_never

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.metrics.similarity import Factors, Matrix, weights


@torch.no_grad()
def interaction_eigenvalues(model: Factors) -> Float[Tensor, "P rank"]:
    """The eigenvalues of each B_r that need not be zero, by size: 2 d_hidden of them, or 2P if that is less.

    B_r = 1/2 [L; R]^T [[0, D], [D, 0]] [L; R] with D the readout of r. In the orthogonal basis of a QR of [L; R]^T it
    is a matrix of the rank's size, with the same eigenvalues."""
    plain = weights(model)
    triangle = torch.linalg.qr(torch.cat([plain.w_l, plain.w_r]).T, mode="r").R
    left, right = triangle.chunk(2, dim=1)
    half = torch.einsum("ih,rh,jh->rij", left, plain.w_p, right) / 2
    values = torch.linalg.eigvalsh(half + half.mT)
    return values.gather(1, values.abs().argsort(dim=1, descending=True))


def effective_rank(
    eigenvalues: Float[Tensor, "*batch rank"], method: Literal["entropy", "ratio"] = "entropy"
) -> Float[Tensor, "*batch"]:
    """How many eigenvalues count; 0 for a form of zeros.

    entropy   exp(-sum p ln p) with p the shares of the squares       ratio   sum |x| / max |x|"""
    size = eigenvalues.abs()
    if method == "ratio":
        largest = size.amax(dim=-1)
        return torch.where(largest > 0, size.sum(dim=-1) / largest, 0.0)
    if method == "entropy":
        total = size.square().sum(dim=-1, keepdim=True)
        shares = torch.where(total > 0, size.square() / total, 0.0)
        found = (-torch.xlogy(shares, shares).sum(dim=-1)).exp()
        return torch.where(total[..., 0] > 0, found, 0.0)
    assert_never(method)


def entropy_effective_rank(eigenvalues: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch"]:
    return effective_rank(eigenvalues, "entropy")


def ratio_effective_rank(eigenvalues: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch"]:
    return effective_rank(eigenvalues, "ratio")


def JS_divergence(p: Any, q: Any) -> Any:
    """1/2 KL(p | m) + 1/2 KL(q | m), m = (p + q) / 2, along the last axis, in nats: between 0 and ln 2. Its root is a
    metric (Endres and Schindelin 2003). What is given is made to sum to 1."""
    p, q = _shares(p), _shares(q)
    found = np.maximum(_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2, 0)
    return float(found) if found.ndim == 0 else found


def js_divergence_matrix(laws: Float[np.ndarray, "models remainders frequencies"]) -> Matrix:
    """The divergence of all pairs of models, summed over remainders as in the spec: at most P ln 2."""
    shares = _shares(laws)
    own = _entropy(shares).sum(axis=-1)
    found = np.zeros((len(shares), len(shares)))
    for i, law in enumerate(shares):
        found[i] = _entropy((law + shares) / 2).sum(axis=-1) - (own[i] + own) / 2
    found = np.maximum((found + found.T) / 2, 0)
    np.fill_diagonal(found, 0)
    return found


def _shares(values: Any) -> np.ndarray:
    found = np.asarray(values, dtype=np.float64)
    return found / found.sum(axis=-1, keepdims=True)


def _entropy(shares: np.ndarray) -> np.ndarray:
    from scipy.special import entr

    return np.asarray(entr(shares).sum(axis=-1))
