"""Can a sparse code be learned without a decoder, and is it as good? Scores all sparse coders alike on one data set.

    assay sae --coders lse_infomax topk:k=4 topk:k=8 pca --data mnist --d_code 64 --lrs 1e-3 3e-3 --seeds 0..4

A coder of one kind at several levels of sparsity is a curve; curves are compared at equal numbers of active units. The
runs of the verbs (ablation, benchmark, dynamics) are runs of this study, and share its stored results.
"""

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from assay.core.errors import UserError
from assay.core.run import Record, Run, canonical
from assay.core.study import Context, Outcome, Report, Study
from assay.data.places import FOLDER, HUB, folders, is_hub
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import FittedCoder, SparseCoder
from assay.studies import studies
from assay.studies.sae.fitting import Setting, cohort_key
from assay.studies.sae.presets import DEMO, PRESETS
from assay.studies.sae.report import report
from assay.studies.sae.training import train_and_score
from assay.studies.sae.weights import keep
from assay.train.coder_bank import CoderRecipe, Recipe, StepRecipe
from assay.train.device import activate
from assay.vectors import vectors
from assay.vectors.base import VectorData


def parsed(words: Sequence[str]) -> tuple[SparseCoder, ...]:
    return tuple(sparse_coders.parse(word) for word in words)


@studies.register("sae")
@dataclass(frozen=True, kw_only=True)
class Sae(Study):
    """Can a sparse code be learned without a decoder, and is it as good?"""

    version: ClassVar[int] = 3
    question: ClassVar[str] = "Can a sparse code be learned without a decoder, and is it as good?"
    presets: ClassVar = PRESETS
    compares: ClassVar[str] = "coders"

    data: VectorData = field(default_factory=lambda: vectors.parse("digits"))
    """The vectors to code."""
    coders: tuple[SparseCoder, ...] = field(default_factory=lambda: parsed(DEMO))
    """Coders, each at one level of sparsity."""
    d_code: int = 32
    """Units of a code."""
    lrs: tuple[float, ...] = (1e-3, 3e-3)
    """Learning rates to choose from, on validation rows, for each coder."""
    epochs: int = 40
    """Times that the rows are gone through; a stream has steps instead."""
    batch: int = 128
    """Rows of a step."""
    steps: int = 0
    """Steps to train, by adam; 0: `epochs`, or, of a stream, as many as one reading of its tokens takes."""
    warmup: float = 0.0
    """Share of the steps in which the rate rises from 0."""
    decay: float = 0.0
    """Share of the steps, the last ones, in which the rate falls to 0."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """How weights are updated: by Adam, or by plain gradient descent (sgd), which needs epochs, not steps."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each seed is a new initialisation and a new order of the rows; the rows are the same."""
    data_dir: Path | None = None
    """The folder with the data set's files, or `hub`; by default the environment variable ASSAY_DATA."""
    weights: Literal["whole", "directions"] = "whole"
    """What is stored of a coder: all its weights, in float32, or only its units' directions, in half precision."""

    def plan(self) -> list[Run]:
        if self.d_code < 1 or not self.lrs or min(self.lrs, default=0) <= 0:
            raise UserError(f"d_code={self.d_code}, lrs={self.lrs}: at least one unit, and rates above 0.")
        recipe = self.recipe()
        data = {"data": self.data, "content": self.data.fingerprint(self.data_dir)}
        return [
            coder_run(data, coder, seed=seed, d_code=self.d_code, lr=lr, recipe=recipe)
            for seed in self.seeds
            for coder in self.coders
            for lr in (self.lrs[:1] if isinstance(coder, FittedCoder) else self.lrs)
        ]

    def recipe(self) -> Recipe:
        """Count epochs, or steps where they are given, or data are a stream: then one reading of its tokens is the
        default."""
        tokens = getattr(self.data, "tokens", 0) if self.data.streams else 0
        steps = self.steps or tokens // self.batch
        if not steps and (self.warmup or self.decay):
            raise UserError(f"--warmup {self.warmup:g} --decay {self.decay:g} are shares of --steps: give it too.")
        if not steps:
            return CoderRecipe(epochs=self.epochs, batch=self.batch, optimizer=self.optimizer, partial=False)
        if self.optimizer != "adam":
            raise UserError(
                f"--optimizer {self.optimizer}: a number of steps is trained by adam. Give --epochs instead."
            )
        return StepRecipe(steps=steps, batch=self.batch, warmup=self.warmup, decay=self.decay)

    def prepare(self, runs: Sequence[Run]) -> None:
        keep(self.weights)
        look_in(self.data_dir, self.data)
        self.data.locate()

    def check(self, runs: Sequence[Run]) -> None:
        check_sizes(runs, self.data_dir)

    def unfetched(self, runs: Sequence[Run]) -> str:
        return missing_data(runs, self.data_dir)

    def largest(self, run: Run) -> int:
        return largest(run)

    def cohort(self, run: Run) -> Hashable:
        """Train levels, rates and seeds of one kind of coder together; on a stream, all kinds and modules."""
        return cohort_key(run)

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        with activate(ctx.numerics) as device:
            yield from train_and_score(runs, ctx, device)

    def report(self, records: Sequence[Record], out: Report) -> None:
        report(records, out)


_study = cache(Sae)  # once, since a plan makes a thousand runs


def coder_run(data: Mapping[str, Any], coder: SparseCoder, *, seed: int, d_code: int, lr: float, recipe: Recipe) -> Run:
    """Make a run of the study `sae`, for any of its verbs. `data` has the hash of its files as `content`: two files of
    one name are two data sets. A coder that is fitted at once has no rate and no recipe."""
    fitted = isinstance(coder, FittedCoder)
    trained: dict[str, Any] = {"lr": None if fitted else lr, "recipe": None if fitted else recipe}
    return _study().cell(seed=seed, **data, coder=coder, d_code=d_code, **trained)


def check_sizes(runs: Sequence[Run], folder: Path | None) -> None:
    """Raise where a coder, recipe or model cannot handle the data's sizes, as far as they are known before loading."""
    for data in _data_of(runs):
        if folder is not None:
            folders(folder, remedy=data.remedy)  # is it there?
        data.check(folder)
    for data, coder, d_code, recipe in {(s.data, s.coder, s.d_code, s.recipe): None for s in map(Setting.of, runs)}:
        if shape := data.shape():
            for size in set(recipe.sizes(shape[0])) if recipe else {shape[0]}:
                coder.check(shape[1], d_code, size)


def largest(run: Run) -> int:
    """Return the bytes of the rows, of the coder's weights or of a decoder's Gram matrix, whichever is most."""
    setting = Setting.of(run)
    rows, d_in = setting.data.shape() or (0, 0)
    return max(4 * rows * d_in, 4 * d_in * setting.d_code, 8 * setting.d_code**2)


def missing_data(runs: Sequence[Run], folder: Path | None) -> str:
    """The dry run's message about missing data: the runs fetch it, or say how to."""
    away = {what: data.remedy for data in _data_of(runs) for what in data.missing(folder)}
    remedies = " ".join(dict.fromkeys(away.values()))
    return f"not here yet, and not fetched by a dry run: {', '.join(away)}. {remedies}" if away else ""


def _data_of(runs: Sequence[Run]) -> list[VectorData]:
    found = {canonical(run.options["data"]): run.options["data"] for run in runs}
    return [VectorData.registry.load(data) for data in found.values()]


def look_in(folder: Path | None, data: VectorData) -> None:
    """Set the folder in which this process and its workers look for data files."""
    if folder is not None:
        folders(folder, remedy=data.remedy)  # is it there?
        os.environ[FOLDER] = HUB if is_hub(folder) else str(folder.resolve())
