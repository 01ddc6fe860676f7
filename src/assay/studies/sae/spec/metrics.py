"""The spec's metrics of one code `a` (batch, K) with its encoder's weights `W` (K, d_in).

Thresholds are absolute, as in the spec; assay.metrics.sparsity has scores that do not depend on the scale of a code.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.nn import infomax

Codes = Float[Tensor, "batch K"]
Weights = Float[Tensor, "K d_in"]
Rows = Float[Tensor, "batch d_in"]
TINY = 1e-8


@torch.no_grad()
def dead_units(a: Codes, threshold: float = 0.01) -> int:
    """Units whose variance is below the threshold. A code that grows in scale has none, used or not."""
    return int((a.var(dim=0) < threshold).sum())


@torch.no_grad()
def redundancy_score(a: Codes) -> float:
    """The sum of squared correlations between units, each pair twice."""
    return float(infomax.correlation(a))


@torch.no_grad()
def weight_redundancy(W: Weights) -> float:
    return float(infomax.weight_redundancy(W))


@torch.no_grad()
def effective_rank(W: Weights) -> float:
    """exp of the entropy of the singular values over their sum."""
    rows = W.double() if len(W) <= W.shape[1] else W.double().T
    s = torch.linalg.eigvalsh(rows @ rows.T).clamp_min(0).sqrt()  # far cheaper than svdvals
    p = s / (s.sum() + TINY)
    return float(torch.exp(-(p * torch.log(p + TINY)).sum()))


@torch.no_grad()
def responsibility_entropy(r: Codes) -> float:
    """The mean entropy of the rows, in nats."""
    return float(-(r * torch.log(r + TINY)).sum(dim=1).mean())


@torch.no_grad()
def usage_distribution(r: Codes) -> np.ndarray:
    return r.mean(dim=0).cpu().numpy()


@torch.no_grad()
def reconstruction_mse(x: Rows, a: Codes, W: Weights) -> float:
    """mean (x - a W)^2: the encoder's own weights as an untrained decoder."""
    return float((x - a @ W).square().mean())


@torch.no_grad()
def normalized_reconstruction_mse(x: Rows, a: Codes, W: Weights) -> float:
    """`reconstruction_mse` with every reconstruction scaled to the norm of its x, which no decoder knows."""
    guess = a / (a.norm(dim=1, keepdim=True) + TINY) @ W
    guess = guess / (guess.norm(dim=1, keepdim=True) + TINY) * x.norm(dim=1, keepdim=True)
    return float((x - guess).square().mean())


@torch.no_grad()
def sparsity_l0(a: Codes, threshold: float = 0.01) -> tuple[float, float]:
    """Units with |a| above the threshold, per row; and as a share of all."""
    found = float((a.abs() > threshold).sum(dim=1).double().mean())
    return found, found / a.shape[1]


@torch.no_grad()
def feature_similarity_matrix(W: Weights) -> Float[np.ndarray, "K K"]:
    """Cosines of the rows."""
    rows = W / (W.norm(dim=1, keepdim=True) + TINY)
    return (rows @ rows.T).cpu().numpy()


@torch.no_grad()
def activation_correlation_matrix(a: Codes) -> Float[np.ndarray, "K K"]:
    return infomax.correlations(a).cpu().numpy()


def compute_all_metrics(a: Codes, W: Weights, x: Rows, r: Codes) -> dict[str, Any]:
    return {
        "dead_units": dead_units(a),
        "redundancy_score": redundancy_score(a),
        "weight_redundancy": weight_redundancy(W),
        "effective_rank": effective_rank(W),
        "responsibility_entropy": responsibility_entropy(r),
        "reconstruction_mse": reconstruction_mse(x, a, W),
        "sparsity_l0": sparsity_l0(a)[0],
    }


def linear_probe_accuracy(
    train_features: Float[np.ndarray | Tensor, "n K"],
    train_labels: Int[np.ndarray | Tensor, " n"],
    test_features: Float[np.ndarray | Tensor, "m K"],
    test_labels: Int[np.ndarray | Tensor, " m"],
) -> float:
    """Test accuracy of a logistic regression on standardised codes with C = 1, as in scikit-learn."""
    from assay.metrics.logistic import fit_as_scikit_learn

    x, y, test_x, test_y = map(torch.as_tensor, (train_features, train_labels, test_features, test_labels))
    return fit_as_scikit_learn(x, y).accuracy(test_x, test_y)
