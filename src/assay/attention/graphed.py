"""On CUDA an eviction history is replayed as one CUDA graph, launched once per token in place of some fifty
small kernels.

The history itself is that of replay.py, step by step and to the bit; only who starts the kernels differs. The clock is
a tensor, so that the same graph serves every token.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from assay.nn.capture import Graphs

if TYPE_CHECKING:
    from assay.attention.replay import Part, Slots


def replay(slots: "Slots", parts: Sequence["Part"], initial: Tensor, *, at_once: int) -> None:
    """Replay every token of the sequence, in order; `slots` holds the history afterwards."""
    device, time = initial.device, initial.shape[-1]
    clock = torch.zeros((), dtype=torch.long, device=device)
    for part in parts:
        part.hold_scores(clock, at_once)

    def step() -> None:
        slots.admit(clock, initial.index_select(-1, clock[None]))
        present = slots.present(clock, None)
        for part in parts:
            part.update(clock, None, slots, present)
        slots.evict(clock, None)  # a graph is replayed only where the model hides nothing
        clock.add_(1)

    graphs = Graphs(device.type == "cuda")
    for t in range(time):
        if t % at_once == 0:
            for part in parts:
                part.fill_scores(t)
        graphs.play("token", step)
