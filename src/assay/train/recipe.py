"""How a sequence model is trained on a task: AdamW, warm-up and cosine, clipping, validation, checkpoints.

The step is {sample, forward, backward, clip, update}. On a CPU it runs as it is written, in float32. On CUDA it runs in
bf16 autocast over float32 weights and is replayed as one CUDA graph, since a small model is bound by launches; the
plain path (`graph=False`) gives the same numbers.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from assay.core.errors import UserError
from assay.models.sequence import SequenceModule
from assay.nn.random import stream
from assay.tasks.base import Batch, Task

WARM_UP_STEPS = 3
"""Steps run as written before a graph is captured: they create the optimizer's state. They count as training."""


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW; weight decay on matrices only."""

    lr: float = 1e-3
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip: float = 3.0
    """Largest norm of the gradient."""

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.clip <= 0:
            raise UserError(f"optimizer.lr={self.lr}, optimizer.clip={self.clip}: both must be above 0.")


@dataclass(frozen=True, kw_only=True)
class Train:
    max_steps: int = 3000
    micro_batch_size: int = 256
    validate_every: int = 100
    warmup_ratio: float = 0.03
    """Share of the steps in which the rate rises from 0; a cosine takes it back."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "micro_batch_size", "validate_every"):
            if getattr(self, name) < 1:
                raise UserError(f"train.{name}={getattr(self, name)}: it must be at least 1.")
        if not 0 <= self.warmup_ratio < 1:
            raise UserError(f"train.warmup_ratio={self.warmup_ratio}: it must be in [0, 1).")

    def rate(self, step: int) -> float:
        """The share of the learning rate at a step: linear warm-up, then cosine to 0 at max_steps."""
        warm = math.ceil(self.warmup_ratio * self.max_steps)
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.max_steps - warm)))


def answer_loss(task: Task, answers: Tensor, batch: Batch) -> Tensor:
    """The task's loss, mean over what is scored; computed in float32."""
    answers = answers.float()
    match task.loss:
        case "cross_entropy":
            each = cross_entropy(answers.flatten(0, 1), batch.targets.flatten(), reduction="none")
        case "mse":
            each = mse_loss(answers.squeeze(-1), batch.targets, reduction="none").flatten()
        case "bce":
            each = binary_cross_entropy_with_logits(answers.squeeze(-1), batch.targets, reduction="none").flatten()
    if batch.scored is None:
        return each.mean()
    weights = batch.scored.flatten().to(each.dtype)
    return (each * weights).sum() / weights.sum()


class Trainer:
    """One model on one task. `run` yields after every validation interval; the caller validates, and may save."""

    def __init__(
        self, model: SequenceModule, task: Task, train: Train, optimizer: Optimizer, *, seed: int, graph: bool = True
    ) -> None:
        self.model, self.task, self.train, self.recipe = model, task, train, optimizer
        self.device = next(model.parameters()).device
        self.rng = stream(seed, "train", device=self.device)
        self.step = 0
        self.graph = graph and self.device.type == "cuda"
        # On CUDA the rate is a tensor, so that a captured step reads it anew at every replay.
        self.lr: Any = torch.tensor(0.0, device=self.device) if self.device.type == "cuda" else 0.0
        self.optimizer = torch.optim.AdamW(
            _groups(model, optimizer.weight_decay),
            lr=self.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            fused=True,
            capturable=self.device.type == "cuda",
        )
        self.loss = torch.zeros((), device=self.device)

    def run(self) -> Iterator[int]:
        """Train to the last step; yields the number of steps done at every validation."""
        play: Callable[[], None] = self._one
        while self.step < self.train.max_steps:
            if self.graph and play == self._one and self.step >= WARM_UP_STEPS:
                play = self._capture()
            self._set_rate(self.recipe.lr * self.train.rate(self.step))
            play()
            self.step += 1
            if self.step % self.train.validate_every == 0 or self.step == self.train.max_steps:
                yield self.step

    def save(self, path: Path, notes: Any = None) -> None:
        """Everything a later process needs to go on as if nothing had happened, and what the caller wants kept."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        temporary = path.with_suffix(".new")
        torch.save(state | {"rng": self.rng.get_state(), "step": self.step, "notes": notes}, temporary)
        temporary.replace(path)

    def load(self, path: Path) -> Any:
        """Take up where `save` left; gives back the caller's notes."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng.set_state(state["rng"].cpu())
        self.step = state["step"]
        return state["notes"]

    def _one(self) -> None:
        batch = self.task.sample(self.train.micro_batch_size, self.rng)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            answers = self.model(batch.inputs, batch.positions)
        loss = answer_loss(self.task, answers, batch)
        self.optimizer.zero_grad(set_to_none=not self.graph)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip, foreach=True)
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def _capture(self) -> Callable[[], None]:
        """The step as one CUDA graph, its generator advancing at every replay."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.rng)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=side):
            self._one()
        return graph.replay

    def _set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; gains, biases, and tables of embeddings or positions do not shrink for being rare."""
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    tables.add(id(getattr(model, "position", None)))
    decayed = [p for p in model.parameters() if p.ndim >= 2 and id(p) not in tables]
    rest = [p for p in model.parameters() if p.ndim < 2 or id(p) in tables]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
