"""Generators that are passed in, and initialisation that leaves the global generator as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from assay.core.seeds import derive


def stream(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of one named stream of a run."""
    return torch.Generator(device).manual_seed(derive(seed, *names))


@contextmanager
def initialised_from(seed: int, *names: str | int) -> Iterator[None]:
    """Inside, modules draw their initial weights from a named stream: nn.Linear and its kind know only the global
    generator, which is put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, *names))
        yield
