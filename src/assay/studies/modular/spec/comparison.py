"""Compares models and heatmaps, under the spec's names and in its order of arguments.

A matrix over models is made from the state dicts of a sweep, `compute_tn_similarity_matrix(models_state, P)`, or from a
list of models alone. Nothing switches gradients off for its caller.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import UserError
from assay.studies.modular.files import Key, State
from assay.studies.modular.matrices import Device, weights_of
from assay.studies.modular.metrics.spectra import JS_divergence, js_divergence_matrix
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


def _models(models: Models, P: int | None, device: Device) -> Sequence[Factors]:
    """The models of a sweep's state dicts, or those given."""
    if not isinstance(models, Mapping):
        return models
    if P is None:
        raise UserError("give P too, as in compute_tn_similarity_matrix(models_state, P).")
    return weights_of(models, P, device)
