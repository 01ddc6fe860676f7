"""The synthetic world of the study: three contexts that hide global factors, and a lookup.

Subclass `HybridGenerator` to tweak a law, and give the subclass to `ExpressivityTester(cfg, generator=...)`.
"""

from typing import Literal

import torch

from assay.nn.random import stream
from assay.studies.expressivity.spec.config import Config
from assay.tasks.base import Batch, Task

CONTEXTS: tuple[Literal[0, 1, 2], ...] = (0, 1, 2)


class HybridGenerator:
    """Draws each sample from a named stream of the seed, so no encoder's data depend on what ran before."""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.contexts: tuple[Task, ...] = tuple(cfg.context(context, seed=cfg.seed) for context in CONTEXTS)
        self.retrieval: Task = cfg.lookup()

    def features(self, batch: int, context: int = 0, *, part: str = "sample") -> Batch:
        """Sequences whose targets are the global factors."""
        return self._draw(self.contexts[context], batch, f"context{context}", part)

    def lookups(self, batch: int, *, part: str = "sample") -> Batch:
        """Sequences whose target is the value at the queried key."""
        return self._draw(self.retrieval, batch, "retrieval", part)

    def stream(self, *names: str) -> torch.Generator:
        # Always on the CPU, so that a score does not depend on the device's generator.
        return stream(self.cfg.seed, "data", *names)

    def _draw(self, task: Task, batch: int, *names: str) -> Batch:
        return to_device(task.sample(batch, self.stream(*names)), self.cfg.torch_device)


def to_device(batch: Batch, device: str) -> Batch:
    return Batch(batch.inputs.to(device), batch.targets.to(device))
