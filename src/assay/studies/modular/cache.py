"""Caches arrays on disk: `X.npy`, and beside it `X.npy.json`, which says what the rows are.

The sidecar holds the hash of the weights and options that the array was computed from, and the sha256 of the array's
own file. Where either does not match, or a file is damaged or missing, the array is computed again. Both files are
written by rename, the sidecar last. The sidecar is not `X.json`, which may be a sweep's manifest.
"""

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from assay.core.files import DAMAGE, TEXT, read_file
from assay.core.run import canonical
from assay.core.store import write_file

VERSION = 1
"""Part of every hash: raise it when the same weights and options give other numbers."""
LARGEST = 1 << 30
"""Most bytes of an array's file; a larger one is computed again."""


def cached(
    path: Path,
    compute: Callable[[], np.ndarray],
    *,
    source: Mapping[str, Any],
    about: Mapping[str, Any],
    force: bool = False,
) -> np.ndarray:
    """Load the array at `path` if its hash matches; else compute it, and write it there if possible. `about` is for
    readers of the sidecar."""
    key = hashlib.sha256(canonical({"version": VERSION, **source}).encode()).hexdigest()
    if not force and (found := _stored(path, key)) is not None:
        return found
    array = compute()
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    own = hashlib.sha256(buffer.getvalue()).hexdigest()
    sidecar = {"hash": key, "sha256": own, "source": dict(source), **about}
    try:
        write_file(path, buffer.getvalue())
        write_file(_sidecar(path), (json.dumps(sidecar, indent=1) + "\n").encode())
    except OSError as error:  # the result is returned even where it cannot be cached
        warnings.warn(f"cannot keep {path}: {error.strerror}. The matrix is computed again next time", stacklevel=2)
    return array


def _sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _stored(path: Path, key: str) -> np.ndarray | None:
    """Load the cached array, or None if it is damaged or its hash differs."""
    try:
        sidecar = json.loads(read_file(_sidecar(path), limit=64 * TEXT))
        if sidecar["hash"] != key:
            return None
        data = read_file(path, limit=LARGEST)
        if sidecar["sha256"] != hashlib.sha256(data).hexdigest():
            return None
        found: np.ndarray = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        return found
    except (*DAMAGE, SyntaxError, TokenError):
        return None
