"""What changes in a model when its bottleneck shrinks? Train bilinear models of all widths on (a + b) mod P.

    assay modular sweep --P 64 --dimensions 1..64 --seeds 0..4

All widths and seeds of one recipe are trained as one program. A model's weights are its artifact `weights.safetensors`,
under the names of a saved `Model`: bi_linear.weight (2 d_hidden, 2P) and projection.weight (P, d_hidden).
"""

import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

import safetensors.torch
import torch

from assay.core.errors import UserError
from assay.core.run import Record, Run
from assay.core.study import Context, Outcome, Report, Study
from assay.metrics.size import parameters
from assay.studies import studies
from assay.studies.modular.bilinear import Model, answered
from assay.studies.modular.bilinear_bank import BilinearBank, Epoch, PairSplit, Recipe, fresh_models
from assay.studies.modular.files import check_path, encoded
from assay.studies.modular.metrics.spectra import entropy_effective_rank, interaction_eigenvalues, ratio_effective_rank
from assay.studies.modular.records import WEIGHTS, recipe_of, saved_sweep, setting
from assay.train.checkpoint import Checkpoint, Keeper, resumed, unfinished
from assay.train.device import activate

ALL_WIDTHS = 4096
"""The largest P for which `--dimensions` may be left out."""
MESSAGES = 50
"""Progress messages per model."""


@studies.register("modular.sweep")
@dataclass(frozen=True, kw_only=True)
class Sweep(Recipe, Study):
    """What changes in a model of modular addition when its bottleneck shrinks?"""

    question: ClassVar[str] = "What changes in a model of modular addition when its bottleneck shrinks?"
    presets: ClassVar = {
        "demo": {  # a small prime and a strong decay: widths differ within a minute on two cores
            "P": 31,
            "dimensions": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
            "epochs": 60,
            "batch": 32,
            "lr": 1e-2,
            "weight_decay": 0.5,
            "test_share": 0.125,
        },
        "spec": {"seeds": (0,), "lr": 3e-3, "weight_decay": 1e-4},
        # docs/FINDINGS.md: other seeds than those that chose the rate and decay, a rate that falls, so that what is
        # tested is where training ends and not a lucky epoch. Minutes on a GPU.
        "findings": {
            "dimensions": tuple(range(1, 65)),
            "seeds": (10, 11, 12, 13, 14),
            "epochs": 400,
            "anneal": 0.5,
            "test_share": 0.125,
            "grid": {"P": ["64", "61", "113"]},
        },
    }

    lr: float = 3e-2
    """Learning rate of AdamW, before it is annealed; the spec's is 3e-3."""
    weight_decay: float = 0.1
    """Each step multiplies the weights by 1 - weight_decay * lr; the spec's is 1e-4 (--preset spec)."""
    P: int = 64
    """The modulus."""
    dimensions: tuple[int, ...] | None = None
    """Hidden widths, in any order; 1 to P by default."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Each seed is a new split, a new order of batches and new initial weights; widths of a seed share its split."""
    save: Path | None = None
    """Write the trained models to a file too: NAME.safetensors, with a manifest beside it, or the spec's NAME.pkl."""

    def plan(self) -> list[Run]:
        self.sizes(self.P)
        if self.dimensions is None and self.P > ALL_WIDTHS:
            raise UserError(f"--P {self.P}: as many widths are too many to train. Lower it, or name some --dimensions.")
        dimensions = tuple(range(1, self.P + 1)) if self.dimensions is None else self.dimensions
        if not dimensions or not self.seeds:
            raise UserError("--dimensions, --seeds: name at least one width and one seed.")
        if not all(width >= 1 for width in dimensions):
            raise UserError(f"--dimensions {' '.join(map(str, dimensions))}: a width is at least 1.")
        if self.save is not None:
            check_path(self.save, self.seeds)
        # Neighbours apart: workers get a half of the plan each, and a wide model costs more than a narrow one.
        widths = (*dimensions[::2], *dimensions[1::2])
        asked = [(seed, width) for seed in self.seeds for width in widths]
        return [self.cell(seed=seed, P=self.P, d_hidden=width, **self.recipe()) for seed, width in asked]

    def cohort(self, run: Run) -> Hashable:
        """Group all widths and seeds of a recipe."""
        return setting(run)

    def largest(self, run: Run) -> int:
        """The forms of a model, its logits of all pairs, or its weights."""
        P, width = run.options["P"], run.options["d_hidden"]
        return max(8 * P * min(2 * width, 2 * P) ** 2, 8 * 4 * P**2, 4 * 5 * P * width)

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        with activate(ctx.numerics) as device:
            # Runs with a checkpoint of the same epoch resume together.
            for some, saved in unfinished(runs, ctx, whole=False):
                yield from train_together(some, ctx, device, saved)

    def promised(self) -> Sequence[Path]:
        return () if self.save is None else (self.save,)

    def report(self, records: Sequence[Record], out: Report) -> None:
        from assay.studies.modular.report import report

        report(records, out)
        if self.save is not None:
            for path, data in encoded(saved_sweep(records), self.save):
                out.file(path, data)


@dataclass
class Course:
    """The state of one run during training. Models that are trained together share the time of an epoch."""

    run: Run
    curve: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def follow(self, epoch: Epoch, k: int, seconds: float, cpu_seconds: float) -> None:
        self.curve.append(epoch.val_acc[k])
        self.losses.append(epoch.loss[k])
        self.seconds += seconds / len(epoch.val_acc)
        self.cpu_seconds += cpu_seconds / len(epoch.val_acc)


def train_together(
    runs: Sequence[Run], ctx: Context, device: torch.device, saved: Checkpoint | None
) -> Iterator[Outcome]:
    """Train runs as one program; each ends when its model leaves the bank. A model gets the same bits as alone, so the
    unfinished ones resume exactly whichever were stored before."""
    options, seeds = runs[0].options, [run.seed for run in runs]
    recipe = recipe_of(options)
    courses = [Course(run) for run in runs]

    def start() -> BilinearBank:
        models = fresh_models(options["P"], [run.options["d_hidden"] for run in runs], seeds)
        return BilinearBank(models, seeds, recipe, device)

    def take_up(bank: BilinearBank, saved: Checkpoint) -> None:
        bank.restore(saved.state, [saved.runs[run.id]["place"] for run in runs])
        courses[:] = [Course(run, **saved.runs[run.id]["course"]) for run in runs]

    bank, keeper = resumed(saved, start, take_up), Keeper(ctx)
    every = max(1, recipe.epochs // MESSAGES)
    before = time.perf_counter(), time.process_time()
    for epoch in bank.run():
        now = time.perf_counter(), time.process_time()
        for k, val_acc in epoch.val_acc.items():
            courses[k].follow(epoch, k, now[0] - before[0], now[1] - before[1])
            if epoch.number % every == 0:
                ctx.progress(runs[k], epoch.number, recipe.epochs, val_acc=val_acc)
        before = now
        if bank.going:
            # Stored beside the narrowest unfinished run, which is likely the last to be stored.
            home = min(bank.going, key=lambda k: runs[k].options["d_hidden"])
            keeper.keep(runs[home], lambda: checkpoint(bank, courses))
        for k in epoch.finished:
            yield outcome(courses[k], bank.models[k], bank.splits[runs[k].seed], together=len(runs))


def checkpoint(bank: BilinearBank, courses: Sequence[Course]) -> Checkpoint:
    """Save the models that are still trained, and the place of each in the bank."""
    kept = {}
    for k in bank.going:
        course = {key: value for key, value in vars(courses[k]).items() if key != "run"}
        kept[courses[k].run.id] = {"place": k, "course": course}
    return Checkpoint(bank.number, bank.state(), kept)


def outcome(course: Course, model: Model, split: PairSplit, *, together: int) -> Outcome:
    cost = {"seconds": course.seconds, "cpu_seconds": course.cpu_seconds, "trained_together": together}
    streak = len(list(takewhile(lambda val_acc: val_acc == 1, reversed(course.curve))))
    settled = streak >= recipe_of(course.run.options).settle
    metrics: dict[str, Any] = {
        "epochs": len(course.curve),
        "val_acc": course.curve[-1],
        "curve": course.curve,
        "perfect": int(settled),
    }
    if not torch.tensor(course.losses[-1]).isfinite():
        return Outcome(course.run, metrics, cost, diverged=f"the loss of epoch {len(course.curve)}")
    eigenvalues = interaction_eigenvalues(model)
    right = answered(model)
    metrics |= {
        "best_val_acc": max(course.curve),
        "train_acc": float(right[split.train].mean()),
        "test_acc": float(right[split.test].mean()) if len(split.test) else None,
        "full_acc": float(right.mean()),
        "train_loss": course.losses[-1],
        "epochs_to_perfect": len(course.curve) - streak + 1 if settled else None,
        "effective_rank": float(entropy_effective_rank(eigenvalues).mean()),
        "effective_rank_ratio": float(ratio_effective_rank(eigenvalues).mean()),
        "params": parameters(model),
    }
    weights = {name: weight.detach().contiguous() for name, weight in model.state_dict().items()}
    return Outcome(course.run, metrics, cost, {WEIGHTS: safetensors.torch.save(weights)})
