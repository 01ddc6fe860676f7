"""Rows that bracket every score: the ideal observer of the noisy input above, noise below.

A reference is not an encoder: it knows the task, or nothing at all. Its codes go through the same probes.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from assay.nn.random import stream
from assay.tasks.base import Batch, Task

REFERENCES = ("Oracle", "Noise")


@dataclass(frozen=True)
class Reference:
    name: Literal["Oracle", "Noise"]
    d_code: int
    seed: int

    def code(self, task: Task, batch: Batch, part: str) -> Float[Tensor, "batch d_code"]:
        if self.name == "Noise":
            rng = stream(self.seed, "noise code", task.name, part)
            return torch.randn(len(batch.inputs), self.d_code, generator=rng).to(batch.inputs.device)
        answer = task.oracle(batch)
        assert answer is not None, "tasks for encoders have an oracle"
        # A random rotation of the answer over all units: any r of them hold all of it, as in the best redundant code.
        spread = torch.randn(answer.shape[1], self.d_code, generator=stream(self.seed, "spread", task.name))
        return answer @ spread.to(answer)
