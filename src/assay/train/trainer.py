"""A trainer takes models through the steps of a task: one model here, many of one shape in `bank`.

The step is {sample, forward, backward, clip, update}. On a CPU it runs as it is written, in float32. On CUDA it runs in
bf16 autocast over float32 weights and is replayed as CUDA graphs, since small models are bound by launches; the plain
path (`graph=False`) gives the same numbers. The parts of a mixture take turns, each with a graph of its own.

With a curriculum a model begins on the smallest part and takes its turns over those that are open to it. Which are is
decided by its own validation alone, never by the models it is trained with: on a CPU any subset of a bank gives the
same bits. So at one step models may be on different parts, and those on the same one, a group, are one program. A
solved model stops, and leaves its group. Groups change after validations only, so that few graphs are captured.
"""

from collections.abc import Callable, Iterator, Sequence
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

Members = tuple[int, ...]
"""Models of a bank, by their place."""
AT_ONCE = 2**14
"""Tokens that a CPU answers at once: what lies between the layers of more does not fit its caches."""


class Trainer:
    """`run` yields after every validation interval; the caller validates with `answers`, hands the scores to
    `validated`, and may save."""

    losses: Tensor
    """The latest training loss of each model."""
    optimizer: AdamW

    def __init__(self, task: Task, train: Train, *, seeds: Sequence[int], device: torch.device, graph: bool) -> None:
        self.train, self.device = train, device
        self.turns = task.turns(train.micro_batch_size)
        assert not train.curriculum or [part for part, _ in self.turns] == list(task.scored_parts())
        # Models of one seed see the same batches, and share their generator unless a curriculum may part them.
        own = range(len(seeds)) if train.curriculum else seeds
        self.rngs = {key: stream(seed, "train", device=device) for key, seed in zip(own, seeds, strict=True)}
        self.rng_of = list(own)
        self.step = 0
        self.open = [1 if train.curriculum else len(self.turns) for _ in seeds]
        """How many of the parts are open to each model."""
        self.stopped_at: list[int | None] = [None for _ in seeds]
        """The step after which each model stopped."""
        self.tokens = [0 for _ in seeds]
        """Tokens that each model was trained on."""
        self.watch: Callable[[int], None] = lambda step: None
        """Called with the steps done, after every step that no validation follows."""
        self.graph = graph and device.type == "cuda"
        self._graphs = Graphs(self.graph, warm_up=2 * WARM_UP_STEPS, generators=self.rngs.values())

    def run(self) -> Iterator[int]:
        """Train to the last step, or until every model stopped; yields the steps done at every validation."""
        while self.step < self.train.max_steps and self.going:
            self.optimizer.set_rate(self.train.rate(self.step))
            for members in self.groups():
                part, batch = turn = self.turns[self.step % self.open[members[0]]]
                self._graphs.play((turn, members), partial(self.train_on, part, batch, members))
                for member in members:
                    self.tokens[member] += batch * part.shape().length
            self._graphs.play(("update", self.going), self.update)
            self.step += 1
            if self.step % self.train.validate_every == 0 or self.step == self.train.max_steps:
                yield self.step
            else:
                self.watch(self.step)

    @property
    def going(self) -> Members:
        """The models that have not stopped."""
        return tuple(member for member, step in enumerate(self.stopped_at) if step is None)

    def groups(self) -> list[Members]:
        """Return the models that go on, those with the same open parts together."""
        stages = sorted({self.open[member] for member in self.going})
        return [tuple(member for member in self.going if self.open[member] == stage) for stage in stages]

    def validated(self, scores: Sequence[Sequence[float]]) -> None:
        """Take each model's accuracies by part, smallest first: open its next part, or stop it if it is solved."""
        for member in self.going:
            found = scores[member]
            if self.train.stop_at and min(found) >= self.train.stop_at:
                self.stop(member)
            elif self.open[member] < len(self.turns) and (self.open[member] > 1 or found[0] >= self.train.curriculum):
                self.open[member] += 1
        current = {*self.groups(), self.going}
        self._graphs.forget(lambda kind: isinstance(kind, tuple) and kind[1] in current)

    def stop(self, member: int) -> None:
        """Leave a model as it is from now on."""
        self.stopped_at[member] = self.step

    def train_on(self, part: Task, batch: int, members: Members) -> None:
        """Compute the gradients of these models on a batch of this part of the task."""
        raise NotImplementedError(f"{type(self).__name__}.train_on")

    def update(self) -> None:
        """Take the step of all models that go on."""
        self.optimizer.step()

    def answers(self, batches: Sequence[Batch]) -> Iterator[Tensor]:
        """Yield each model's answers to its batch."""
        raise NotImplementedError(f"{type(self).__name__}.answers")

    def state(self) -> dict[str, Any]:
        """Collect everything that a trainer of the same models needs to resume to the same bits."""
        stages = {"open": self.open, "stopped_at": self.stopped_at, "tokens": self.tokens}
        optimizer = self.optimizer.state()
        return {"step": self.step, "rngs": generator_states(self.rngs), "optimizer": optimizer, "stages": stages}

    def restore(self, state: dict[str, Any]) -> None:
        self.optimizer.restore(state["optimizer"])
        restore_generators(self.rngs, state["rngs"])
        stages = state["stages"]
        self.open, self.tokens = list(stages["open"]), list(stages["tokens"])
        self.step = int(state["step"])
        for member, step in enumerate(stages["stopped_at"]):
            if step is not None:
                self.stop(member)
                self.stopped_at[member] = step

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
        self.model, self.recipe = model, optimizer
        self.parameters = list(model.parameters())  # to walk over all modules takes a twentieth of a small step
        self.forward: Callable[..., Tensor] = torch.compile(model) if compile else model
        decaying, rest = (
            [p for name, p in model.named_parameters() if decays(model)[name] == wanted] for wanted in (True, False)
        )
        self.optimizer = AdamW([(optimizer, decaying, rest)])
        self.losses = next(model.parameters()).new_zeros(1)

    def train_on(self, part: Task, batch: int, members: Members) -> None:
        drawn = part.sample(batch, self.rngs[self.rng_of[0]])
        with self.autocast():
            answers = self.forward(drawn.inputs, drawn.positions)
        loss = answer_losses(part, answers, drawn).mean()
        if self.graph:
            self.model.zero_grad(set_to_none=False)  # a replayed step adds to the gradients it was captured with
        for parameter in () if self.graph else self.parameters:
            parameter.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip, foreach=True)
        self.losses.copy_(loss.detach())

    @torch.no_grad()
    def answers(self, batches: Sequence[Batch]) -> Iterator[Tensor]:
        (batch,) = batches
        self.model.eval()
        rows = len(batch.inputs) if self.device.type == "cuda" else max(1, AT_ONCE // batch.inputs.shape[1])
        positions = () if batch.positions is None else (batch.positions.split(rows),)
        with self.autocast():
            yield torch.cat([self.model(*some) for some in zip(batch.inputs.split(rows), *positions, strict=True)])
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
