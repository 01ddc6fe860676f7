"""Defines how a sequence model is trained on a task: the options, the schedule and the loss."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, mse_loss, nll_loss

from assay.core.convert import added
from assay.core.errors import UserError
from assay.nn.norm import kernels
from assay.nn.whole import has_kernels
from assay.tasks.base import Batch, Task


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW; weight decay on matrices only."""

    lr: float = 1e-3
    """Highest learning rate, which the warm-up rises to."""
    weight_decay: float = 0.1
    """Each step multiplies every matrix by 1 - weight_decay * learning rate."""
    beta1: float = 0.9
    """Share of the running mean of gradients that a step keeps, in [0, 1)."""
    beta2: float = 0.999
    """Share of the running mean of squared gradients that a step keeps, in [0, 1)."""
    eps: float = 1e-8
    """Added to what a step is divided by, the root of the mean squared gradient."""
    clip: float = 3.0
    """Largest norm of the gradient."""

    def __post_init__(self) -> None:
        for name in ("lr", "clip", "eps"):  # nan fails every comparison
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise UserError(f"optimizer.{name}={value}: it must be a finite number above 0.")
        for name in ("beta1", "beta2"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise UserError(f"optimizer.{name}={value}: it must be in [0, 1).")
        if not 0 <= self.weight_decay < math.inf:
            raise UserError(f"optimizer.weight_decay={self.weight_decay}: it must be a finite number, 0 or more.")


@dataclass(frozen=True, kw_only=True)
class Train:
    """How long a model trains, on how much at a time, and with which schedule."""

    max_steps: int = 3000
    """Updates of the weights, each on one batch; training may end earlier by `stop_at`."""
    micro_batch_size: int = 256
    """Sequences per step, at the task's length; shorter parts of a mixture have as many tokens per step."""
    validate_every: int = 100
    """Steps from one score on held-out sequences to the next."""
    warmup_ratio: float = 0.03
    """Share of the steps in which the rate rises from 0; then it falls by a cosine."""
    curriculum: float = added(0.0)
    """Accuracy on validation that opens the next part of a mixture: training begins with the smallest part alone, and
    once that is there another opens at each validation. 0: all parts from the first step."""
    stop_at: float = added(0.0)
    """Accuracy on validation, of every part, at which a model is solved and its training ends. 0: it never does."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "micro_batch_size", "validate_every"):
            if getattr(self, name) < 1:
                raise UserError(f"train.{name}={getattr(self, name)}: it must be at least 1.")
        if not 0 <= self.warmup_ratio < 1:
            raise UserError(f"train.warmup_ratio={self.warmup_ratio}: it must be in [0, 1).")
        for name in ("curriculum", "stop_at"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"train.{name}={getattr(self, name)}: an accuracy is in [0, 1], and 0 is off.")

    def rate(self, step: int) -> float:
        """The share of the learning rate at a step: linear warm-up, then cosine to 0 at max_steps."""
        warm = math.ceil(self.warmup_ratio * self.max_steps)
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.max_steps - warm)))


def wide_cross_entropy(answers: Float[Tensor, "*batch outputs"], targets: Int[Tensor, "*batch"]) -> Tensor:
    """Compute cross entropy in float32 without a float32 copy of all logits. In bf16 log-probabilities near chance are
    6 % apart, and the default run learns nothing."""
    wide = torch.promote_types(answers.dtype, torch.float32)
    if wide == torch.float32 and has_kernels(answers.device) and not torch.compiler.is_compiling():
        return kernels.cross_entropy(answers, targets)  # moves the logits three times, where torch does ten times
    logs = log_softmax(answers, dim=-1, dtype=wide).flatten(0, -2)
    return nll_loss(logs, targets.flatten(), reduction="none").view_as(targets)


def answer_losses(task: Task, answers: Float[Tensor, "*batch answers outputs"], batch: Batch) -> Tensor:
    """The task's loss of every answer, in float32 at least."""
    wide = torch.promote_types(answers.dtype, torch.float32)
    targets = batch.targets
    match task.loss:
        case "cross_entropy":
            return wide_cross_entropy(answers, targets)
        case "mse":
            return mse_loss(answers.squeeze(-1).to(wide), targets, reduction="none")
        case "bce":
            return binary_cross_entropy_with_logits(answers.squeeze(-1).to(wide), targets, reduction="none")
