"""Sets torch as the numerics of a run say; train/numerics.py chooses them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from assay.core.run import Numerics, computing_on
from assay.nn import scan
from assay.train.numerics import check_backend


@contextmanager
def activate(numerics: Numerics) -> Iterator[torch.device]:
    """Set torch and the scans as a run's numerics say, yield its device, and restore the settings afterwards.

    oneDNN is off: at the first product it cannot do (bf16 on a core without it) torch drops it for the rest of the
    process, so that the bits of a run would depend on what ran before. Nothing here is slower without it.
    """
    check_backend(numerics.device, numerics.backend)  # a worker on another machine may lack the package
    onednn, precision = torch._C._get_mkldnn_enabled(), torch.get_float32_matmul_precision()
    before = torch.get_num_threads(), precision, onednn, scan.backend
    _set(numerics.threads, numerics.matmul_precision, onednn=False, backend=numerics.backend)
    try:
        with computing_on(**(_gpu() if numerics.device == "cuda" else {})):
            yield torch.device(numerics.device)
    finally:
        _set(*before)


def _gpu() -> dict[str, str]:
    """The GPU of this process, for provenance; empty where torch has none, since the first tensor there raises a better
    error."""
    if not torch.cuda.is_available():
        return {}
    return {"gpu": torch.cuda.get_device_name(), "driver": _driver(), "cuda": str(torch.version.cuda or "")}


@cache
def _driver(version: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The version of NVIDIA's kernel module, as Linux shows it; empty elsewhere, since torch does not know it."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", version.read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def _set(threads: int, precision: str, onednn: bool, backend: str) -> None:
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch._C._set_mkldnn_enabled(onednn)
    scan.backend = backend
