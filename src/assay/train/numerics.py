"""Chooses the device and the rest of what the last bits of a run depend on.

Torch takes seconds to import, and is asked for a GPU alone: with `--device cpu`, a study that computes without it does
without it in the driver too.
"""

from assay.core.errors import UserError
from assay.core.run import Numerics

UNTESTED = ("mps",)
"""Devices that torch offers and assay was never run on; float32 without autocast there, as on a CPU."""


def numerics_for(
    device: str, *, backend: str = "torch", compile: bool = False, autocast: bool = False, here: bool = True
) -> Numerics:
    """Turn `auto`, `cpu`, `cuda`, `cuda:1` or `mps` into the numerics in run ids; raises for a device that has to be
    `here` and is not, and for a backend that cannot run on it. `auto` never chooses a device that assay was not tested
    on."""
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda", *UNTESTED) or (index and not (index.isdigit() and kind == "cuda")):
        raise UserError(f"--device {device}: choose auto, cpu, cuda, cuda:N or mps.")
    if kind != "cpu" and here:
        _check_there(kind, int(index or 0), device)
    check_backend(kind, backend)
    dtype = "bfloat16 autocast" if autocast and kind == "cuda" else "float32"
    return Numerics(device=kind, dtype=dtype, backend=backend, compile=compile)


def gpus_of(device: str) -> tuple[int, ...]:
    """The GPUs that a word names: `cuda` is all, `cuda:1` is one, `cpu` and `mps` none."""
    if numerics_for(device).device != "cuda":
        return ()
    import torch

    index = device.partition(":")[2]
    return (int(index),) if index else tuple(range(torch.cuda.device_count()))


def _check_there(kind: str, index: int, device: str) -> None:
    import torch

    if kind == "cuda" and torch.cuda.device_count() <= index:
        raise UserError(
            f"--device {device}: this machine shows {torch.cuda.device_count()} CUDA devices. Use --device cpu."
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError(
            "--device mps: torch offers no MPS on this machine, only on Macs with its GPU. Use --device cpu."
        )


def check_backend(device: str, backend: str) -> None:
    """Raises for a backend that cannot run on the device."""
    if backend == "fla":
        from assay.nn import fla

        fla.check(device)
    elif backend == "triton" and device != "cuda":
        raise UserError("--backend triton runs on CUDA alone: leave it out, or use --device cuda.")
    elif backend not in ("torch", "triton"):
        raise UserError(f"--backend {backend}: choose torch, triton or fla.")
