"""CUDA graphs launch a step of many small kernels as one.

Small models are bound by the time the host takes to launch kernels. A captured step reads and writes the same memory at
every replay, so whatever changes from step to step (a clock, a learning rate, the batch) has to lie in tensors.
"""

from collections.abc import Callable, Hashable, Iterable

import torch

WARM_UP_STEPS = 3
"""Steps run uncaptured first, and the first of every kind, to set up libraries and buffers. They count as steps."""


class Graphs:
    """Plays steps, each kind as a CUDA graph of its own. With `on` false every step runs uncaptured, so that tests on a
    CPU follow the same path."""

    def __init__(self, on: bool, *, warm_up: int = WARM_UP_STEPS, generators: Iterable[torch.Generator] = ()) -> None:
        self.on, self.warm_up = on, warm_up
        self._generators = list(generators)
        self._played: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._side: torch.cuda.Stream | None = None

    def play(self, kind: Hashable, step: Callable[[], None]) -> None:
        """Run `step` once; steps of one kind must be the same function of the same tensors."""
        if not self.on or kind not in self._played or sum(self._played.values()) < self.warm_up:
            self._played[kind] = self._played.get(kind, 0) + 1
            step()
            return
        if kind not in self._graphs:
            self._graphs[kind] = self._captured(step)
        self._graphs[kind].replay()

    def forget(self, unless: Callable[[Hashable], bool]) -> None:
        """Drop the graphs of kinds that are not played any more, with their memory."""
        self._graphs = {kind: graph for kind, graph in self._graphs.items() if unless(kind)}

    def _captured(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Capture the step without running it; its generators advance at every replay."""
        graph = torch.cuda.CUDAGraph()
        for rng in self._generators:
            graph.register_generator_state(rng)
        # Graphs are replayed one after the other, never two at once, so they share one pool of memory. A pool serves
        # captures of one stream.
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        self._side = self._side or torch.cuda.Stream()
        torch.cuda.synchronize()
        free, whole = torch.cuda.mem_get_info()
        if free < whole / 2:
            # Not always, as torch.cuda.graph does: steps outside of graphs would have to allocate it all again.
            torch.cuda.empty_cache()
        with torch.cuda.stream(self._side):
            graph.capture_begin(pool=pool)
            try:
                step()
            finally:
                graph.capture_end()
        return graph
