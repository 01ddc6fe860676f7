"""Decoder-free coding by implicit EM with InfoMax has four loss terms (the spec's), for one model or many at once.

With activations a (batch B, unit K), unbiased variances and covariances:

    LSE  = -sum_i log sum_j exp(-a_ij)          d LSE / d a_ij = r_ij = softmax_j(-a_i): the responsibility, exactly
    VAR  = -sum_j log(Var_B(a_j) + eps)         no unit may stand still; unbounded below in the scale of the weights
    TC   =  sum_{i != j} corr_ij^2              no unit may repeat another; each pair counts twice
    WR   =  |Wn Wn^T - I|_F^2                   Wn: rows over their norms

LSE is a sum over the batch: with a mean, its gradient would be r / B. Leading axes are models, each for itself.
"""

import torch
from jaxtyping import Float
from torch import Tensor

TINY = 1e-8
"""Added to standard deviations and norms, as in the spec, so that a constant unit correlates with nothing."""


def lse(a: Float[Tensor, "*models batch unit"]) -> tuple[Float[Tensor, "*models"], Float[Tensor, "*models batch unit"]]:
    """Return the term, and the responsibilities softmax(-a)."""
    return -torch.logsumexp(-a, dim=-1).sum(dim=-1), torch.softmax(-a, dim=-1)


def variance(a: Float[Tensor, "*models batch unit"], eps: float | Tensor = 1e-6) -> Float[Tensor, "*models"]:
    return -torch.log(a.var(dim=-2) + eps).sum(dim=-1)


def correlations(a: Float[Tensor, "*models batch unit"]) -> Float[Tensor, "*models unit unit"]:
    """Return Pearson correlations, unit against unit; 0 beside a constant unit."""
    centred = a - a.mean(dim=-2, keepdim=True)
    deviation = _deviation(a)[..., None, :] + TINY
    scaled = centred / deviation
    return scaled.mT @ scaled / (a.shape[-2] - 1)


def correlation(a: Float[Tensor, "*models batch unit"]) -> Float[Tensor, "*models"]:
    found = correlations(a)
    return (found - torch.diag_embed(found.diagonal(dim1=-2, dim2=-1))).square().sum(dim=(-2, -1))


def weight_redundancy(W: Float[Tensor, "*models unit d_in"]) -> Float[Tensor, "*models"]:
    rows = W / (W.norm(dim=-1, keepdim=True) + TINY)
    return (rows @ rows.mT - torch.eye(W.shape[-2], dtype=W.dtype, device=W.device)).square().sum(dim=(-2, -1))


def sampling_floor(units: int, batch: int) -> float:
    """Return the mean TC of independent units, from sampling alone: K(K-1)/(B-1)."""
    return units * (units - 1) / (batch - 1)


def _deviation(a: Float[Tensor, "*models batch unit"]) -> Float[Tensor, "*models unit"]:
    """Return the standard deviation, with gradient 0 where it is 0, since the square root has none there."""
    var = a.var(dim=-2)
    return torch.where(var > 0, torch.where(var > 0, var, torch.ones_like(var)).sqrt(), torch.zeros_like(var))
