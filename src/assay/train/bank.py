"""A bank trains many sequence models of one shape as one program (DESIGN, "Cohorts and banks").

The models differ in seed and in the optimizer's options. Their parameters lie packed as (models, parameters), the
forward pass is one model's under `vmap`, and AdamW goes over views of the rows. No operation mixes models: one that
diverges turns to NaN alone. Models of one seed see the same batches.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from assay.models.sequence import SequenceModule
from assay.nn.whole import kept_whole
from assay.tasks.base import Batch, Task, stacked
from assay.train.adamw import AdamW
from assay.train.checkpoint import fill
from assay.train.recipe import Optimizer, Train, answer_losses
from assay.train.trainer import Members, Trainer, decays

SHORT = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
LONG = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention kernels, the fastest first. For very many sequences of 64 tokens flash takes twice as long as the other
one, for 256 and more two thirds of its time (H200, heads of 16)."""
Weights = tuple[Tensor, ...]
"""One tensor per parameter: of all models, or of one model under vmap."""
SCORED_AT_ONCE = 2**31
"""Most numbers that answers take at a time: models answer in groups that stay below it."""
HELD_PER_TOKEN = 512
"""Numbers assumed to be held per input token in a forward pass: an allowance, not a measurement."""


class Bank(Trainer):
    def __init__(
        self,
        models: Sequence[SequenceModule],
        task: Task,
        train: Train,
        optimizers: Sequence[Optimizer],
        *,
        seeds: Sequence[int],
        graph: bool = True,
        compile: bool = False,
    ) -> None:
        device = next(models[0].parameters()).device
        super().__init__(task, train, seeds=seeds, device=device, graph=graph)
        self.template = models[0]
        self.whole = nullcontext if compile else kept_whole  # compiled code is fused anyway
        narrow = {id(p) for m in self.template.modules() if isinstance(m, nn.Linear) for p in m.parameters()}
        decaying = decays(self.template)
        # Decaying ones first, so that each model is two pieces to the optimizer.
        parameters = sorted(self.template.named_parameters(), key=lambda item: not decaying[item[0]])
        self.names, self.shapes = [name for name, _ in parameters], [p.shape for _, p in parameters]
        self.narrow = {name for name, p in parameters if id(p) in narrow}
        rows = [torch.cat([p.detach().flatten() for p in self.ordered(model)]) for model in models]
        self.packed = torch.stack(rows).requires_grad_(True)
        self.gradient = torch.zeros_like(self.packed)
        self.clip = self.packed.new_tensor([[optimizer.clip] for optimizer in optimizers])
        self.optimizer = self._optimizer(optimizers, split=sum(p.numel() for name, p in parameters if decaying[name]))
        self.losses = self.packed.new_zeros(len(models))
        if compile:
            self._losses = torch.compile(self._losses)  # type: ignore[method-assign]
        self._groups: dict[Members, tuple[Tensor, list[int], Tensor | None]] = {}

    def ordered(self, model: SequenceModule) -> Iterator[Tensor]:
        """Yield a model's parameters in the order of a packed row."""
        parameters = dict(model.named_parameters())
        return (parameters[name] for name in self.names)

    def _optimizer(self, optimizers: Sequence[Optimizer], *, split: int) -> AdamW:
        """Make the optimizer of views of the packed parameters, whose gradients are views of the packed gradient."""
        views = []
        self.pieces: list[list[Tensor]] = []
        """The parameters of each model, as the optimizer has them."""
        for row, (optimizer, gradient) in enumerate(zip(optimizers, self.gradient, strict=True)):
            pieces = [self.packed.detach()[row, :split], self.packed.detach()[row, split:]]
            self.pieces.append(pieces)
            for piece, part in zip(pieces, (gradient[:split], gradient[split:]), strict=True):
                piece.grad = part
            views.append((optimizer, pieces[:1], pieces[1:]))
        return AdamW(views)

    def train_on(self, part: Task, batch: int, members: Members) -> None:
        rows, keys, draw_of = self._group(members)
        whole = len(members) == len(self.packed)
        packed = self.packed if whole else self.packed.detach()[rows].requires_grad_(True)
        drawn = part.sample_together(batch, [self.rngs[key] for key in keys])
        losses = self._losses(part, packed, drawn if draw_of is None else _each(drawn, draw_of))
        (gradient,) = torch.autograd.grad(losses.sum(), packed)
        # Clipped by each model's norm, as clip_grad_norm_ does it.
        gradient.mul_((self.clip[rows] / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1))
        self.gradient.index_copy_(0, rows, gradient)
        self.losses.index_copy_(0, rows, losses.detach())

    def _group(self, members: Members) -> tuple[Tensor, list[int], Tensor | None]:
        """Return the rows of these models, their generators, and which of those each draws from, where they share some.
        A group's first step makes them, since it is not captured: a graph cannot copy from the host."""
        if members not in self._groups:
            keys = list(dict.fromkeys(self.rng_of[member] for member in members))
            draws = [keys.index(self.rng_of[member]) for member in members]
            rows, draw_of = (torch.tensor(places, device=self.device) for places in (members, draws))
            self._groups[members] = rows, keys, None if len(keys) == len(members) else draw_of
        return self._groups[members]

    def stop(self, member: int) -> None:
        super().stop(member)
        for piece in self.pieces[member]:
            piece.grad = None  # the optimizer leaves such a tensor as it is

    def _losses(self, part: Task, packed: Tensor, batch: Batch) -> Float[Tensor, " models"]:
        answers = self._together(self._weights(packed), batch)
        return answer_losses(part, answers, batch).flatten(1).mean(dim=1)

    def _together(self, weights: Weights, batch: Batch) -> Float[Tensor, "models batch answers outputs"]:
        """Compute each model's answers to its batch."""
        dims = (0, 0, None if batch.positions is None else 0)
        return torch.vmap(self._answer, in_dims=dims, randomness="different")(weights, batch.inputs, batch.positions)

    def _answer(self, weights: Weights, inputs: Tensor, positions: Tensor | None) -> Tensor:
        """Compute one model's answers."""
        kernels = SHORT if inputs.shape[1] <= 64 else LONG
        with self.autocast(), self.whole(), sdpa_kernel(kernels, set_priority=True):
            return functional_call(self.template, dict(zip(self.names, weights, strict=True)), (inputs, positions))

    @torch.no_grad()
    def answers(self, batches: Sequence[Batch]) -> Iterator[Tensor]:
        per_model = batches[0].targets.numel() * self.template.outputs + batches[0].inputs.numel() * HELD_PER_TOKEN
        size = max(1, SCORED_AT_ONCE // per_model)
        self.template.eval()
        for start in range(0, len(batches), size):
            batch = stacked(batches[start : start + size])
            weights = self._weights(self.packed[start : start + size])
            yield from self._together(weights, batch)
        self.template.train()

    def state(self) -> dict[str, Any]:
        return super().state() | {"packed": self.packed.detach()}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        fill(self.packed, state["packed"])

    def _weights(self, packed: Float[Tensor, "models parameters"]) -> Weights:
        """View the packed rows as parameters: one split, so that its gradient is one concatenation. Those of linear
        layers are cast as autocast casts them for one model; under vmap a layer is decomposed before autocast sees it,
        and its bias would stay wide."""
        pieces = packed.split([shape.numel() for shape in self.shapes], dim=1)
        narrow = torch.bfloat16 if self.autocast()._enabled else packed.dtype
        return tuple(
            (piece.to(narrow) if name in self.narrow else piece).unflatten(1, shape)
            for piece, name, shape in zip(pieces, self.names, self.shapes, strict=True)
        )


def _each(drawn: Batch, order: Tensor) -> Batch:
    """Give each model its batch of those drawn."""
    positions = None if drawn.positions is None else drawn.positions[order]
    return Batch(drawn.inputs[order], drawn.targets[order], positions)
