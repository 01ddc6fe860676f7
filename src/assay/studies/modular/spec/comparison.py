"""Compares forms, spectra and matrices of single models, under the spec's names."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.studies.modular.files import Key
from assay.studies.modular.metrics.distances import correlation
from assay.studies.modular.metrics.frequency_law import eigen_law
from assay.studies.modular.metrics.spectra import JS_divergence, effective_rank, eigenpairs, interaction_matrices
from assay.studies.modular.metrics.tensor_similarity import Factors
from assay.studies.modular.spec.compression import compute_frequency_heatmap


def compute_interaction_matrix(model: Factors, remainder: int) -> Float[Tensor, "inputs inputs"]:
    """The symmetric form of one output."""
    return interaction_matrices(model)[remainder]


def extract_remainder_matrix(stack: Float[Tensor, "P inputs inputs"], remainder: int) -> Float[Tensor, "inputs inputs"]:
    return stack[remainder]


def compute_effective_rank(
    matrix: Float[Tensor, "*batch n n"], method: Literal["entropy", "ratio"] = "entropy"
) -> Float[Tensor, "*batch"]:
    """The effective rank of a symmetric matrix."""
    return effective_rank(eigenpairs(matrix)[0], method)


def compute_eigenvector_fft(vector: Float[Tensor, " inputs"], P: int) -> dict[str, np.ndarray]:
    """Amplitudes of the two halves of an eigenvector and of the whole, with their frequencies."""
    halves = {"a": vector[:P], "b": vector[P:], "full": vector}
    amplitudes = {f"fft_{name}": torch.fft.rfft(part).abs().numpy() for name, part in halves.items()}
    return amplitudes | {f"freqs_{name}": np.fft.rfftfreq(len(part)) for name, part in halves.items()}


def compute_frequency_distribution(
    eigenvalues: Float[Tensor, " rank"], eigenvectors: Float[Tensor, "inputs rank"], P: int, n_evecs: int = 4
) -> Float[np.ndarray, " frequencies"]:
    """p(f | r) of one remainder's form by the spec's law."""
    halves = eigenvectors[None, :P].expand(P, -1, -1)
    return eigen_law(eigenvalues[None].expand(P, -1), halves, n_evecs=n_evecs)[0]


def compute_all_frequency_heatmaps(
    eigen_data: Mapping[Key, Mapping[str, Tensor]], P: int, n_evecs: int = 4
) -> dict[Key, np.ndarray]:
    """`compute_frequency_heatmap` of every model."""
    return {key: compute_frequency_heatmap(eigen_data, key, P, n_evecs) for key in eigen_data}


def compute_average_js_divergence(p: Any, q: Any) -> float:
    """The mean over remainders of the divergence of two heatmaps, at most ln 2; matrices have the sum, as in the
    spec."""
    return float(np.mean(JS_divergence(p, q)))


def pairwise_cosine_similarity(
    one: Float[Tensor, "*batch d"], other: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch"]:
    """The cosine of rows with the same index."""
    return nn.functional.cosine_similarity(one, other, dim=-1)


def get_upper_triangular(matrix: Any) -> Float[np.ndarray, " pairs"]:
    """The entries above the diagonal: every pair once."""
    values = np.asarray(matrix, dtype=np.float64)
    return values[np.triu_indices(len(values), k=1)]


def pearson_correlation(one: Any, other: Any) -> float:
    """Pearson's correlation over the pairs of two matrices, or of two vectors."""
    first, second = (np.asarray(x, dtype=np.float64) for x in (one, other))
    if first.ndim == 2:
        first, second = get_upper_triangular(first), get_upper_triangular(second)
    return correlation(first, second)


def print_comparison_results(results: Mapping[str, Any]) -> None:
    """Print the result of `compare_metrics`."""
    print(f"{results['name1']} and {results['name2']}")
    for name in ("pearson", "spearman", "optimal_scale", "stress", "stress_unnorm"):
        print(f"  {name:<16} {results[name]:.4f}")
    columns = ("knn_overlap", "knn_overlap_chance", "jaccard", "trustworthiness", "continuity")
    print(f"  {'k':<4}" + "".join(f"{name:>20}" for name in columns))
    for k, *scores in zip(results["k_values"], *(results[name] for name in columns), strict=True):
        print(f"  {k:<4}" + "".join(f"{score:>20.4f}" for score in scores))
