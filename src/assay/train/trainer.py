"""Models trained on a task, step by step: one model here, many of one shape in `bank`.

The step is {sample, forward, backward, clip, update}. On a CPU it runs as it is written, in float32. On CUDA it runs in
bf16 autocast over float32 weights and is replayed as one CUDA graph, since small models are bound by launches; the
plain path (`graph=False`) gives the same numbers. The parts of a mixture take turns, each with a graph of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay.models.sequence import SequenceModule
from assay.nn.random import stream
from assay.tasks.base import Batch, Task
from assay.train.adamw import AdamW
from assay.train.checkpoint import load_checkpoint, save_checkpoint
from assay.train.recipe import Optimizer, Train, answer_losses

WARM_UP_STEPS = 3
"""Steps run as written before a graph is captured: they set up libraries and buffers. They count as training."""


class Trainer:
    """`run` yields after every validation interval; the caller validates with `answers`, and may save."""

    losses: Tensor
    """The latest training loss of each model."""
    optimizer: AdamW

    def __init__(self, task: Task, train: Train, *, seeds: Iterable[int], device: torch.device, graph: bool) -> None:
        self.train, self.device = train, device
        length = task.shape().length
        self.parts = [(part, train.micro_batch_size * length // part.shape().length) for part in task.parts()]
        self.rngs = {seed: stream(seed, "train", device=device) for seed in seeds}
        self.step = 0
        self.graph = graph and device.type == "cuda"
        self._warm = 0
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def run(self) -> Iterator[int]:
        """Train to the last step; yields the number of steps done at every validation."""
        while self.step < self.train.max_steps:
            self.optimizer.set_rate(self.train.rate(self.step))
            self._play(self.step % len(self.parts))
            self.step += 1
            if self.step % self.train.validate_every == 0 or self.step == self.train.max_steps:
                yield self.step

    def train_on(self, part: Task, batch: int) -> None:
        """One step."""
        raise NotImplementedError(f"{type(self).__name__}.train_on")

    def answers(self, batches: Sequence[Batch]) -> Iterator[Tensor]:
        """Model by model: its answers to its batch."""
        raise NotImplementedError(f"{type(self).__name__}.answers")

    def state(self) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__}.state")

    def restore(self, state: dict[str, Any]) -> None:
        raise NotImplementedError(f"{type(self).__name__}.restore")

    def save(self, path: Path, owners: Sequence[str], notes: Any = None) -> None:
        """Everything a later process needs to go on as if nothing had happened, and what the caller wants kept."""
        rngs = {seed: rng.get_state() for seed, rng in self.rngs.items()}
        saved = {"owners": list(owners), "state": self.state(), "rngs": rngs, "step": self.step, "notes": notes}
        save_checkpoint(path, saved)

    def load_if(self, path: Path, owners: Sequence[str]) -> Any:
        """Take up where `save` left and give back the caller's notes; None if nothing was saved, or for other runs, or
        if it is damaged. Raises where it does not fit: see `checkpoint.resumed`."""
        saved = load_checkpoint(path, self.device)
        if saved is None or saved["owners"] != list(owners):
            return None
        self.restore(saved["state"])
        for seed, rng in self.rngs.items():
            rng.set_state(saved["rngs"][seed].cpu())
        self.step = int(saved["step"])
        return saved["notes"]

    def _play(self, which: int) -> None:
        part, batch = self.parts[which]
        if not self.graph or self._warm < max(WARM_UP_STEPS, len(self.parts)):
            self._warm += 1
            self.train_on(part, batch)
            return
        if which not in self._graphs:
            self._graphs[which] = self._captured(lambda: self.train_on(part, batch))
        self._graphs[which].replay()

    def _captured(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """The step as one CUDA graph, its generators advancing at every replay."""
        graph = torch.cuda.CUDAGraph()
        for rng in self.rngs.values():
            graph.register_generator_state(rng)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()
        # One after the other and never two at once, so they may share their memory.
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.graph(graph, stream=side, pool=pool):
            step()
        return graph

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")


class SingleTrainer(Trainer):
    """One model."""

    def __init__(
        self,
        model: SequenceModule,
        task: Task,
        train: Train,
        optimizer: Optimizer,
        *,
        seed: int,
        graph: bool = True,
        compile: bool = False,
    ) -> None:
        device = next(model.parameters()).device
        super().__init__(task, train, seeds=[seed], device=device, graph=graph)
        self.model, self.recipe, self.seed = model, optimizer, seed
        self.forward: Callable[..., Tensor] = torch.compile(model) if compile else model
        decaying, rest = (
            [p for name, p in model.named_parameters() if decays(model)[name] == wanted] for wanted in (True, False)
        )
        self.optimizer = AdamW([(optimizer, decaying, rest)])
        self.losses = next(model.parameters()).new_zeros(1)

    def train_on(self, part: Task, batch: int) -> None:
        drawn = part.sample(batch, self.rngs[self.seed])
        with self.autocast():
            answers = self.forward(drawn.inputs, drawn.positions)
        loss = answer_losses(part, answers, drawn).mean()
        self.model.zero_grad(set_to_none=not self.graph)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip, foreach=True)
        self.optimizer.step()
        self.losses.copy_(loss.detach())

    @torch.no_grad()
    def answers(self, batches: Sequence[Batch]) -> Iterator[Tensor]:
        (batch,) = batches
        self.model.eval()
        with self.autocast():
            yield self.model(batch.inputs, batch.positions)
        self.model.train()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.restore(state["optimizer"])


def decays(model: SequenceModule) -> dict[str, bool]:
    """By parameter: matrices decay; gains, biases, and tables of embeddings or positions do not shrink for being
    rare."""
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    tables.add(id(model.position))
    return {name: p.ndim >= 2 and id(p) not in tables for name, p in model.named_parameters()}
