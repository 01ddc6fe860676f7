"""Estimates the peak memory of a run of `icl` or `icl.eval` from the shapes of its task and its model."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial

from assay.core.convert import convert
from assay.core.run import Run, canonical
from assay.models.sequence import SequenceModel
from assay.nn.random import stream
from assay.nn.shapes import built_for_shapes
from assay.studies.icl.scoring import ROWS, TOKENS
from assay.tasks.base import Task, Tokens
from assay.train.footprint import TRAINED, stored

PER_TOKEN = 10
"""Vectors of width d_model that a layer keeps per token for the backward pass: two norms, the sums, and attention
without its scores. State mixers and recurrences keep more."""
DRAWN_TO_SEE = 2**22
"""The largest sequence, in numbers, that is drawn to count its answers; a larger one is counted as one answer."""


def memory(run: Run) -> Mapping[str, int]:
    """Estimate the memory of a run, trained or only scored."""
    options = run.options
    batch = options["train"]["micro_batch_size"] if "train" in options else 0
    model = options["model"] if batch else None
    precision = 2 if "bfloat16" in run.numerics.dtype else 4
    return _memory(canonical([options["task"], model, batch, min(options["eval_size"], ROWS), precision]))


@lru_cache(maxsize=4096)
def _memory(text: str) -> Mapping[str, int]:
    """Count the model and the larger of training and scoring, which take turns."""
    task_options, model_options, batch, rows, precision = json.loads(text)
    task = convert(Task, task_options, what="option 'task'")
    scored = max((_scored(part, rows) for part in task.scored_parts()), key=lambda need: sum(need.values()))
    if not batch:
        return scored
    model = convert(SequenceModel, model_options, what="option 'model'")
    steps = [_step(part, model, sequences, precision) for part, sequences in dict.fromkeys(task.turns(batch))]
    return _weights(task, model) | max([*steps, scored], key=lambda need: sum(need.values()))


def _weights(task: Task, model: SequenceModel) -> dict[str, int]:
    """Estimate the weights' bytes from models of one and two layers: all layers are alike."""
    few = [replace(model, num_layers=layers) for layers in (1, 2)]
    built = [module for each in few if (module := built_for_shapes(partial(each.build, task.shape())))]
    if len(built) < 2:
        return {}
    one, two = map(stored, built)
    return {"weights, gradients and optimizer state": TRAINED * (one + (model.num_layers - 1) * (two - one))}


def _step(part: Task, model: SequenceModel, batch: int, precision: int) -> dict[str, int]:
    tokens = batch * part.shape().length
    vectors = (model.num_layers * PER_TOKEN + 2) * model.model_dim
    return {
        "the batch of a step": tokens * _token(part),
        "the activations of a step": precision * tokens * vectors,
        # Logits, their logarithms in float32, and the gradients of those.
        "the logits of a step": (precision + 4 + 4) * batch * _answers(part) * _outputs(part),
    }


def _scored(part: Task, rows: int) -> dict[str, int]:
    rows = max(1, min(rows, TOKENS // part.shape().length))
    return {
        "the sequences to score": rows * part.shape().length * _token(part),
        "the logits of sequences to score": (4 + 4) * rows * _answers(part) * _outputs(part),
    }


def _token(part: Task) -> int:
    """Bytes per token of the input."""
    inputs = part.shape().inputs
    return 8 if isinstance(inputs, Tokens) else 4 * inputs.dim


def _outputs(part: Task) -> int:
    outputs = part.shape().outputs
    return outputs.vocab if isinstance(outputs, Tokens) else outputs.dim


def _answers(part: Task) -> int:
    """Answers per sequence."""
    if part.shape().length * _token(part) > DRAWN_TO_SEE or _outputs(part) > DRAWN_TO_SEE:
        return 1
    return part.sample(1, stream(0, "shape")).targets.shape[1]
