"""A trainer takes models through the steps of a task: one model here, many of one shape in `bank`.

The step is {sample, forward, backward, clip, update}. On a CPU it runs as it is written, in float32. On CUDA it runs in
bf16 autocast over float32 weights and is replayed as one CUDA graph, since small models are bound by launches; the
plain path (`graph=False`) gives the same numbers. The parts of a mixture take turns, each with a graph of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from assay.models.sequence import SequenceModule
from assay.nn.capture import WARM_UP_STEPS, Graphs
from assay.nn.random import stream
from assay.tasks.base import Batch, Task
from assay.train.adamw import AdamW
from assay.train.checkpoint import generator_states, restore_generators
from assay.train.recipe import Optimizer, Train, answer_losses


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
        warm_up = max(WARM_UP_STEPS, len(self.parts))  # each part once at least
        self._graphs = Graphs(self.graph, warm_up=warm_up, generators=self.rngs.values())

    def run(self) -> Iterator[int]:
        """Train to the last step; yields the number of steps done at every validation."""
        while self.step < self.train.max_steps:
            self.optimizer.set_rate(self.train.rate(self.step))
            which = self.step % len(self.parts)
            self._graphs.play(which, partial(self.train_on, *self.parts[which]))
            self.step += 1
            if self.step % self.train.validate_every == 0 or self.step == self.train.max_steps:
                yield self.step

    def train_on(self, part: Task, batch: int) -> None:
        """Take one step on a batch of this part of the task."""
        raise NotImplementedError(f"{type(self).__name__}.train_on")

    def answers(self, batches: Sequence[Batch]) -> Iterator[Tensor]:
        """Yield each model's answers to its batch."""
        raise NotImplementedError(f"{type(self).__name__}.answers")

    def state(self) -> dict[str, Any]:
        """Collect everything that a trainer of the same models needs to resume to the same bits."""
        return {"step": self.step, "rngs": generator_states(self.rngs), "optimizer": self.optimizer.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.optimizer.restore(state["optimizer"])
        restore_generators(self.rngs, state["rngs"])
        self.step = int(state["step"])

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")


class SingleTrainer(Trainer):
    """Trains one model."""

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
        return super().state() | {"model": self.model.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.model.load_state_dict(state["model"])


def decays(model: SequenceModule) -> dict[str, bool]:
    """Return for each parameter whether it decays: matrices do; gains, biases, and tables of embeddings or positions do
    not, since a row that is rarely used would shrink for it."""
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    tables.add(id(model.position))
    return {name: p.ndim >= 2 and id(p) not in tables for name, p in model.named_parameters()}
