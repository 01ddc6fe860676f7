"""Arrays that are computed once: `X.npy`, and beside it `X.json`, which says what the rows are and of what it is true.

The sidecar holds the hash of the weights and options that the array was computed from, and the sha256 of the array's
own file. Where either does not match, the array is computed again: another sweep, a changed weight or another option
never finds an old matrix. Both files are written by rename, the sidecar last.
"""

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.run import canonical
from assay.core.store import disk_errors, write_file


def cached(
    path: Path,
    compute: Callable[[], np.ndarray],
    *,
    source: Mapping[str, Any],
    about: Mapping[str, Any],
    force: bool = False,
) -> np.ndarray:
    """The array at `path` if it is of this source, or a new one. `about` is for readers of the sidecar."""
    key = hashlib.sha256(canonical(dict(source)).encode()).hexdigest()
    if not force and (found := _stored(path, key)) is not None:
        return found
    array = compute()
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    own = hashlib.sha256(buffer.getvalue()).hexdigest()
    sidecar = {"hash": key, "sha256": own, "source": dict(source), **about}
    with disk_errors(path):
        write_file(path, buffer.getvalue())
        write_file(path.with_suffix(".json"), (json.dumps(sidecar, indent=1) + "\n").encode())
    return array


def _stored(path: Path, key: str) -> np.ndarray | None:
    """What is there, if it is whole and of this source."""
    try:
        data, sidecar = path.read_bytes(), json.loads(path.with_suffix(".json").read_bytes())
        if sidecar["hash"] != key or sidecar["sha256"] != hashlib.sha256(data).hexdigest():
            return None
        found: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
        return found
    except (OSError, ValueError, KeyError, TypeError):
        return None
