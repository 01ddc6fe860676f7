"""Models compared, their forms, the spectra and the frequencies in them, under the spec's names and in its order of
arguments: arrays in, arrays out.

    stack = compute_interaction_matrix(model)                        # (P, 2P, 2P), one symmetric form per remainder
    eigenvalues, eigenvectors = compute_eigendecomposition(stack[0])
    p = compute_frequency_distribution(eigenvalues, eigenvectors, P)

A matrix over models is made from the state dicts of a sweep, `compute_tn_similarity_matrix(models_state, P)`, or from a
list of models alone. Nothing switches gradients off for its caller. `show_progress` is accepted everywhere the original
has it; nothing here takes long enough to show it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import UserError
from assay.studies.modular.files import Key, State
from assay.studies.modular.matrices import Device, weights_of
from assay.studies.modular.metrics import spectra
from assay.studies.modular.metrics.frequency_law import eigen_law
from assay.studies.modular.metrics.tensor_similarity import (
    EPSILON,
    Entries,
    Factors,
    Matrix,
    activation_similarity_matrix,
    all_logits,
    symmetric_inner_matrix,
    symmetric_similarity_matrix,
)

Array = np.ndarray | Tensor
Models = Mapping[Key, State] | Sequence[Factors]


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
        return float(activation_similarity_matrix([model1, model2])[0, 1])
    return pairwise_cosine_similarity(compute_all_logits(model1, dataset), compute_all_logits(model2, dataset))


def compute_average_js_divergence(heatmap1: Any, heatmap2: Any) -> float:
    """The mean over remainders of the divergence of two heatmaps, at most ln 2; matrices have the sum, as in the
    spec."""
    return float(np.mean(spectra.JS_divergence(heatmap1, heatmap2)))


def compute_js_divergence_matrix(
    heatmaps: Mapping[Key, np.ndarray] | Sequence[np.ndarray] | np.ndarray,
    P: int | None = None,
    show_progress: bool = True,
) -> Matrix:
    """The divergence of all pairs of heatmaps, summed over the P remainders; in the order in which they are given."""
    laws = np.stack([np.asarray(law) for law in (heatmaps.values() if isinstance(heatmaps, Mapping) else heatmaps)])
    if P is not None and laws.shape[1] != P:
        raise UserError(f"these heatmaps have {laws.shape[1]} rows, where P={P} has {P}.")
    return spectra.js_divergence_matrix(laws)


def _models(models: Models, P: int | None, device: Device) -> Sequence[Factors]:
    """The models of a sweep's state dicts, or those given."""
    if not isinstance(models, Mapping):
        return models
    if P is None:
        raise UserError("give P too, as in compute_tn_similarity_matrix(models_state, P).")
    return weights_of(models, P, device)


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(values).detach().cpu()


def _plain(found: Tensor) -> Any:
    """A Python number for one value, an array for more."""
    return found.item() if found.ndim == 0 else found.numpy()


def _of_arrays(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """The function on arrays or tensors: a number for one spectrum, an array for several."""

    @wraps(function)
    def found(eigenvalues: Float[Array, "*batch rank"], *options: Any, **named: Any) -> Any:
        return _plain(function(_tensor(eigenvalues), *options, **named))

    return found


def compute_interaction_matrix(model: Factors, remainder: int | None = None) -> Float[np.ndarray, "..."]:
    """The symmetric forms of all outputs, (P, 2P, 2P), or of one, (2P, 2P)."""
    forms = spectra.interaction_matrices(model).cpu().numpy()
    return forms if remainder is None else forms[remainder]


def compute_interaction_matrix_stack(model: Factors) -> Float[np.ndarray, "P inputs inputs"]:
    return compute_interaction_matrix(model)


def compute_interaction_matrices(
    models_state: Mapping[Key, State], P: int, device: Device = None, show_progress: bool = True
) -> dict[Key, np.ndarray]:
    """The symmetric forms of each model, (P, 2P, 2P)."""
    found = zip(models_state, weights_of(models_state, P, device), strict=True)
    return {key: compute_interaction_matrix(model) for key, model in found}


compute_interaction_matrices_from_state = compute_interaction_matrices


def extract_remainder_matrix(
    int_mat_stack: Float[Array, "P inputs inputs"], remainder: int
) -> Float[Array, "inputs inputs"]:
    return int_mat_stack[remainder]


def compute_effective_rank(int_mat: Float[Array, "*batch n n"], method: Literal["entropy", "ratio"] = "entropy") -> Any:
    """The effective rank of a symmetric matrix, or of each of several."""
    methods = {"entropy": entropy_effective_rank, "ratio": ratio_effective_rank}
    if method not in methods:
        raise UserError(f"method={method!r}: choose one of {', '.join(methods)}.")
    return methods[method](compute_eigendecomposition(int_mat)[0])


def compute_eigendecomposition(int_mat: Float[Array, "*batch n n"]) -> tuple[np.ndarray, np.ndarray]:
    """All eigenvalues of a symmetric matrix by size, and eigenvectors as columns."""
    values, vectors = spectra.eigenpairs(_tensor(int_mat))
    return values.numpy(), vectors.numpy()


def compute_eigen_data(
    int_mats: Mapping[Key, Array], P: int, show_progress: bool = True
) -> dict[Key, dict[str, np.ndarray]]:
    """Eigenvalues of each form by size, (P, 2P), and eigenvectors as columns, (P, 2P, 2P)."""
    found = {}
    for key, forms in int_mats.items():
        if tuple(forms.shape) != (P, 2 * P, 2 * P):
            raise UserError(f"the forms of model {key} are {tuple(forms.shape)}, where P={P} has {(P, 2 * P, 2 * P)}.")
        found[key] = dict(zip(("eigenvalues", "eigenvectors"), compute_eigendecomposition(forms), strict=True))
    return found


def compute_eigenvector_fft(evec: Float[Array, " inputs"], P: int) -> dict[str, np.ndarray]:
    """Amplitudes of the two halves of an eigenvector and of the whole, with their frequencies."""
    vector = np.asarray(evec)
    halves = {"a": vector[:P], "b": vector[P:], "full": vector}
    amplitudes = {f"fft_{name}": np.abs(np.fft.rfft(part)) for name, part in halves.items()}
    return amplitudes | {f"freqs_{name}": np.fft.rfftfreq(len(part)) for name, part in halves.items()}


def compute_frequency_distribution(
    eigenvalues: Float[Array, " rank"], eigenvectors: Float[Array, "inputs rank"], P: int, n_evecs: int = 4
) -> Float[np.ndarray, " frequencies"]:
    """p(f | r) of one remainder's form by the spec's law."""
    halves = _tensor(eigenvectors)[None, :P].expand(P, -1, -1)
    return eigen_law(_tensor(eigenvalues)[None].expand(P, -1), halves, n_evecs=n_evecs)[0]


def compute_frequency_heatmap(
    eigen_data: Mapping[Key, Mapping[str, Array]], d_hidden: Key, P: int, n_evecs: int = 4
) -> np.ndarray:
    """p(f | r) of one model by the spec's law, (P, P//2 + 1)."""
    if d_hidden not in eigen_data:
        raise UserError(f"no model {d_hidden} here; there are {', '.join(map(str, eigen_data))}.")
    data = eigen_data[d_hidden]
    return eigen_law(_tensor(data["eigenvalues"]), _tensor(data["eigenvectors"]), n_evecs=n_evecs)


def compute_all_frequency_heatmaps(
    eigen_data: Mapping[Key, Mapping[str, Array]], P: int, n_evecs: int = 4, show_progress: bool = True
) -> dict[Key, np.ndarray]:
    """`compute_frequency_heatmap` of every model."""
    return {key: compute_frequency_heatmap(eigen_data, key, P, n_evecs) for key in eigen_data}


entropy_effective_rank = _of_arrays(spectra.entropy_effective_rank)
ratio_effective_rank = _of_arrays(spectra.ratio_effective_rank)
cumulative_explained_variance = _of_arrays(spectra.cumulative_explained_variance)
components_for_variance_threshold = _of_arrays(spectra.components_for_variance_threshold)
