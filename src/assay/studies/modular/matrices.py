"""The spec's three matrices over the models of a saved sweep, each cached beside the sweep.

A matrix is `X.npy`, and beside it `X.npy.json` says what the rows are. This sidecar holds the hash of the weights and
options that the array was computed from, and the sha256 of the array's own file. Where the first does not match, or a
file is damaged or missing, the array is computed again. An array without a sidecar is somebody else's, perhaps the
original project's: it is loaded where its shape fits. It is never written over, nor is a whole array whose sha256 the
sidecar does not have. The sidecar is not `X.json`, which may be a sweep's manifest.
"""

import hashlib
import io
import json
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any, get_args

import numpy as np
import torch

from assay.core.errors import UserError
from assay.core.files import DAMAGE, TEXT, read_file, write_files
from assay.core.run import canonical
from assay.studies.modular.files import NAMES, Key, State, load
from assay.studies.modular.metrics.frequency_law import Kind, law_divergences
from assay.studies.modular.metrics.tensor_similarity import (
    Weights,
    activation_similarity_matrix,
    symmetric_similarity_matrix,
)

Device = str | torch.device | None
VERSION = 1
"""Part of every hash: raise it when the same weights and options give other numbers."""
LARGEST = 1 << 30
"""Most bytes of an array's file; a larger one is computed again."""


def load_or_compute_tn_similarity(
    sweep_path: str | Path, cache_path: str | Path | None = None, device: Device = None, force_recompute: bool = False
) -> np.ndarray:
    """The cosine of all pairs of models as symmetric tensors, in [-1, 1]; cached in tn_similarity.npy."""
    return _matrix("tn_similarity", symmetric_similarity_matrix, sweep_path, cache_path, device, force_recompute)


def load_or_compute_act_similarity(
    sweep_path: str | Path, cache_path: str | Path | None = None, device: Device = None, force_recompute: bool = False
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
    given = (sweep_path, cache_path, device, force_recompute)
    return _matrix("js_divergence", law_divergences, *given, n_evecs=n_evecs, kind=kind)


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
    compute: Callable[..., np.ndarray],
    sweep_path: str | Path,
    cache_path: str | Path | None,
    device: Device,
    force: bool,
    **options: Any,
) -> np.ndarray:
    """Load a matrix over the models of a sweep from its cache, or compute and cache it."""
    sweep = load(sweep_path)
    path = Path(sweep_path).parent / f"{name}.npy" if cache_path is None else Path(cache_path)
    return cached(
        path.with_suffix(".npy"),
        lambda: compute(weights_of(sweep.models, sweep.P, device), **options),
        source={"name": name, "weights": sweep.sha256, "options": options},
        about={"sweep": str(sweep_path), "rows": sweep.labels},
        shape=(len(sweep.models),) * 2,
        force=force,
    )


def cached(
    path: Path,
    compute: Callable[[], np.ndarray],
    *,
    source: Mapping[str, Any],
    about: Mapping[str, Any],
    shape: tuple[int, ...],
    force: bool = False,
) -> np.ndarray:
    """Load the array at `path` if its hash matches, or if somebody else wrote one of this shape; else compute it, and
    write it there if possible. `about` is for readers of the sidecar."""
    key = hashlib.sha256(canonical({"version": VERSION, **source}).encode()).hexdigest()
    beside = Path(f"{path}.json")
    sidecar, stored, sha256 = _read(path, beside)
    if not force and stored is not None and (sidecar.get("hash"), sidecar.get("sha256")) == (key, sha256):
        return stored
    alone = os.path.lexists(path) and not os.path.lexists(beside)
    if not force and alone and stored is not None and stored.shape == shape and stored.dtype.kind == "f":
        said = "is loaded as it is: assay did not write it and cannot tell whether it is of these models"
        warnings.warn(f"{path} {said}. Remove it to have the matrix computed", stacklevel=4)
        return stored.astype(np.float64)
    array = compute()
    if alone or (stored is not None and sidecar.get("sha256", sha256) != sha256):
        warnings.warn(f"{path} was not written by assay and stays: the matrix is computed, not kept", stacklevel=4)
        return array
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    own = hashlib.sha256(buffer.getvalue()).hexdigest()
    written = json.dumps({"hash": key, "sha256": own, "source": dict(source), **about}, indent=1) + "\n"
    try:
        write_files({beside: written.encode(), path: buffer.getvalue()})
    except OSError as error:  # the result is returned even where it cannot be cached
        warnings.warn(f"cannot keep {path}: {error.strerror}. The matrix is computed again next time", stacklevel=4)
    return array


def _read(path: Path, beside: Path) -> tuple[dict[str, Any], np.ndarray | None, str]:
    """Load the sidecar, the array and the hash of its file: empty and None where they are missing or damaged."""
    sidecar, array, sha256 = dict[str, Any](), None, ""
    with suppress(*DAMAGE):
        sidecar = dict(json.loads(read_file(beside, limit=64 * TEXT)))
    with suppress(*DAMAGE, SyntaxError, TokenError):
        data = read_file(path, limit=LARGEST)
        array, sha256 = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False), hashlib.sha256(data).hexdigest()
    return sidecar, array, sha256
