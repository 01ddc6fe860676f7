"""A bank trains bilinear models of many widths and seeds on modular addition as one program.

See DESIGN, "Cohorts and banks". Widths are padded with units of zero weight, whose gradients are exactly zero, to
the next multiple of 16; models of one padded width are a group, and a group is trained an epoch at a time, while its
weights are in the cache. Gradients are written out: an input is two ones, so W x is a sum of two rows of a table, and
its gradient is added back to those rows. No operation mixes models: each is what it would be alone. A model leaves the
bank when it answers all validation pairs, for as many epochs as the recipe asks, or diverges; where the rate falls,
after its last epoch.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.convert import added, stated
from assay.core.errors import UserError
from assay.nn.random import initialised_from, stream
from assay.studies.modular.bilinear import Model, init_model
from assay.train.adamw import FusedAdamW
from assay.train.checkpoint import fill, generator_states, restore_generators

Lookups = Int[Tensor, " lookups"]
Pairs = Int[Tensor, " pairs"]
Table = Float[Tensor, "models inputs 2 unit"]
Sides = Float[Tensor, "models rows 2 unit"]
Units = Float[Tensor, "models rows unit"]
PADDED_TO = 16
TOGETHER = 64
"""Most models of a group on a CPU, so that memory does not grow with their number; larger groups are no faster."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model is trained by AdamW on cross entropy, until every validation pair is right or the epochs are over."""

    epochs: int = 500
    """Most epochs; a model stops at the first one with every validation pair right, or later: see settle."""
    batch: int = 64
    """Pairs per step."""
    lr: float = 3e-3
    weight_decay: float = 1e-4
    train_share: float = 0.75
    """Share of the P^2 pairs to train on; the others validate and test."""
    test_share: float = 0.0
    """Share of the P^2 pairs to test on, taken from those that would validate. Nothing is chosen by them: training
    stops where validation is perfect, and so favours the validation pairs."""
    settle: int = added(1)
    """Epochs in a row with every validation pair right before a model stops. With 1, the spec's, a model stops at its
    first lucky epoch, and its test pairs say when that was."""
    anneal: float = added(0.0)
    """Share of the epochs, the last ones, in which the rate falls to 0 in a straight line. At a constant rate a narrow
    model's answers differ from epoch to epoch; where the rate falls they settle, and no model stops early."""

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch, self.settle) < 1 or not 0 < self.train_share < 1:
            raise UserError(
                f"epochs={self.epochs}, batch={self.batch}, settle={self.settle}, train_share={self.train_share}: the "
                "first three are at least 1, the share lies between 0 and 1."
            )
        if not 0 < self.lr < math.inf or not 0 <= self.weight_decay < math.inf:
            raise UserError(f"lr={self.lr}, weight_decay={self.weight_decay}: a rate is above 0, a decay 0 or more.")
        if not 0 <= self.anneal <= 1:
            raise UserError(f"anneal={self.anneal}: a share of the epochs, between 0 and 1.")
        if not 0 <= self.test_share < 1 - self.train_share:
            raise UserError(
                f"test_share={self.test_share}: it is 0 or more, and with train_share={self.train_share} leaves some "
                "pairs to validate."
            )

    def recipe(self) -> dict[str, Any]:
        """The training options that all widths and seeds share; `settle` and `anneal` are left out where they are the
        spec's, as they were before there were any."""
        shared = {f.name for f in fields(Recipe)}
        return {key: value for key, value in stated(self) if key in shared}

    def rates(self, epoch: int, steps: int) -> list[float]:
        """The rate at each step of an epoch; epochs are counted from 1."""
        falling, left = self.anneal * self.epochs * steps, (self.epochs - epoch + 1) * steps
        return [self.lr * (min(1.0, (left - step) / falling) if falling else 1.0) for step in range(steps)]

    def sizes(self, P: int) -> tuple[int, int, int]:
        """Count the pairs to train, to validate and to test on."""
        train, test = round(self.train_share * P * P), round(self.test_share * P * P)
        val = P * P - train - test
        if train < self.batch or val < 1:
            raise UserError(
                f"P={P} leaves {train} pairs to train on and {val} to validate: a batch of {self.batch} and one "
                "validation pair are the least. Lower batch, or change train_share or test_share."
            )
        return train, val, test


@dataclass(frozen=True)
class PairSplit:
    """The pairs to train, validate and test on, as rows aP + b of the addition table."""

    train: Int[Tensor, " train"]
    val: Int[Tensor, " val"]
    test: Int[Tensor, " test"]

    @classmethod
    def of(cls, P: int, seed: int, recipe: Recipe) -> "PairSplit":
        """Draw the split of a seed, the same for every width: models of a seed differ in nothing else."""
        return cls(*torch.randperm(P * P, generator=stream(seed, "split")).split(list(recipe.sizes(P))))

    def order(self, batch: int, rng: torch.Generator) -> Int[Tensor, "steps batch"]:
        """Draw the batches of an epoch; the rows that fill no batch are left out of it."""
        steps = len(self.train) // batch
        rows = self.train[torch.randperm(len(self.train), generator=rng)[: steps * batch]]
        return rearrange(rows, "(steps batch) -> steps batch", batch=batch)


@dataclass(frozen=True)
class Epoch:
    """The results of an epoch, by each model's place in the bank."""

    number: int
    val_acc: dict[int, float]
    loss: dict[int, float]
    """Mean training loss; not finite where the model diverged."""
    finished: tuple[int, ...]
    """Models that leave the bank: settled at perfect validation, diverged, or out of epochs."""


class BilinearBank:
    """`run` trains; `models[k]` is the k-th model, trained once it has left the bank."""

    def __init__(
        self, models: Sequence[Model], seeds: Sequence[int], recipe: Recipe, device: str | torch.device = "cpu"
    ) -> None:
        assert len(models) == len(seeds), f"{len(seeds)} seeds for {len(models)} models"
        assert not any(model.config.bias for model in models), "a bank knows no biases"
        (self.P,) = {model.config.p for model in models}
        self.models, self.seeds, self.recipe = list(models), list(seeds), recipe
        self.device = torch.device(device)
        self.number = 0
        self.streaks = [0] * len(models)
        """Epochs in a row, up to now, in which a model answered every validation pair."""
        self.splits = {seed: PairSplit.of(self.P, seed, recipe) for seed in seeds}
        self.orders = {seed: stream(seed, "order") for seed in seeds}
        together = TOGETHER if self.device.type == "cpu" else len(models)
        by_width = sorted(range(len(models)), key=lambda k: _padded(models[k]))
        self.groups = [
            _Group([models[k] for k in part], part, recipe, self.device)
            for _, same in groupby(by_width, key=lambda k: _padded(models[k]))
            for part in _parts(list(same), together)
        ]

    def run(self) -> Iterator[Epoch]:
        while self.groups and self.number < self.recipe.epochs:
            self.number += 1
            yield self._epoch(self.number)

    @property
    def going(self) -> list[int]:
        """Models that are still trained."""
        return sorted(k for group in self.groups for k in group.members)

    def state(self) -> dict[str, Any]:
        """Collect everything that a bank of these models, or of some of them, needs to resume to the same bits. One
        clock serves all, since models begin together."""
        return {
            "number": self.number,
            "clock": self.groups[0].adamw.clock,
            "orders": generator_states(self.orders),
            "streaks": list(self.streaks),
            "groups": [{"members": group.members, "tensors": group.tensors} for group in self.groups],
        }

    @torch.no_grad()
    def restore(self, state: dict[str, Any], places: Sequence[int]) -> None:
        """Resume from the state of a bank; `places` are where this bank's models stood in that one."""
        self.number = int(state["number"])
        if "streaks" in state:  # not in a checkpoint of an earlier assay, where the first perfect epoch was the last
            self.streaks = [int(state["streaks"][place]) for place in places]
        restore_generators(self.orders, state["orders"])
        rows = {k: (saved["tensors"], row) for saved in state["groups"] for row, k in enumerate(saved["members"])}
        for group in self.groups:
            fill(group.adamw.clock, state["clock"])
            for place, k in enumerate(group.members):
                tensors, row = rows[places[k]]
                for mine, saved in zip(group.tensors, tensors, strict=True):
                    fill(mine[place], saved[row])

    @torch.no_grad()
    def _epoch(self, number: int) -> Epoch:
        going = sorted({self.seeds[k] for group in self.groups for k in group.members})
        orders = {seed: self.splits[seed].order(self.recipe.batch, self.orders[seed]) for seed in going}
        val_acc, loss, finished = dict[int, float](), dict[int, float](), list[int]()
        for group in self.groups:
            seeds = [self.seeds[k] for k in group.members]
            rows = torch.stack([orders[seed] for seed in seeds], dim=1)
            losses = group.train(rows, self.recipe.rates(number, len(rows)))
            right = group.accuracy(torch.stack([self.splits[seed].val for seed in seeds]))
            losses = torch.where(group.finite(), losses, torch.nan)
            val_acc |= zip(group.members, right.tolist(), strict=True)
            loss |= zip(group.members, losses.tolist(), strict=True)
            for k in group.members:
                self.streaks[k] = self.streaks[k] + 1 if val_acc[k] == 1 else 0
            settled = [not self.recipe.anneal and self.streaks[k] >= self.recipe.settle for k in group.members]
            over = ~losses.isfinite() | (number == self.recipe.epochs)
            leaving = torch.tensor(settled, device=over.device) | over
            for place in leaving.nonzero()[:, 0].tolist():
                finished.append(group.members[place])
                group.write(place, self.models[group.members[place]])
            if leaving.any():
                group.keep(~leaving)
        self.groups = [group for group in self.groups if group.members]
        return Epoch(number, val_acc, loss, tuple(sorted(finished)))


def fresh_models(P: int, widths: Sequence[int], seeds: Sequence[int]) -> list[Model]:
    """Initialise a model for each width and the seed beside it, each from a random stream of its own."""
    models = []
    for width, seed in zip(widths, seeds, strict=True):
        with initialised_from(seed, "init", width):
            models.append(init_model(P, width))
    return models


def _parts(items: Sequence[int], size: int) -> list[Sequence[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _padded(model: Model) -> int:
    return math.ceil(model.config.width / PADDED_TO) * PADDED_TO


class _Group:
    """Trains models of one padded width. The left and right weights of an input lie side by side, as a row of the
    table."""

    def __init__(self, models: Sequence[Model], members: Sequence[int], recipe: Recipe, device: torch.device) -> None:
        self.members = list(members)
        self.P, self.width = models[0].config.p, _padded(models[0])
        like = models[0].w_p
        self.table = like.new_zeros(len(models), 2 * self.P, 2, self.width, device=device)
        self.readout = like.new_zeros(len(models), self.P, self.width, device=device)
        self.adamw = FusedAdamW([self.table, self.readout], lr=recipe.lr, weight_decay=recipe.weight_decay)
        with torch.no_grad():
            for place, model in enumerate(models):
                d = model.config.width
                self.table[place, :, 0, :d], self.table[place, :, 1, :d] = model.w_l.T, model.w_r.T
                self.readout[place, :, :d] = model.w_p

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that training changes, with a row per model."""
        return [*self.adamw.tensors, *self.adamw.means, *self.adamw.squares]

    def finite(self) -> Bool[Tensor, " models"]:
        return self.table.isfinite().flatten(1).all(dim=1) & self.readout.isfinite().flatten(1).all(dim=1)

    def write(self, place: int, model: Model) -> None:
        """Copy the weights at a place into a model of their width."""
        d = model.config.width
        model.bi_linear.weight.copy_(rearrange(self.table[place, ..., :d], "inputs side d -> (side d) inputs"))
        model.projection.weight.copy_(self.readout[place, :, :d])

    def keep(self, which: Bool[Tensor, " models"]) -> None:
        self.members = [k for k, stays in zip(self.members, which.tolist(), strict=True) if stays]
        self.adamw.keep(which)
        self.table, self.readout = self.adamw.tensors

    def accuracy(self, rows: Int[Tensor, "models rows"]) -> Float[Tensor, " models"]:
        """Compute each model's share of right answers: those whose logit is above all others."""
        picks, (answers,) = self._lookups(rows[None].to(self.table.device))
        logits, *_ = self._forward(picks[0], self._pairs(rows.numel()))
        given = logits.gather(2, answers)
        others = logits.scatter_(2, answers, -torch.inf).amax(dim=-1, keepdim=True)  # argmax takes ten times as long
        return (given > others).double().mean(dim=(1, 2))

    def train(self, rows: Int[Tensor, "steps models batch"], rates: Sequence[float]) -> Float[Tensor, " models"]:
        """Take a step per batch of rows, at the rate beside it; returns the mean loss of each model."""
        picks, answers = self._lookups(rows.to(self.table.device))
        pairs = self._pairs(rows[0].numel())
        gradients = [torch.empty_like(part) for part in self.adamw.tensors]
        shares = self.table.new_empty(*answers.shape)
        returned = self.table.new_empty(*rows.shape[1:], 2, self.width)
        less = torch.full_like(shares[0], -1.0)
        for pick, answer, given, rate in zip(picks, answers, shares, rates, strict=True):
            self.adamw.options["lr"] = rate
            self._gradient(pick, answer, pairs, less, given, returned, *gradients)
            self.adamw.step(gradients)
        # A probability that underflows to 0 is no divergence; NaN stays NaN. In which order the terms are added depends
        # on the number of models; sums of float32 in float64 are exact in any.
        losses = -shares.clamp_(min=torch.finfo(shares.dtype).tiny).log_().mean(dim=(0, 2, 3), dtype=torch.float64)
        return losses.to(shares.dtype)

    def _gradient(
        self,
        picks: Lookups,
        answers: Int[Tensor, "models rows 1"],
        pairs: Pairs,
        less: Float[Tensor, "models rows 1"],
        given: Float[Tensor, "models rows 1"],
        returned: Sides,
        table: Table,
        readout: Float[Tensor, "models P unit"],
    ) -> None:
        """Write the gradient of each model's mean cross entropy into the last two, and the probability of the right
        answer into `given`; `less` is -1 and `returned` is overwritten. It uses few operations: at these sizes a call
        costs as much as its arithmetic."""
        logits, hidden, left, right = self._forward(picks, pairs)
        shares = torch.softmax(logits, dim=-1)
        torch.gather(shares, 2, answers, out=given)
        # d loss / d logits = (softmax - one hot) / rows
        error = shares.scatter_add_(2, answers, less).div_(shares.shape[1])
        torch.bmm(error.mT, hidden, out=readout)
        back = torch.bmm(error, self.readout)
        # The product rule: the gradient of one factor is weighted by the other.
        to_left, to_right = returned.unbind(dim=2)
        torch.mul(back, right, out=to_left)
        torch.mul(back, left, out=to_right)
        (_add_dense if table.is_cuda else _add_rows)(table, picks, returned)

    def _lookups(
        self, rows: Int[Tensor, "steps models rows"]
    ) -> tuple[Int[Tensor, "steps lookups"], Int[Tensor, "steps models rows 1"]]:
        """Find the two table rows of every pair, one after the other and numbered through all models' tables, and the
        right answers."""
        a, b = rows // self.P, rows % self.P
        start = 2 * self.P * torch.arange(rows.shape[1], device=rows.device)[:, None]
        picks = torch.stack([start + a, start + self.P + b], dim=-1)
        return picks.flatten(1), ((a + b) % self.P)[..., None]

    def _pairs(self, count: int) -> Pairs:
        """List where each pair begins among the lookups."""
        return torch.arange(0, 2 * count, 2, device=self.table.device)

    def _forward(self, picks: Lookups, pairs: Pairs) -> tuple[Float[Tensor, "models rows P"], Units, Units, Units]:
        """Compute the logits, every hidden unit and its two factors."""
        # Called by torch.nn.functional.embedding_bag(mode="sum"), which spends a third of its time computing `pairs`.
        summed = torch.embedding_bag(self.table.view(-1, 2 * self.width), picks, pairs, False, 0)[0]
        left, right = summed.view(len(self.table), -1, 2, self.width).unbind(dim=2)
        hidden = left * right
        return torch.bmm(hidden, self.readout.mT), hidden, left, right


def _add_rows(table: Table, picks: Lookups, returned: Sides) -> None:
    """Add the gradient of each pair to its two rows of a table that is zeroed first."""
    into, given = (each.view(-1, 2 * each.shape[-1]) for each in (table.zero_(), returned))
    for picked in picks.view(-1, 2).T.contiguous():
        into.index_add_(0, picked, given)


def _add_dense(table: Table, picks: Lookups, returned: Sides) -> None:
    """Do the same by a product with the one-hot inputs: on CUDA index_add_ adds in any order, and this is faster than
    anything that sorts."""
    models, inputs = table.shape[:2]
    one_hot = table.new_zeros(returned.shape[0] * returned.shape[1], inputs)
    one_hot.scatter_(1, picks.view(-1, 2) % inputs, 1.0)
    torch.bmm(one_hot.view(models, -1, inputs).mT, returned.flatten(2), out=table.flatten(2))
