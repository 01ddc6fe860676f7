"""Generators are passed in, and initialisation leaves the global generator as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from assay.core.seeds import derive


def stream(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator of one named stream of a run."""
    return torch.Generator(device).manual_seed(derive(seed, *names))


def uniform(shape: tuple[int, ...], *rngs: torch.Generator, dim: int = 0, dtype: torch.dtype | None = None) -> Tensor:
    """Draw numbers of [0, 1) in this shape from each generator, and join them along the axis `dim`."""
    drawn = [torch.rand(shape, generator=rng, device=rng.device, dtype=dtype) for rng in rngs]
    return drawn[0] if len(drawn) == 1 else torch.cat(drawn, dim=dim)


def for_shapes_alone() -> bool:
    """Return whether modules are being built on the meta device. Initial values are skipped there: computing them would
    import torch's compiler, which takes two seconds."""
    return torch.empty(0).is_meta


@contextmanager
def initialised_from(seed: int, *names: str | int) -> Iterator[None]:
    """Draw modules' initial weights and dropout from a named stream inside the block: nn.Linear and its kind know only
    the global generators, which are restored afterwards."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(derive(seed, *names))
        if devices:
            torch.cuda.manual_seed(derive(seed, *names))
        yield
