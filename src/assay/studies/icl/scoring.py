"""Scores answers over many fresh sequences: overall, per sequence, by position, by gap and by part of a mixture."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.core.convert import convert
from assay.core.run import Run
from assay.tasks.base import Batch, Task, Tokens
from assay.train.recipe import answer_losses

ROWS, TOKENS = 1000, 2**18
"""Most sequences and tokens per batch. They depend on nothing else, so all models of a seed see the same sequences."""
GAPS = 16
"""Classes of gaps: 1, 2-3, 4-7, ... tokens."""
Answer = Callable[[Sequence[Batch]], Iterable[Tensor]]
"""A batch per model -> its logits or numbers at the scored positions, (batch, answers, outputs), model by model."""
MOST = 10**8
"""Sequences: more take days to score, whatever the task."""
Totals = dict[str, Tensor]


def largest(run: Run) -> int:
    """Return the bytes of an embedding, of a batch's hidden states, of sequences, or of one answer to each."""
    options = run.options
    task, model = convert(Task, options["task"], what="option 'task'"), options.get("model") or {}
    shape, width = task.shape(), model.get("model_dim", 0)
    batch = options["train"]["micro_batch_size"] if "train" in options else 0
    outputs = shape.outputs.vocab if isinstance(shape.outputs, Tokens) else shape.outputs.dim
    inputs, wide = (shape.inputs.vocab, 8) if isinstance(shape.inputs, Tokens) else (0, 4 * shape.inputs.dim)
    scored = min(options["eval_size"], max(1, min(ROWS, TOKENS // shape.length)))
    sequences = max(batch, scored)
    return max(4 * (inputs + outputs) * width, sequences * shape.length * wide, 4 * sequences * outputs,
               4 * batch * shape.length * width)  # fmt: skip


@torch.no_grad()
def score(answer: Answer, task: Task, *, size: int, rngs: Sequence[torch.Generator]) -> list[dict[str, Any]]:
    """Score each model: `accuracy` and `exact_match` (or `mse`), the loss, and the score by answer and by gap; for a
    text the bits per byte, of recalled bytes and of the others; for a mixture the mean over its parts, and the score
    and the loss of each by its number of answers. Models that share a generator see the same sequences."""
    parts = task.scored_parts()
    found = [_score_part(answer, part, size=-(-size // len(parts)), rngs=rngs) for part in parts]
    return [_joined(parts, per_part) for per_part in zip(*found, strict=True)]


def _score_part(answer: Answer, task: Task, *, size: int, rngs: Sequence[torch.Generator]) -> list[dict[str, Any]]:
    rows = max(1, min(ROWS, TOKENS // task.shape().length))
    totals: list[Totals] = [{} for _ in rngs]
    for start in range(0, size, rows):
        drawn = {rng: task.sample(min(rows, size - start), rng) for rng in dict.fromkeys(rngs)}
        batches = [drawn[rng] for rng in rngs]
        for mine, batch, answers in zip(totals, batches, answer(batches), strict=True):
            for key, value in _sums(task, answers, batch).items():
                mine[key] = mine[key] + value if key in mine else value
    # All models at once: to fetch a number from a GPU takes longer than to compute it.
    fetched = {key: torch.stack([mine[key] for mine in totals]).double().cpu() for key in totals[0]}
    return [_means(task, {key: values[place] for key, values in fetched.items()}) for place in range(len(totals))]


def _sums(task: Task, answers: Float[Tensor, "batch answers outputs"], batch: Batch) -> Totals:
    quality = (answers.squeeze(-1) - batch.targets) ** 2 if task.loss == "mse" else _right(task, answers, batch).float()
    losses = answer_losses(task, answers, batch)
    sums = {
        "loss": losses.mean() * len(quality),
        "quality": quality.sum(0),
        "exact": (quality == 1).all(dim=1).sum(),
        "sequences": torch.tensor(len(quality), device=quality.device),
    }
    if (gaps := task.gaps(batch)) is not None:
        kind = gaps.clamp(min=1).double().log2().long().clamp(max=GAPS - 1).flatten()
        sums["gaps"] = torch.bincount(kind, minlength=GAPS)
        sums["gap_quality"] = torch.bincount(kind, weights=quality.flatten().double(), minlength=GAPS)
    if (recalled := task.recalled(batch)) is not None:
        kinds = torch.stack([recalled, ~recalled]).double()
        sums["kinds"], sums["kind_loss"] = kinds.sum((1, 2)), (kinds * losses.double()).sum((1, 2))
    return sums


def _right(task: Task, answers: Float[Tensor, "batch answers outputs"], batch: Batch) -> Bool[Tensor, "batch answers"]:
    if task.loss == "cross_entropy":
        return answers.argmax(-1) == batch.targets
    return (answers.squeeze(-1) > 0) == (batch.targets > 0.5)


def _means(task: Task, totals: Totals) -> dict[str, Any]:
    by_answer = totals["quality"] / totals["sequences"]
    quality, loss = by_answer.mean().item(), (totals["loss"] / totals["sequences"]).item()
    if task.loss == "mse":
        unit = task.error_unit
        return {"mse": quality / unit, "loss": loss, "by_answer": (by_answer / unit).tolist()}
    exact = (totals["exact"] / totals["sequences"]).item()
    found: dict[str, Any] = {"accuracy": quality, "exact_match": exact, "loss": loss, "by_answer": by_answer.tolist()}
    if "gaps" in totals:
        pairs = zip(totals["gap_quality"].tolist(), totals["gaps"].tolist(), strict=True)
        found["by_gap"] = {str(2**kind): right / count for kind, (right, count) in enumerate(pairs) if count}
    return found | (_bits(loss, totals) if task.bytes_of_text else {})


def _bits(loss: float, totals: Totals) -> dict[str, float]:
    """Convert the loss to bits per byte; a kind of bytes that did not occur has none."""
    found = {"bits_per_byte": loss / math.log(2)}
    if "kinds" not in totals:
        return found
    counts, losses = totals["kinds"].tolist(), totals["kind_loss"].tolist()
    for kind, count, of_kind in zip(("recalled", "other"), counts, losses, strict=True):
        if count:
            found[f"bits_per_byte_{kind}"] = of_kind / count / math.log(2)
    return found | {"share_recalled": counts[0] / sum(counts)}


def _joined(parts: Sequence[Task], found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(parts) == 1:
        return found[0]
    plain = [key for key in ("accuracy", "exact_match", "mse", "loss") if key in found[0]]
    means = {key: sum(part[key] for part in found) / len(found) for key in plain}
    quality = "mse" if "mse" in means else "accuracy"
    sizes = [str(len(part["by_answer"])) for part in found]
    by_size = {size: part[quality] for size, part in zip(sizes, found, strict=True)}
    return means | {"by_size": by_size, "loss_by_size": {size: p["loss"] for size, p in zip(sizes, found, strict=True)}}


def by_part(found: Mapping[str, Any]) -> list[float]:
    """Return the accuracies of a scored model by part, smallest first; that of a single task alone."""
    return list(found["by_size"].values()) if "by_size" in found else [found["accuracy"]]
