"""Scores the references that need no training, the task's oracle, where one is known, and its plain predictors, like a
model."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from assay.core.convert import convert
from assay.core.run import Run
from assay.core.study import Outcome
from assay.nn.random import stream
from assay.studies.icl.scoring import score
from assay.tasks.base import Batch, Task, Tokens

MOST = 2000
"""Most sequences to score references on: some solve a system of equations at every position."""


def score_references(run: Run, device: torch.device) -> Outcome:
    """Score every reference; the result is `references`, by name."""
    task = convert(Task, run.options["task"], what="option 'task'").held_out("test")
    size = min(MOST, run.options["eval_size"])
    part = task.scored_parts()[-1]
    names = list(_answers(part, part.sample(2, stream(0, "names", device=device))))
    # Each name counts as a model, and all see the same sequences: the predictors answer them all at once.
    rngs = [stream(run.seed, "test", device=device) for _ in names]
    found = score(_answer(task), task, size=size, rngs=rngs)
    return Outcome(run, {"references": dict(zip(names, found, strict=True))})


def _answer(task: Task) -> Callable[[Sequence[Batch]], Iterator[Tensor]]:
    by_shape = {_shape(part.sample(1, stream(0, "shape"))): part for part in task.scored_parts()}

    def answer(batches: Sequence[Batch]) -> Iterator[Tensor]:
        batch = batches[0]
        part = by_shape[_shape(batch)]
        yield from (_as_outputs(part, given) for given in _answers(part, batch).values())

    return answer


def _answers(part: Task, batch: Batch) -> dict[str, Tensor]:
    best = part.oracle(batch)
    return ({} if best is None else {"oracle": best}) | part.references(batch)


def _shape(batch: Batch) -> tuple[int, int]:
    """Return the length of a batch's sequences and their answers, which tell the parts of a mixture apart."""
    return batch.inputs.shape[1], batch.targets.shape[1]


def _as_outputs(task: Task, answers: Tensor) -> Any:
    """Convert answers, shaped like the targets, to the outputs of a model that is certain of them; log-probabilities
    are outputs already."""
    if task.loss == "mse":
        return answers[..., None]
    if task.loss == "bce":
        return (2 * (answers.float() > 0.5).float() - 1)[..., None]
    outputs = task.shape().outputs
    assert isinstance(outputs, Tokens)
    if answers.ndim == 3:
        return answers
    return one_hot(answers, outputs.vocab).float()
