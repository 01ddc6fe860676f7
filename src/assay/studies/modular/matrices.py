"""The spec's three matrices over the models of a saved sweep, each cached beside the sweep."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from assay.core.errors import UserError
from assay.studies.modular.cache import cached
from assay.studies.modular.files import NAMES, Key, State, load
from assay.studies.modular.metrics.frequency_law import Kind, law_divergences
from assay.studies.modular.metrics.tensor_similarity import (
    Weights,
    activation_similarity_matrix,
    symmetric_similarity_matrix,
)

Device = str | torch.device | None


def load_or_compute_tn_similarity(
    sweep_path: str | Path,
    cache_path: str | Path | None = None,
    device: Device = None,
    force_recompute: bool = False,
) -> np.ndarray:
    """The cosine of all pairs of models as symmetric tensors, in [-1, 1]; cached in tn_similarity.npy."""
    return _matrix("tn_similarity", symmetric_similarity_matrix, sweep_path, cache_path, device, force_recompute)


def load_or_compute_act_similarity(
    sweep_path: str | Path,
    cache_path: str | Path | None = None,
    device: Device = None,
    force_recompute: bool = False,
) -> np.ndarray:
    """The mean cosine of all pairs' logits over all inputs, in [-1, 1]; cached in act_similarity.npy."""
    return _matrix("act_similarity", activation_similarity_matrix, sweep_path, cache_path, device, force_recompute)


def load_or_compute_js_divergence(
    sweep_path: str | Path,
    cache_path: str | Path | None = None,
    device: Device = None,
    force_recompute: bool = False,
    n_evecs: int = 4,
    kind: Kind = "eigen",
) -> np.ndarray:
    """The Jensen-Shannon divergence of all pairs' p(f | r), summed over r: at most P ln 2; cached in
    js_divergence.npy. `kind` chooses the law: the spec's, or one that no eigensolver can turn."""
    if kind not in get_args(Kind):
        raise UserError(f"kind={kind!r}: the laws are {', '.join(get_args(Kind))}.")
    options: dict[str, Any] = {"n_evecs": n_evecs, "kind": kind}
    compute = partial(law_divergences, **options)
    return _matrix("js_divergence", compute, sweep_path, cache_path, device, force_recompute, options)


def weights_of(models_state: Mapping[Key, State], P: int, device: Device = None) -> list[Weights]:
    """The three matrices of each model, on a device."""
    found = []
    for key, state in models_state.items():
        if missing := [name for name in NAMES if name not in state]:
            raise UserError(f"model {key} has no weight '{missing[0]}'.")
        both, readout = (state[name].detach().to(device or "cpu") for name in NAMES)
        left, right = both.chunk(2)
        found.append(Weights(left, right, readout))
        if found[-1].P != P:
            raise UserError(f"model {key} is of P={found[-1].P}, not of P={P}.")
    return found


def _matrix(
    name: str,
    compute: Callable[[Sequence[Weights]], np.ndarray],
    sweep_path: str | Path,
    cache_path: str | Path | None,
    device: Device,
    force: bool,
    options: Mapping[str, Any] | None = None,
) -> np.ndarray:
    """Load a matrix over the models of a sweep from its cache, or compute and cache it."""
    sweep = load(sweep_path)
    path = Path(sweep_path).parent / f"{name}.npy" if cache_path is None else Path(cache_path)
    return cached(
        path.with_suffix(".npy"),
        lambda: compute(weights_of(sweep.models, sweep.P, device)),
        source={"name": name, "weights": sweep.sha256, "options": dict(options or {})},
        about={"sweep": str(sweep_path), "rows": sweep.labels},
        force=force,
    )
