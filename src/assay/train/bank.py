"""Many sequence models of one shape, trained together as one program (DESIGN, "Cohorts and banks").

The models differ in seed and in the optimizer's options. Their parameters lie packed as (models, parameters), the
forward pass is one model's under `vmap`, and AdamW is written out with every option as a column. No operation mixes
models: one that diverges turns to NaN alone. Models of one seed see the same batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from assay.models.sequence import SequenceModule
from assay.tasks.base import Batch, Task
from assay.train.recipe import Optimizer, Train, answer_loss
from assay.train.trainer import Trainer, decays

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Of attention: under vmap the gradients of cuDNN's are not numbers (torch 2.11)."""
SCORED_AT_ONCE = 2**31
"""Numbers that answering may hold at a time: models are asked in groups of this size."""


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
        super().__init__(task, train, seeds=dict.fromkeys(seeds), device=device, graph=graph)
        self.template = models[0]
        shapes = {name: p.shape for name, p in self.template.named_parameters()}
        self.names, self.shapes = list(shapes), list(shapes.values())
        rows = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models]
        self.packed = torch.stack(rows).requires_grad_(True)
        self.mean, self.square = torch.zeros_like(self.packed), torch.zeros_like(self.packed)
        self.count = torch.zeros((), device=device, dtype=self.packed.dtype)
        self.rate = torch.zeros((), device=device, dtype=self.packed.dtype)
        self.losses = torch.zeros(len(models), device=device, dtype=self.packed.dtype)
        self.options = {
            option.name: self.packed.new_tensor([[getattr(optimizer, option.name)] for optimizer in optimizers])
            for option in fields(Optimizer)
        }
        decaying = decays(self.template)
        self.decaying = torch.cat([self.packed.new_full(p.shape, decaying[n]).flatten() for n, p in self._parameters()])
        order = list(self.rngs)
        if compile:
            self._losses, self._update = torch.compile(self._losses), torch.compile(self._update)  # type: ignore[method-assign]
        self.seed_of = torch.tensor([order.index(seed) for seed in seeds], device=device)

    def set_rate(self, share: float) -> None:
        self.rate.fill_(share)

    def train_on(self, part: Task, batch: int) -> None:
        drawn = [part.sample(batch, rng) for rng in self.rngs.values()]
        losses = self._losses(part, _stacked(drawn, self.seed_of))
        (gradient,) = torch.autograd.grad(losses.sum(), self.packed)
        self._update(gradient)
        self.losses.copy_(losses.detach())

    def _losses(self, part: Task, batch: Batch) -> Float[Tensor, " models"]:
        def one(weights: tuple[Tensor, ...], inputs: Tensor, targets: Tensor, positions: Tensor | None) -> Tensor:
            return answer_loss(part, self._answer(weights, inputs, positions), Batch(inputs, targets, positions))

        given = (batch.inputs, batch.targets, batch.positions)
        dims = (0, *(None if tensor is None else 0 for tensor in given))
        return torch.vmap(one, in_dims=dims, randomness="different")(self._weights(), *given)

    def _answer(self, weights: tuple[Tensor, ...], inputs: Tensor, positions: Tensor | None) -> Tensor:
        """One model's answers."""
        with self.autocast(), sdpa_kernel(KERNELS):
            return functional_call(self.template, dict(zip(self.names, weights, strict=True)), (inputs, positions))

    @torch.no_grad()
    def _update(self, gradient: Float[Tensor, "models parameters"]) -> None:
        """AdamW, as torch.optim.AdamW does it, after clipping each model's gradient by its norm."""
        o = self.options
        norm = gradient.norm(dim=1, keepdim=True)
        gradient = gradient * (o["clip"] / (norm + 1e-6)).clamp(max=1)
        self.count += 1
        self.mean.lerp_(gradient, 1 - o["beta1"])
        self.square.lerp_(gradient.square_(), 1 - o["beta2"])
        lr = o["lr"] * self.rate
        self.packed.mul_(1 - lr * o["weight_decay"] * self.decaying)
        spread = self.square.sqrt().div_((1 - o["beta2"] ** self.count).sqrt()).add_(o["eps"])
        self.packed.sub_(self.mean.div(spread).mul_(lr / (1 - o["beta1"] ** self.count)))

    @torch.no_grad()
    def answers(self, batches: Sequence[Batch]) -> Iterator[Tensor]:
        per_model = batches[0].targets.numel() * self.template.outputs + batches[0].inputs.numel() * 512
        size = max(1, SCORED_AT_ONCE // per_model)
        self.template.eval()
        for start in range(0, len(batches), size):
            batch = _stacked(batches[start : start + size])
            weights = tuple(weight[start : start + size] for weight in self._weights())
            dims = (0, 0, None if batch.positions is None else 0)
            together = torch.vmap(self._answer, in_dims=dims, randomness="different")
            yield from together(weights, batch.inputs, batch.positions)
        self.template.train()

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name).detach() for name in ("packed", "mean", "square", "count")}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            getattr(self, name).copy_(value)

    def _weights(self) -> tuple[Float[Tensor, "models ..."], ...]:
        """Each parameter of all models, as views: one split, so that its gradient is one concatenation."""
        pieces = self.packed.split([shape.numel() for shape in self.shapes], dim=1)
        return tuple(piece.unflatten(1, shape) for piece, shape in zip(pieces, self.shapes, strict=True))

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return self.template.named_parameters()


def _stacked(batches: Sequence[Batch], order: Tensor | None = None) -> Batch:
    """Batches under a leading axis, in an order with repetitions if one is given."""

    def together(field: str) -> Any:
        tensors = [getattr(batch, field) for batch in batches]
        if tensors[0] is None:
            return None
        stacked = torch.stack(tensors)
        return stacked if order is None else stacked[order]

    return Batch(*(together(field) for field in ("inputs", "targets", "positions")))
