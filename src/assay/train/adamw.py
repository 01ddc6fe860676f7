"""AdamW (Loshchilov and Hutter 2019) over models with options of their own: torch's fused kernel.

Through torch's functional form, since the first use of its class imports torch's compiler, which takes longer than many
a training run (3 s on a CPU, 5 s on a machine with a GPU).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from assay.train.checkpoint import fill
from assay.train.recipe import Optimizer


class AdamW:
    """Steps go against the `grad` of each tensor; a tensor without one stays."""

    def __init__(self, models: Iterable[tuple[Optimizer, Sequence[Tensor], Sequence[Tensor]]]) -> None:
        """Models, each with its options, its decaying parameters and the rest."""
        tensors: dict[tuple[Optimizer, bool], list[Tensor]] = {}
        for options, decaying, rest in models:
            tensors.setdefault((options, True), []).extend(decaying)
            tensors.setdefault((options, False), []).extend(rest)
        self.groups = [Group(*key, held) for key, held in tensors.items() if held]

    def set_rate(self, share: float) -> None:
        """The share of each learning rate that the next steps take."""
        for group in self.groups:
            group.set_rate(share)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.groups:
            group.step()

    def state(self) -> list[dict[str, Any]]:
        return [group.state for group in self.groups]

    @torch.no_grad()
    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        for group, saved in zip(self.groups, state, strict=True):
            for name, values in group.state.items():
                for mine, value in zip(values, saved[name], strict=True):
                    fill(mine, value)


class Group:
    """Tensors that share every option."""

    def __init__(self, options: Optimizer, decays: bool, tensors: Sequence[Tensor]) -> None:
        self.options, self.weight_decay = options, options.weight_decay if decays else 0.0
        self.tensors = tensors
        self.on_cuda = tensors[0].is_cuda
        # A tensor on CUDA, so that a captured step reads it anew at every replay.
        self.rate: float | Tensor = torch.zeros((), device=tensors[0].device) if self.on_cuda else 0.0
        self.state = {
            "means": [torch.zeros_like(p) for p in tensors],
            "squares": [torch.zeros_like(p) for p in tensors],
            "steps": [torch.zeros((), device=p.device) for p in tensors],
        }

    def set_rate(self, share: float) -> None:
        if isinstance(self.rate, Tensor):
            self.rate.fill_(self.options.lr * share)
        else:
            self.rate = self.options.lr * share

    def step(self) -> None:
        gradients = {k: p.grad for k, p in enumerate(self.tensors) if p.grad is not None}
        means, squares, steps = ([self.state[name][k] for k in gradients] for name in ("means", "squares", "steps"))
        adamw(
            [self.tensors[k] for k in gradients], list(gradients.values()), means, squares, [], steps,
            lr=self.rate, beta1=self.options.beta1, beta2=self.options.beta2, eps=self.options.eps,
            weight_decay=self.weight_decay, amsgrad=False, maximize=False, fused=True, capturable=self.on_cuda,
        )  # fmt: skip
