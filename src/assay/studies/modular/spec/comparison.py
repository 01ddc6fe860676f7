"""Compares models, heatmaps and matrices of distances, under the spec's names and in its order of arguments.

A matrix over models is made from the state dicts of a sweep, `compute_tn_similarity_matrix(models_state, P)`, or from a
list of models alone. Nothing switches gradients off for its caller.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import UserError
from assay.studies.modular.files import Key, State
from assay.studies.modular.matrices import Device, weights_of
from assay.studies.modular.metrics import distances
from assay.studies.modular.metrics.spectra import JS_divergence, js_divergence_matrix
from assay.studies.modular.metrics.tensor_similarity import (
    EPSILON,
    Entries,
    Factors,
    Matrix,
    activation_similarity,
    activation_similarity_matrix,
    all_logits,
    symmetric_inner_matrix,
    symmetric_similarity_matrix,
)

Models = Mapping[Key, State] | Sequence[Factors]
Distances = Float[np.ndarray, "N N"]


def compute_tn_inner_product_matrix(
    models_state: Models,
    P: int | None = None,
    device: Device = None,
    show_progress: bool = True,
    *,
    entries: Entries = "all",
    dtype: torch.dtype = torch.float64,
) -> Matrix:
    """<M_i, M_j> of all pairs, in the order in which the models are given."""
    return symmetric_inner_matrix(_models(models_state, P, device), entries=entries, dtype=dtype)


def compute_tn_similarity_matrix(
    models_state: Models,
    P: int | None = None,
    device: Device = None,
    show_progress: bool = True,
    *,
    entries: Entries = "all",
    dtype: torch.dtype = torch.float64,
) -> Matrix:
    """The cosine of all pairs of models as symmetric tensors, in [-1, 1]."""
    return symmetric_similarity_matrix(_models(models_state, P, device), entries=entries, dtype=dtype)


def compute_act_similarity_matrix(
    models_state: Models,
    P: int | None = None,
    device: Device = None,
    show_progress: bool = True,
    *,
    dtype: torch.dtype = torch.float64,
) -> Matrix:
    """The mean cosine of all pairs' logits over all inputs, in [-1, 1]."""
    return activation_similarity_matrix(_models(models_state, P, device), dtype=dtype)


@torch.no_grad()
def compute_all_logits(model: Any, dataset: Float[Tensor, "N inputs"] | None = None) -> Float[Tensor, "N P"]:
    """The logits on the rows of a dataset; without one on all P^2 inputs, row aP + b, in float64."""
    return all_logits(model) if dataset is None else model(dataset)


def pairwise_cosine_similarity(logits1: Float[Tensor, "N P"], logits2: Float[Tensor, "N P"]) -> float:
    """The cosine of rows with the same index, averaged over rows."""
    one, other = (logits / (logits.norm(dim=-1, keepdim=True) + EPSILON) for logits in (logits1, logits2))
    return float((one * other).sum(dim=-1).mean())


def compute_activation_similarity(
    model1: Factors, model2: Factors, dataset: Float[Tensor, "N inputs"] | None = None
) -> float:
    """The cosine of two models' logits, averaged over the rows of a dataset, or over all P^2 inputs."""
    if dataset is None:
        return activation_similarity(model1, model2)
    return pairwise_cosine_similarity(compute_all_logits(model1, dataset), compute_all_logits(model2, dataset))


def compute_average_js_divergence(heatmap1: Any, heatmap2: Any) -> float:
    """The mean over remainders of the divergence of two heatmaps, at most ln 2; matrices have the sum, as in the
    spec."""
    return float(np.mean(JS_divergence(heatmap1, heatmap2)))


def compute_js_divergence_matrix(
    heatmaps: Mapping[Key, np.ndarray] | Sequence[np.ndarray] | np.ndarray,
    P: int | None = None,
    show_progress: bool = True,
) -> Matrix:
    """The divergence of all pairs of heatmaps, summed over the P remainders; in the order in which they are given."""
    laws = np.stack([np.asarray(law) for law in (heatmaps.values() if isinstance(heatmaps, Mapping) else heatmaps)])
    if P is not None and laws.shape[1] != P:
        raise UserError(f"these heatmaps have {laws.shape[1]} rows, where P={P} has {P}.")
    return js_divergence_matrix(laws)


def inner_product_to_metric(inner_mat: Distances) -> Distances:
    """sqrt(<i,i> + <j,j> - 2 <i,j>)."""
    return distances.inner_product_to_metric(inner_mat)


def cosine_similarity_to_metric(sim_mat: Distances) -> Distances:
    """sqrt(2 (1 - s)): the distance of two vectors of length 1 with that cosine."""
    return distances.cosine_similarity_to_metric(sim_mat)


def divergence_to_metric(div_mat: Distances) -> Distances:
    """The root, which for Jensen-Shannon is a metric; 0 on the diagonal."""
    found = distances.divergence_to_metric(div_mat)
    np.fill_diagonal(found, 0)
    return found


def get_upper_triangular(mat: Any, k: int = 1) -> Float[np.ndarray, " pairs"]:
    """The entries above the diagonal, or from the k-th diagonal on: every pair once."""
    values = np.asarray(mat, dtype=np.float64)
    return values[np.triu_indices(len(values), k=k)]


def pearson_correlation(D1: Any, D2: Any) -> float:
    """Pearson's correlation over the pairs of two matrices, or of two vectors."""
    first, second = (np.asarray(x, dtype=np.float64) for x in (D1, D2))
    if first.ndim == 2:
        first, second = get_upper_triangular(first), get_upper_triangular(second)
    return distances.correlation(first, second)


def compute_optimal_scale(D: Distances, D_prime: Distances) -> float:
    """The alpha with the least |D - alpha D'|."""
    return distances.optimal_scale(D, D_prime)


def compute_stress(D: Distances, D_prime: Distances, normalize: bool = True, *, scale: float | None = None) -> float:
    """|D - alpha D'| / |D| over pairs: alpha is the best there is, 1 without `normalize`, or the given scale."""
    alpha = distances.optimal_scale(D, D_prime) if normalize else 1.0
    return distances.stress(D, D_prime, alpha if scale is None else scale)


def get_knn_indices(D: Distances, k: int) -> Int[np.ndarray, "N k"]:
    """The k nearest others of each point, the nearest first; of equals the first."""
    return distances.neighbours(D, k)


def compute_knn_overlap(D1: Distances, D2: Distances, k: int) -> float:
    """The mean share of the k nearest that two matrices have in common."""
    return distances.knn_overlap(D1, D2, k)


def compute_jaccard_index(D1: Distances, D2: Distances, k: int) -> float:
    """The mean of |common| / |either| over points."""
    return distances.jaccard(D1, D2, k)


def compute_trustworthiness(D_high: Distances, D_low: Distances, k: int) -> float:
    """1 where all neighbours in D_low are neighbours in D_high, 0 at the worst, for every k < N."""
    return distances.trustworthiness(D_high, D_low, k)


def compute_continuity(D_high: Distances, D_low: Distances, k: int) -> float:
    """1 where all neighbours in D_high are still neighbours in D_low, 0 at the worst, for every k < N."""
    return distances.continuity(D_high, D_low, k)


def compare_metrics(
    D1: Any,
    D2: Any,
    name1: str = "D1",
    name2: str = "D2",
    k_values: Sequence[int] | None = None,
    *,
    k: int | None = None,
) -> dict[str, Any]:
    """All scores of two matrices: the spec's keys, the rank correlation, and neighbour scores beyond chance. `k` is
    one number of neighbours instead of several."""
    return distances.compare_metrics(D1, D2, name1, name2, k_values if k is None else [k])


def print_comparison_results(results: Mapping[str, Any]) -> None:
    """Print the result of `compare_metrics`."""
    print(f"{results['name1']} and {results['name2']}")
    for name in ("pearson", "spearman", "optimal_scale", "stress", "stress_unnorm"):
        print(f"  {name:<16} {results[name]:.4f}")
    columns = ("knn_overlap", "knn_overlap_chance", "jaccard", "trustworthiness", "continuity")
    print(f"  {'k':<4}" + "".join(f"{name:>20}" for name in columns))
    for k, *scores in zip(results["k_values"], *(results[name] for name in columns), strict=True):
        print(f"  {k:<4}" + "".join(f"{score:>20.4f}" for score in scores))


def _models(models: Models, P: int | None, device: Device) -> Sequence[Factors]:
    """The models of a sweep's state dicts, or those given."""
    if not isinstance(models, Mapping):
        return models
    if P is None:
        raise UserError("give P too, as in compute_tn_similarity_matrix(models_state, P).")
    return weights_of(models, P, device)
