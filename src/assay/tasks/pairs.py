"""Regression and boolean share this layout: examples of one unknown function, in context.

x1, (y1, 0, ..., 0), x2, (y2, 0, ..., 0), ...      y_i is asked for at x_i, after the pairs before it
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from assay.tasks.base import Batch, Task, TaskShape, Vectors

X = Float[Tensor, "batch pairs d"]
Y = Float[Tensor, "batch pairs"]


@dataclass(frozen=True, kw_only=True)
class PairTask(Task):
    """A task over `input_seq_len` pairs, the x of each a vector of `input_dim`."""

    by_examples: ClassVar[bool] = True

    input_seq_len: int = 40
    """Pairs of x and y in a sequence, which has two positions for each."""
    input_dim: int = 20
    """Numbers that make up an x."""

    def __post_init__(self) -> None:
        self.require_positive("input_seq_len", "input_dim")

    def shape(self) -> TaskShape:
        return TaskShape(inputs=Vectors(self.input_dim), outputs=Vectors(1), length=2 * self.input_seq_len)


def interleave(x: X, y: Y, targets: Y) -> Batch:
    """Return the batch of these pairs; `y` is what the sequence shows, `targets` what is asked for."""
    batch, pairs, d = x.shape
    inputs = x.new_zeros(batch, 2 * pairs, d)
    inputs[:, 0::2] = x
    inputs[:, 1::2, 0] = y
    positions = torch.arange(0, 2 * pairs, 2, device=x.device).expand(batch, pairs)
    return Batch(inputs=inputs, targets=targets, positions=positions)


def separate(batch: Batch) -> tuple[X, Y]:
    """Return the x and the y that a batch shows."""
    return batch.inputs[:, 0::2], batch.inputs[:, 1::2, 0]


def before(running: Float[Tensor, "batch pairs *rest"]) -> Float[Tensor, "batch pairs *rest"]:
    """Shift running sums by one: at each pair, the sum up to the pair before it, which may be used there."""
    return torch.cat((torch.zeros_like(running[:, :1]), running[:, :-1]), dim=1)
