"""Chooses the device, and sets the numerics that go with it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from assay.core.errors import UserError
from assay.core.run import Numerics, computing_on
from assay.nn import fla, scan

UNTESTED = ("mps",)
"""Devices that torch offers and assay was never run on; float32 without autocast there, as on a CPU."""


def numerics_for(device: str, *, backend: str = "torch", compile: bool = False, autocast: bool = False) -> Numerics:
    """Turn `auto`, `cpu`, `cuda`, `cuda:1` or `mps` into the numerics in run ids; raises for a missing device, and for
    a backend that cannot run on it. `auto` never chooses a device that assay was not tested on."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda", *UNTESTED) or (index and not (index.isdigit() and kind == "cuda")):
        raise UserError(f"--device {device}: choose auto, cpu, cuda, cuda:N or mps.")
    if kind == "cuda" and torch.cuda.device_count() <= int(index or 0):
        raise UserError(
            f"--device {device}: this machine shows {torch.cuda.device_count()} CUDA devices. Use --device cpu."
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError(
            "--device mps: torch offers no MPS on this machine, only on Macs with its GPU. Use --device cpu."
        )
    _check_backend(kind, backend)
    dtype = "bfloat16 autocast" if autocast and kind == "cuda" else "float32"
    return Numerics(device=kind, dtype=dtype, backend=backend, compile=compile)


def gpus_of(device: str) -> tuple[int, ...]:
    """The GPUs that a word names: `cuda` is all, `cuda:1` is one, `cpu` and `mps` none."""
    if numerics_for(device).device != "cuda":
        return ()
    index = device.partition(":")[2]
    return (int(index),) if index else tuple(range(torch.cuda.device_count()))


@contextmanager
def activate(numerics: Numerics) -> Iterator[torch.device]:
    """Set torch and the scans as a run's numerics say, yield its device, and restore the settings afterwards.

    oneDNN is off: at the first product it cannot do (bf16 on a core without it) torch drops it for the rest of the
    process, so that the bits of a run would depend on what ran before. Nothing here is slower without it.
    """
    _check_backend(numerics.device, numerics.backend)  # a worker on another machine may lack the package
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


def _check_backend(device: str, backend: str) -> None:
    if backend == "fla":
        fla.check(device)
    elif backend == "triton" and device != "cuda":
        raise UserError("--backend triton runs on CUDA alone: leave it out, or use --device cuda.")
    elif backend not in ("torch", "triton"):
        raise UserError(f"--backend {backend}: choose torch, triton or fla.")


def _set(threads: int, precision: str, onednn: bool, backend: str) -> None:
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch._C._set_mkldnn_enabled(onednn)
    scan.backend = backend
