"""Generators that are passed in, and initialisation that leaves the global generator as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from assay.core.seeds import derive


def stream(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of one named stream of a run."""
    return torch.Generator(device).manual_seed(derive(seed, *names))


def for_shapes_alone() -> bool:
    """Whether modules are being built on the meta device. Initial values are left out there: to compute them would
    import torch's compiler, which takes two seconds."""
    return torch.empty(0).is_meta


@contextmanager
def initialised_from(seed: int, *names: str | int) -> Iterator[None]:
    """Inside, modules draw their initial weights, and their dropout, from a named stream: nn.Linear and its kind know
    only the global generators, which are put back afterwards."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(derive(seed, *names))
        if devices:
            torch.cuda.manual_seed(derive(seed, *names))
        yield
