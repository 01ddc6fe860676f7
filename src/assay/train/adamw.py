"""AdamW (Loshchilov and Hutter 2019) by torch's fused kernel: the one optimizer of every trainer and bank.

Without weight decay it is Adam (Kingma and Ba 2015), to the bit. The kernel is called directly: the first use of
torch's classes around it imports torch's compiler, which takes longer than many a training run (3 s on a CPU, 5 s on a
machine with a GPU), and a small step takes longer in the class than in the kernel (127 against 33 microseconds).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from assay.train.checkpoint import fill
from assay.train.recipe import Optimizer


class FusedAdamW:
    """Updates tensors that share every option. No operation mixes elements, so models may share a tensor."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        *,
        lr: float | Tensor,
        weight_decay: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
    ) -> None:
        """Without a schedule `lr` is a number, which the kernel reads in double precision."""
        self.tensors = list(tensors)
        self.options: dict[str, Any] = {
            "lr": lr, "weight_decay": weight_decay, "beta1": beta1, "beta2": beta2, "eps": eps,
        }  # fmt: skip
        self.means, self.squares = ([torch.zeros_like(p) for p in self.tensors] for _ in range(2))
        self.clock = torch.zeros((), device=self.tensors[0].device)

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Take one step, under the caller's `no_grad`, which costs a sixth of a small step; a tensor without a gradient
        stays. All share one clock, since a tensor of our models has a gradient at every step or at none."""
        held: Any = (self.tensors, gradients, self.means, self.squares)
        if any(gradient is None for gradient in gradients):
            held = list(zip(*(row for row in zip(*held, strict=True) if row[1] is not None), strict=True))
            if not held:
                return
        parameters, present, means, squares = held
        self.clock += 1
        torch._fused_adamw_(
            parameters, present, means, squares, [], [self.clock] * len(parameters),
            **self.options, amsgrad=False, maximize=False,
        )  # fmt: skip

    def keep(self, which: Tensor) -> None:
        """Keep only these rows of every tensor."""
        self.tensors, self.means, self.squares = (
            [tensor[which] for tensor in held] for held in (self.tensors, self.means, self.squares)
        )

    def state(self) -> dict[str, Any]:
        return {"means": self.means, "squares": self.squares, "clock": self.clock}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        for mine, saved in zip([*self.means, *self.squares], [*state["means"], *state["squares"]], strict=True):
            fill(mine, saved)
        fill(self.clock, state["clock"])


class AdamW:
    """Updates models with options of their own, against the `grad` of each tensor, on a schedule."""

    def __init__(self, models: Iterable[tuple[Optimizer, Sequence[Tensor], Sequence[Tensor]]]) -> None:
        """Each model comes with its options, its decaying parameters and the rest."""
        tensors: dict[tuple[Optimizer, bool, torch.dtype], list[Tensor]] = {}
        for options, decaying, rest in models:
            for decays, some in ((True, decaying), (False, rest)):
                for tensor in some:  # on CUDA the kernel takes tensors of one type
                    tensors.setdefault((options, decays, tensor.dtype), []).append(tensor)
        self.groups = {key: _group(*key[:2], held) for key, held in tensors.items()}

    def set_rate(self, share: float) -> None:
        """Set the share of each learning rate that the next steps take."""
        for (options, *_), group in self.groups.items():
            if isinstance(rate := group.options["lr"], Tensor):
                rate.fill_(options.lr * share)
            else:
                group.options["lr"] = options.lr * share

    @torch.no_grad()
    def step(self) -> None:
        for group in self.groups.values():
            group.step([p.grad for p in group.tensors])

    def state(self) -> list[dict[str, Any]]:
        return [group.state() for group in self.groups.values()]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        for group, saved in zip(self.groups.values(), state, strict=True):
            group.restore(saved)


def _group(options: Optimizer, decays: bool, tensors: Sequence[Tensor]) -> FusedAdamW:
    # A rate in a tensor on CUDA, so that a captured step reads it anew at every replay.
    rate = torch.zeros((), device=tensors[0].device) if tensors[0].is_cuda else 0.0
    kept = {name: getattr(options, name) for name in ("beta1", "beta2", "eps")}
    return FusedAdamW(tensors, lr=rate, weight_decay=options.weight_decay if decays else 0.0, **kept)
