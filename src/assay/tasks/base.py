"""A task draws whole batches from a distribution, and knows the best possible answer to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from assay.core.errors import UserError
from assay.core.plugin import Plugin, Registry
from assay.tasks import tasks

Loss = Literal["cross_entropy", "mse", "bce"]


@dataclass(frozen=True)
class Tokens:
    """Integers below `vocab`."""

    vocab: int


@dataclass(frozen=True)
class Vectors:
    """Real vectors."""

    dim: int


@dataclass(frozen=True)
class TaskShape:
    inputs: Tokens | Vectors
    outputs: Tokens | Vectors
    length: int
    answers_per_position: int = 1
    """More than one: the model's last vector at a position is read out by as many heads, an answer each."""


@dataclass(frozen=True)
class Batch:
    """`inputs` (batch, time) tokens or (batch, time, d_in); `targets` one answer per sequence, or one per entry of
    `positions` (batch, answers), which says where the answers are read; with several answers per position, those of a
    position stand in a row. Answers at positions that are one number wide, Vectors(1), have no axis for it: their
    targets are (batch, answers)."""

    inputs: Tensor
    targets: Tensor
    positions: Tensor | None = None

    @property
    def asked(self) -> Tensor:
        """`positions`, in tasks whose answers are read at some."""
        assert self.positions is not None
        return self.positions


def stacked(batches: Sequence[Batch]) -> Batch:
    """Stack batches along a new first axis."""
    asked = [batch.positions for batch in batches if batch.positions is not None]
    inputs, targets = (torch.stack([getattr(batch, name) for batch in batches]) for name in ("inputs", "targets"))
    return Batch(inputs, targets, torch.stack(asked) if asked else None)


class Task(Plugin):
    """Base of tasks/<name>.py, which opens with the task's definition and a worked example."""

    registry: ClassVar[Registry] = tasks
    loss: ClassVar[Loss] = "cross_entropy"
    in_context: ClassVar[bool] = True
    """Answers are read at positions of the sequence; otherwise there is one per sequence, for an encoder's code."""
    by_examples: ClassVar[bool] = False
    """The sequence is examples of one thing, and answer i is read after i of them: reports show the score by i."""

    bytes_of_text: ClassVar[bool] = False
    """Tokens are the bytes of a text: the score that counts is the loss, in bits per byte."""

    def shape(self) -> TaskShape:
        raise NotImplementedError(f"{type(self).__name__}.shape")

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        """Draw a whole batch at once, on the generator's device; equal generators give equal batches."""
        raise NotImplementedError(f"{type(self).__name__}.sample")

    def sample_together(self, batch: int, rngs: Sequence[torch.Generator]) -> Batch:
        """Draw with each generator the batch that `sample` draws, stacked along a new first axis. Many models train on
        as many batches a step: a task may draw them in fewer operations than one by one."""
        return stacked([self.sample(batch, rng) for rng in rngs])

    def held_out(self, split: Literal["validation", "test"]) -> "Task":
        """Return the task that models are validated with, or tested on: another one where data are finite, so that
        nothing is drawn there that training has seen."""
        return self

    def oracle(self, batch: Batch) -> Tensor | None:
        """Return the best answer an observer of `batch.inputs` can give, in the shape of the targets, or with an axis
        more, the log-probabilities of every token: no row of any table can beat it but by chance. None where it is not
        known, as for real text: there is no ceiling then."""
        raise NotImplementedError(f"{type(self).__name__}.oracle")

    def references(self, batch: Batch) -> dict[str, Tensor]:
        """Return plain predictors' answers by name, rows of the report under the oracle: shaped like the targets, or
        with an axis more, the log-probabilities of every token."""
        return {}

    def parts(self) -> "tuple[Task, ...]":
        """Return the tasks of a mixture, trained in turn and scored apart; any other task is its only part."""
        return (self,)

    def scored_parts(self) -> "tuple[Task, ...]":
        """Return the tasks that models are scored on: the parts of training, unless there are others."""
        return self.parts()

    def turns(self, batch: int) -> "tuple[tuple[Task, int], ...]":
        """Return the parts in the order in which training takes them, each with its sequences per step, where the
        longest has `batch`: as many tokens in every step."""
        return tuple((part, batch * self.shape().length // part.shape().length) for part in self.parts())

    def floor(self) -> float | None:
        """Return the accuracy of the best guess that uses nothing of what is asked for, where that is known."""
        return None

    def longer(self) -> "dict[int, Task]":
        """Return longer versions, by length, on which models without a table of positions are scored untrained."""
        return {}

    def unseen(self) -> "Task | None":
        """Return the same task with tokens that training leaves out, where it leaves some out."""
        return None

    def gaps(self, batch: Batch) -> Tensor | None:
        """Return how many tokens lie between an answer and the one thing it depends on, (batch, answers), or None."""
        return None

    def recalled(self, batch: Batch) -> Tensor | None:
        """Return which answers the sequence has shown before, (batch, answers), or None. Their loss is given apart."""
        return None

    @property
    def error_unit(self) -> float:
        """Divisor of squared errors, so that 1 is the error of knowing nothing."""
        return 1.0

    def require(self, holds: bool, otherwise: str) -> None:
        """Raise a UserError that names the task, unless the condition holds."""
        if not holds:
            raise UserError(f"task '{self.name}': {otherwise}")

    def require_positive(self, *fields: str) -> None:
        for field in fields:
            size = getattr(self, field)
            self.require(size >= 1, f"{field}={size} must be at least 1. Use {field}=1 or more.")


@dataclass(frozen=True, kw_only=True)
class TokenTask(Task):
    """A task over sequences of `input_seq_len` tokens below `vocab_size`, which are also the answers."""

    vocab_size: int = 16
    """Kinds of token, those with a meaning of their own included."""
    input_seq_len: int = 128
    """Tokens of a sequence."""

    def shape(self) -> TaskShape:
        return TaskShape(inputs=Tokens(self.vocab_size), outputs=Tokens(self.vocab_size), length=self.input_seq_len)
