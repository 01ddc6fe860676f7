"""The replay of an eviction history on CUDA: one token is some fifty small kernels, started as one CUDA graph.

The history itself is that of replay.py, step by step and to the bit; only who starts the kernels differs. The clock is
a tensor, so that the same graph serves every token.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from assay.attention.replay import Part, Slots

WARM_UP = 3
"""Steps before the capture, on a stream of their own, as CUDA graphs ask for."""


def replay(slots: "Slots", parts: Sequence["Part"], arrival: Tensor, *, at_once: int) -> None:
    """Every token of the sequence, in order; `slots` holds the history afterwards."""
    device, time = arrival.device, arrival.shape[-1]
    clock = torch.zeros((), dtype=torch.long, device=device)
    for part in parts:
        part.hold_scores(clock, at_once)

    def step() -> None:
        slots.admit(clock, arrival.index_select(-1, clock[None]))
        present = slots.present(clock, None)
        for part in parts:
            part.update(clock, None, slots, present)
        slots.evict(clock, present[:, :, -1])
        clock.add_(1)

    state = [clock, slots.position, slots.worth, slots.entry, slots.lowest, slots.last]
    graph = captured(step, state)
    for t in range(time):
        if t % at_once == 0:
            for part in parts:
                part.fill_scores(t)
        graph()


def captured(step: Callable[[], None], state: Sequence[Tensor]) -> Callable[[], None]:
    """`step` as a graph, with the state as it was; off CUDA the step itself, which lets tests follow the same path."""
    if not state[0].is_cuda:
        return step
    before = [tensor.clone() for tensor in state]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for tensor, old in zip(state, before, strict=True):
        tensor.copy_(old)
    return graph.replay
