"""The building blocks of the modular-addition experiments, under the spec's names.

What has a home elsewhere in assay is passed on from there; what is here works on one-hot inputs, state dicts and single
matrices, as the spec's notebooks do. Nothing switches gradients off for its caller, or touches a global generator.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.studies.modular.bilinear import (
    Bilinear,
    Model,
    ModelConfig,
    addition_table,
    constructive_model,
    init_model,
    model_of,
    one_hot,
)
from assay.studies.modular.files import Key, State
from assay.studies.modular.metrics.distances import (
    compare_metrics,
    correlation,
    cosine_similarity_to_metric,
    divergence_to_metric,
    inner_product_to_metric,
)
from assay.studies.modular.metrics.distances import continuity as compute_continuity
from assay.studies.modular.metrics.distances import jaccard as compute_jaccard_index
from assay.studies.modular.metrics.distances import knn_overlap as compute_knn_overlap
from assay.studies.modular.metrics.distances import neighbours as get_knn_indices
from assay.studies.modular.metrics.distances import optimal_scale as compute_optimal_scale
from assay.studies.modular.metrics.distances import stress as compute_stress
from assay.studies.modular.metrics.distances import trustworthiness as compute_trustworthiness
from assay.studies.modular.metrics.frequency_law import eigen_law
from assay.studies.modular.metrics.spectra import (
    JS_divergence,
    components_for_variance_threshold,
    cumulative_explained_variance,
    effective_rank,
    entropy_effective_rank,
    ratio_effective_rank,
)
from assay.studies.modular.metrics.spectra import eigenpairs as compute_eigendecomposition
from assay.studies.modular.metrics.spectra import interaction_matrices as compute_interaction_matrix_stack
from assay.studies.modular.metrics.spectra import js_divergence_matrix as compute_js_divergence_matrix
from assay.studies.modular.metrics.tensor_similarity import Factors, all_logits, symmetric_inner, symmetric_similarity
from assay.studies.modular.metrics.tensor_similarity import activation_similarity as compute_activation_similarity
from assay.studies.modular.metrics.tensor_similarity import (
    activation_similarity_matrix as compute_act_similarity_matrix,
)
from assay.studies.modular.metrics.tensor_similarity import symmetric_inner_matrix as compute_tn_inner_product_matrix
from assay.studies.modular.metrics.tensor_similarity import symmetric_similarity_matrix as compute_tn_similarity_matrix
from assay.studies.modular.spec.compression import compute_frequency_heatmap, compute_interaction_matrices

__all__ = [
    "Bilinear",
    "JS_divergence",
    "Model",
    "ModelConfig",
    "compare_metrics",
    "components_for_variance_threshold",
    "compute_accuracy",
    "compute_act_similarity_matrix",
    "compute_activation_similarity",
    "compute_all_frequency_heatmaps",
    "compute_all_logits",
    "compute_average_js_divergence",
    "compute_continuity",
    "compute_effective_rank",
    "compute_eigendecomposition",
    "compute_eigenvector_fft",
    "compute_frequency_distribution",
    "compute_interaction_matrices_from_state",
    "compute_interaction_matrix",
    "compute_interaction_matrix_stack",
    "compute_jaccard_index",
    "compute_js_divergence_matrix",
    "compute_knn_overlap",
    "compute_optimal_scale",
    "compute_stress",
    "compute_tn_inner_product_matrix",
    "compute_tn_similarity_matrix",
    "compute_trustworthiness",
    "constructive_model",
    "cosine_similarity_to_metric",
    "create_full_dataset",
    "create_labels",
    "create_train_val_split",
    "cumulative_explained_variance",
    "divergence_to_metric",
    "entropy_effective_rank",
    "extract_remainder_matrix",
    "get_device",
    "get_knn_indices",
    "get_upper_triangular",
    "init_model",
    "inner_product_to_metric",
    "load_model_for_dim",
    "make_dataloaders",
    "pairwise_cosine_similarity",
    "pearson_correlation",
    "print_comparison_results",
    "ratio_effective_rank",
    "symmetric_inner",
    "symmetric_similarity",
    "train_model",
    "train_step",
]

compute_all_logits = all_logits
compute_interaction_matrices_from_state = compute_interaction_matrices


def get_device() -> torch.device:
    """CUDA where it is there."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_model_for_dim(models_state: Mapping[Key, State], d_hidden: Key, P: int = 64) -> Model:
    """The model of one width (and seed) of a loaded sweep."""
    if d_hidden not in models_state:
        raise UserError(f"no model {d_hidden} here; there are {', '.join(map(str, models_state))}.")
    model = model_of(models_state[d_hidden])
    if model.config.p != P:
        raise UserError(f"model {d_hidden} is of P={model.config.p}, not of P={P}.")
    return model


def create_full_dataset(p: int = 64) -> Float[Tensor, "pairs inputs"]:
    """The inputs [onehot(a); onehot(b)] of all P^2 pairs; row aP + b."""
    a, b, _ = addition_table(p)
    return one_hot(a, b, p)


def create_labels(p: int = 64) -> Int[Tensor, " pairs"]:
    """(a + b) mod P of all P^2 pairs."""
    return addition_table(p)[2]


def create_train_val_split(
    p: int = 64, train_fraction: float = 0.5, seed: int = 0
) -> tuple[Int[Tensor, " train"], Int[Tensor, " val"]]:
    """Rows of the full dataset to train and to validate on, from a stream of the seed."""
    order = torch.randperm(p * p, generator=stream(seed, "split"))
    first = round(train_fraction * p * p)
    return order[:first], order[first:]


def make_dataloaders(
    p: int = 64, train_fraction: float = 0.75, batch_size: int = 64, seed: int = 0
) -> tuple[DataLoader, DataLoader]:
    """Shuffled training batches, the rest of the pairs in one; batches that are not full are dropped."""
    inputs, labels = create_full_dataset(p), create_labels(p)
    train, val = create_train_val_split(p, train_fraction, seed)
    batches = DataLoader(
        TensorDataset(inputs[train], labels[train]),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        generator=stream(seed, "order"),
    )
    return batches, DataLoader(TensorDataset(inputs[val], labels[val]), batch_size=len(val))


@torch.no_grad()
def compute_accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    return float((model(inputs).argmax(dim=-1) == labels).double().mean())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor) -> float:
    """One step of cross entropy; its loss before the step."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def train_model(
    model: Model,
    *,
    train_fraction: float = 0.5,
    epochs: int = 1000,
    lr: float = 1e-2,
    weight_decay: float = 1e-4,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Full batches of AdamW; the losses, and the accuracies on the pairs left out."""
    inputs, labels = create_full_dataset(model.config.p), create_labels(model.config.p)
    train, val = create_train_val_split(model.config.p, train_fraction, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    history: dict[str, list[float]] = {"loss": [], "val_acc": []}
    for _ in range(epochs):
        history["loss"].append(train_step(model, optimizer, inputs[train], labels[train]))
        history["val_acc"].append(compute_accuracy(model, inputs[val], labels[val]))
    return history


def compute_interaction_matrix(model: Factors, remainder: int) -> Float[Tensor, "inputs inputs"]:
    """The symmetric form of one output."""
    return compute_interaction_matrix_stack(model)[remainder]


def extract_remainder_matrix(stack: Float[Tensor, "P inputs inputs"], remainder: int) -> Float[Tensor, "inputs inputs"]:
    return stack[remainder]


def compute_effective_rank(
    matrix: Float[Tensor, "*batch n n"], method: Literal["entropy", "ratio"] = "entropy"
) -> Float[Tensor, "*batch"]:
    """How many eigenvalues of a symmetric matrix count."""
    return effective_rank(compute_eigendecomposition(matrix)[0], method)


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
    """Of rows at the same place."""
    return nn.functional.cosine_similarity(one, other, dim=-1)


def get_upper_triangular(matrix: Any) -> Float[np.ndarray, " pairs"]:
    """The entries above the diagonal: every pair once."""
    values = np.asarray(matrix, dtype=np.float64)
    return values[np.triu_indices(len(values), k=1)]


def pearson_correlation(one: Any, other: Any) -> float:
    """Over the pairs of two matrices, or of two vectors."""
    first, second = (np.asarray(x, dtype=np.float64) for x in (one, other))
    if first.ndim == 2:
        first, second = get_upper_triangular(first), get_upper_triangular(second)
    return correlation(first, second)


def print_comparison_results(results: Mapping[str, Any]) -> None:
    """What `compare_metrics` found, as text."""
    print(f"{results['name1']} and {results['name2']}")
    for name in ("pearson", "spearman", "optimal_scale", "stress", "stress_unnorm"):
        print(f"  {name:<16} {results[name]:.4f}")
    columns = ("knn_overlap", "knn_overlap_chance", "jaccard", "trustworthiness", "continuity")
    print(f"  {'k':<4}" + "".join(f"{name:>20}" for name in columns))
    for k, *scores in zip(results["k_values"], *(results[name] for name in columns), strict=True):
        print(f"  {k:<4}" + "".join(f"{score:>20.4f}" for score in scores))
