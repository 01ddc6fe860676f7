"""How well answers are given, over many fresh sequences: in all, per sequence, and by place in the sequence."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.tasks.base import Batch, Task
from assay.train.recipe import answer_loss

BATCH = 1000
Answer = Callable[[Batch], Tensor]
"""Logits or numbers at the scored places: (batch, answers, outputs)."""


@torch.no_grad()
def score(answer: Answer, task: Task, *, size: int, rng: torch.Generator) -> dict[str, Any]:
    """`accuracy` and `exact_match` (or `mse`), the loss, and `by_answer`, the score of a sequence's i-th answer."""
    totals: dict[str, Tensor] = {}
    for start in range(0, size, BATCH):
        batch = task.sample(min(BATCH, size - start), rng)
        for key, value in _sums(task, answer(batch).float(), batch).items():
            totals[key] = totals[key] + value if key in totals else value
    return _means(task, {key: value.double().cpu() for key, value in totals.items()})


def _sums(task: Task, answers: Float[Tensor, "batch answers outputs"], batch: Batch) -> dict[str, Tensor]:
    scored = torch.ones_like(batch.targets, dtype=torch.bool) if batch.scored is None else batch.scored
    quality = _squared_error(answers, batch) if task.loss == "mse" else _right(task, answers, batch).float()
    every = ((quality == 1) | ~scored).all(dim=1)
    return {
        "loss": answer_loss(task, answers, batch) * scored.sum(),
        "quality": (quality * scored).sum(0),
        "scored": scored.sum(0),
        "exact": every.sum(),
        "sequences": torch.tensor(len(scored), device=scored.device),
    }


def _right(task: Task, answers: Float[Tensor, "batch answers outputs"], batch: Batch) -> Bool[Tensor, "batch answers"]:
    if task.loss == "cross_entropy":
        return answers.argmax(-1) == batch.targets
    return (answers.squeeze(-1) > 0) == (batch.targets > 0.5)


def _squared_error(answers: Float[Tensor, "batch answers outputs"], batch: Batch) -> Float[Tensor, "batch answers"]:
    return (answers.squeeze(-1) - batch.targets) ** 2


def _means(task: Task, totals: dict[str, Tensor]) -> dict[str, Any]:
    mean = (totals["quality"].sum() / totals["scored"].sum()).item()
    by_answer = (totals["quality"] / totals["scored"].clamp_min(1)).tolist()
    loss = (totals["loss"] / totals["scored"].sum()).item()
    if task.loss == "mse":
        return {"mse": mean, "loss": loss, "by_answer": by_answer}
    exact = (totals["exact"] / totals["sequences"]).item()
    return {"accuracy": mean, "exact_match": exact, "loss": loss, "by_answer": by_answer}
