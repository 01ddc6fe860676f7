"""A bank trains sparse coders of one kind as one program: levels of sparsity x learning rates x seeds.

See DESIGN, "Cohorts and banks". The data lie on the device whole, or are a buffer that is filled anew every epoch.
Models of one seed share their batches, so a step is one matrix product per seed forward and one for the gradient; the
optimizer is torch's fused one, a call per rate. No operation mixes models: each has the bits it would have alone. On
CUDA a step is one replayed graph, and the host waits once an epoch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import UserError
from assay.core.grouping import grouped
from assay.nn.capture import Graphs
from assay.nn.random import stream
from assay.sparse_coders.base import CoderModule, TrainedCoder, pick, stack
from assay.train.adamw import FusedAdamW
from assay.train.checkpoint import generator_states, restore_generators


@dataclass(frozen=True, kw_only=True)
class CoderRecipe:
    epochs: int = 100
    batch: int = 128
    optimizer: Literal["adam", "sgd"] = "adam"
    partial: bool = True
    """Whether the rows that fill no batch make a smaller one, as in the spec, or wait for the next epoch's order."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 2:
            raise UserError(f"epochs={self.epochs}, batch={self.batch}: at least 1 epoch, in batches of at least 2.")

    def passes(self, rows: int) -> int:
        return self.epochs

    def sizes(self, rows: int, done: int = 0) -> list[int]:
        """List the batch sizes of an epoch. A last batch of a single row is left out: it has no variance."""
        if rows < self.batch:
            raise UserError(f"batch={self.batch}: there are only {rows} rows to train on. Lower the batch.")
        rest = rows % self.batch
        return [self.batch] * (rows // self.batch) + ([rest] if self.partial and rest > 1 else [])


@dataclass(frozen=True, kw_only=True)
class StepRecipe:
    """Adam for a number of steps, with a rate that rises linearly from 0 and falls linearly to 0 at the end."""

    steps: int = 20_000
    batch: int = 2048
    warmup: float = 0.0
    """Share of the steps in which the rate rises."""
    decay: float = 0.0
    """Share of the steps, the last ones, in which the rate falls."""
    matmul: Literal["highest", "high"] = "high"
    """Precision of products in training, as torch names it: `high` is TF32 on CUDA."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 2:
            raise UserError(f"steps={self.steps}, batch={self.batch}: at least 1 step, of at least 2 rows.")
        if self.warmup < 0 or self.decay < 0 or self.warmup + self.decay > 1:
            raise UserError(f"warmup={self.warmup:g}, decay={self.decay:g}: shares of the steps, together at most 1.")

    def passes(self, rows: int) -> int:
        """Count how often the rows, or a buffer of so many, are gone through; the last time perhaps in part."""
        return -(-self.steps // len(self.sizes(rows)))

    def sizes(self, rows: int, done: int = 0) -> list[int]:
        """List the batch sizes of a pass after `done` whole ones."""
        if rows < self.batch:
            raise UserError(f"batch={self.batch}: there are only {rows} rows at a time. Lower the batch.")
        per = rows // self.batch
        return [self.batch] * min(per, self.steps - done * per)

    def share(self, step: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The share of the rate at a step, counted from 0."""
        rising = (step + 1) / max(1.0, self.warmup * self.steps)
        falling = (self.steps - step) / max(1.0, self.decay * self.steps)
        return torch.minimum(rising, falling).clamp(max=1)


Recipe = CoderRecipe | StepRecipe


@dataclass(frozen=True)
class EpochTerms:
    """The mean over an epoch's batches of each loss term, by model."""

    number: int
    terms: dict[str, list[float]]


class CoderBank:
    """`run` trains and yields every epoch; `model(k)` is the k-th model as it now is."""

    def __init__(
        self,
        coders: Sequence[TrainedCoder],
        seeds: Sequence[int],
        rates: Sequence[float],
        data: Float[Tensor, "rows d_in"],
        d_code: int,
        recipe: Recipe,
        *,
        graph: bool = True,
        streamed: bool = False,
    ) -> None:
        """`streamed`: the data are a buffer, centred, whose rows the caller replaces in place between epochs."""
        # The models of a seed are adjacent, in groups of equal size, so that a step is one product.
        self.order = sorted(range(len(coders)), key=lambda k: (seeds[k], rates[k]))
        groups = [list(group) for _, group in groupby(self.order, key=lambda k: seeds[k])]
        assert len({len(group) for group in groups}) == 1, "every seed of a bank has as many models: see `rectangles`"
        self.coders, self.recipe, self.data = list(coders), recipe, data
        for coder in coders:
            for size in set(recipe.sizes(len(data))):
                coder.check(data.shape[1], d_code, size)
        self.seeds = [seeds[group[0]] for group in groups]
        self.rngs = {seed: stream(seed, "order") for seed in self.seeds}
        stacked = [coders[k] for k in self.order]
        self.module = stack(stacked, data.shape[1], d_code).to(data)
        mean = torch.zeros_like(data[0]) if streamed else data.mean(dim=0)
        self.module.initialise([seeds[k] for k in self.order], mean)
        self._whole: Tensor | None = None
        self._lit = (data != 0).any(dim=0)
        if self.module.ignores_dark_inputs and not streamed and not self._lit.all():
            self._leave_out_dark_inputs(stacked)
        for parameter in self.module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.epoch = 0
        self._optimizer = _Optimizer(self.module, [rates[k] for k in self.order], recipe)
        self._rows = torch.zeros(len(self.seeds), len(data), dtype=torch.int64, device=data.device)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=data.device)
        self._sums: dict[str, Tensor] = {}
        self._graphs = Graphs(graph and data.is_cuda and self.module.graphable)

    @torch.no_grad()
    def _leave_out_dark_inputs(self, stacked: Sequence[TrainedCoder]) -> None:
        """Drop inputs that are 0 in every row: they give their weights no gradient, so those stay as they began. This
        is exact, and spares 67 of MNIST's 784 pixels."""
        whole, self.data = self.module, self.data[:, self._lit]
        self.module = stack(stacked, self.data.shape[1], whole.d_code).to(self.data)
        for name, value in whole.state_dict().items():
            self.module.state_dict()[name].copy_(value[..., self._lit] if name == "W_enc" else value)
        self._whole = whole.get_parameter("W_enc").detach()

    def run(self) -> Iterator[EpochTerms]:
        """Train to the last epoch."""
        while self.epoch < self.recipe.passes(len(self.data)):
            yield self._epoch()

    def model(self, k: int) -> CoderModule:
        place = self.order.index(k)
        found = pick(self.coders[k], self.module, place)
        if self._whole is None:
            return found
        lit_up = self.coders[k].build(1, self._whole.shape[2], found.d_code).to(self.data)
        W = self._whole[place : place + 1].clone()
        W[:, :, self._lit] = found.get_parameter("W_enc").detach()
        lit_up.load_state_dict({**found.state_dict(), "W_enc": W})
        return lit_up

    @torch.no_grad()
    def _epoch(self) -> EpochTerms:
        """Train for one epoch, which of a stream is one buffer."""
        for place, seed in enumerate(self.seeds):
            self._rows[place].copy_(torch.randperm(len(self.data), generator=self.rngs[seed]))
        self._cursor.zero_()
        for total in self._sums.values():
            total.zero_()
        sizes = self.recipe.sizes(len(self.data), self.epoch)
        for size in sizes:
            self._graphs.play(size, partial(self._step, size))
        self.epoch += 1
        means = {name: (total / len(sizes)).tolist() for name, total in self._sums.items()}
        at = {k: place for place, k in enumerate(self.order)}
        ordered = {name: [values[at[k]] for k in range(len(values))] for name, values in means.items()}
        return EpochTerms(self.epoch, ordered)

    def _step(self, size: int) -> None:
        """Take one step. Everything it reads, the choice of rows included, lies on the device: the host waits for
        nothing."""
        rows = self._rows.index_select(1, self._cursor + torch.arange(size, device=self.data.device))
        self._cursor += size
        terms = self.module.gradient(self.data[rows])
        self._optimizer.step()
        self.module.after_step()
        for name, term in terms.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(term)
            self._sums[name] += term

    def close(self) -> None:
        """Drop the captured steps, which hold as much memory as a step; further ones would run uncaptured."""
        self._graphs = Graphs(False)

    def state(self) -> dict[str, Any]:
        """Collect everything that a bank of the same models needs to resume to the same bits."""
        return {
            "module": self.module.state_dict(), "optimizer": self._optimizer.state(),
            "rngs": generator_states(self.rngs), "epoch": self.epoch,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self._optimizer.restore(state["optimizer"])
        restore_generators(self.rngs, state["rngs"])
        self.epoch = int(state["epoch"])


class _Optimizer:
    """Updates by Adam or SGD, with a rate per model. Parameters never move, so views of them are made once."""

    def __init__(self, module: CoderModule, rates: Sequence[float], recipe: Recipe) -> None:
        parameters = [p.detach() for p in module.parameters()]
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        self.adams, self.descents = list[tuple[FusedAdamW, list[Tensor]]](), list[tuple[Tensor, Tensor, Tensor]]()
        self.recipe = recipe if isinstance(recipe, StepRecipe) else None
        if isinstance(recipe, CoderRecipe) and recipe.optimizer == "sgd":
            columns = [p.new_tensor(rates).view(-1, *[1] * (p.ndim - 1)) for p in parameters]
            self.descents = list(zip(parameters, gradients, columns, strict=True))
            return
        # Adam takes all models of a rate in one call, each as a tensor of its own: the kernel's loop over one model
        # never ends inside another, so that a model has the bits it has alone.
        places = grouped(range(len(rates)), lambda k: rates[k])
        self.rates = list(places)
        for rate, same in places.items():
            mine, theirs = ([tensor[k] for tensor in tensors for k in same] for tensors in (parameters, gradients))
            # On a schedule the rate is a tensor, so that a captured step computes it anew at every replay.
            lr = rate if self.recipe is None else torch.zeros((), device=parameters[0].device)
            self.adams.append((FusedAdamW(mine, lr=lr), theirs))

    def step(self) -> None:
        if self.recipe is not None:
            for rate, (adam, _) in zip(self.rates, self.adams, strict=True):
                adam.options["lr"].copy_(rate * self.recipe.share(adam.clock))
        for adam, gradients in self.adams:
            adam.step(gradients)
        for parameter, gradient, column in self.descents:
            parameter.addcmul_(gradient, column, value=-1)

    def state(self) -> list[dict[str, Any]]:
        return [adam.state() for adam, _ in self.adams]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        for (adam, _), saved in zip(self.adams, state, strict=True):
            adam.restore(saved)


def rectangles(seeds: Sequence[int]) -> list[list[int]]:
    """Split the places of models into banks whose seeds have as many models each:

    seeds 0 0 1 1 2  ->  [0 1 2 3], [4]
    """
    of_seed = grouped(range(len(seeds)), lambda k: seeds[k])
    banks = grouped(of_seed.values(), len)
    return [[k for places in bank for k in places] for bank in banks.values()]
