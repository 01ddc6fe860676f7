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
from typing import Any, ClassVar, Literal, NamedTuple

from assay.core.errors import UserError
from assay.core.run import Record, Run, canonical
from assay.core.study import Context, Outcome, Report, Study
from assay.data.places import FOLDER, HUB, folders, is_hub
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import FittedCoder, SparseCoder
from assay.studies import studies
from assay.studies.sae.presets import PLANTED
from assay.train.coder_bank import CoderRecipe, Recipe, StepRecipe
from assay.train.device import activate
from assay.vectors import vectors
from assay.vectors.base import VectorData


def levels(word: str, option: str, values: Sequence[float]) -> tuple[str, ...]:
    """`topk`, `k`, (2, 4) -> topk:k=2, topk:k=4."""
    return tuple(f"{word}:{option}={value}" for value in values)


FIELD = (
    *levels("lse_infomax", "lambda_lse", (0.0, 1.0, 10.0, 30.0, 100.0)),
    *levels("lse_infomax:scale=unit_norm", "lambda_lse", (0.0, 1.0, 10.0, 30.0, 100.0)),
    *levels("lse_infomax:scale=hinge", "lambda_lse", (0.0, 0.1, 1.0, 10.0, 30.0)),
    *levels("relu_l1", "l1", (0.1, 0.3, 1.0, 3.0)), *levels("topk", "k", (2, 4, 8, 16, 32)),
    *levels("batch_topk", "k", (2, 4, 8, 16, 32)), *levels("jump_relu", "l0", (0.01, 0.03, 0.1, 0.3, 1.0)),
    *levels("gated", "l1", (0.1, 0.3, 1.0, 3.0)), *levels("matryoshka", "k", (2, 4, 8, 16, 32)),
)  # fmt: skip
"""Each kind of coder at several levels of sparsity."""
CONTROLS = ("pca", "fast_ica", "fast_ica:rectified=true", "kmeans", "random_relu")
DEMO = (
    "lse_infomax:lambda_lse=0.0", "lse_infomax", "lse_infomax:lambda_lse=10.0", "topk:k=4", "topk:k=8", "topk:k=16",
    "relu_l1:l1=0.1", "relu_l1", "pca", "fast_ica", "random_relu",
)  # fmt: skip
FINDINGS = (
    *levels("lse_infomax", "lambda_lse", (0.0, 0.3, 1.0, 3.0, 10.0)), "lse_infomax:lambda_tc=0.0",
    *levels("topk", "k", (2, 4, 8, 16, 32, 48)), *levels("relu_l1", "l1", (0.03, 0.1, 0.3, 1.0)),
    "relu_l1:l1=0.01:form=spec", "pca", "fast_ica", "random_relu",
)  # fmt: skip
SYNTHETIC = (
    *levels("lse_infomax", "lambda_lse", (0.0, 1.0, 10.0, 30.0, 100.0, 300.0, 1000.0)),
    *levels("lse_infomax:scale=unit_norm", "lambda_lse", (0.0, 1.0, 10.0, 30.0, 100.0, 300.0, 1000.0)),
    *levels("lse_infomax:scale=hinge", "lambda_lse", (0.0, 1.0, 3.0, 10.0, 30.0)),
    *(word for name in ("topk", "batch_topk", "matryoshka") for word in levels(name, "k", (4, 8, 16, 32, 64, 128))),
    *levels("relu_l1", "l1", (0.1, 0.3, 0.6, 1.0, 1.5)), *levels("gated", "l1", (0.1, 0.3, 1.0, 1.7, 2.5)),
    *levels("jump_relu", "l0", (0.003, 0.01, 0.03, 0.1, 0.3)),
)  # fmt: skip
"""For 512 units: every kind from about 4 or 8 active units to 64 or 128, so that curves can be compared."""
ACTIVATIONS = (
    *levels("lse_infomax", "lambda_lse", (1e3, 1e4, 1e5, 1e6)), *levels("topk", "k", (12, 32, 80, 160)),
    *levels("relu_l1", "l1", (0.75, 1.5, 3.0, 6.0)), *levels("gated", "l1", (2.0, 4.0, 8.0, 16.0)),
    *levels("jump_relu:bandwidth=1.0:threshold=1.0", "l0", (0.03, 0.3, 3.0, 30.0)),
    *levels("lse_infomax:scale=unit_norm", "lambda_lse", (1e4, 1e5, 1e6)),
    *levels("lse_infomax:scale=hinge", "lambda_lse", (1e4, 1e5, 1e6)),
    *levels("batch_topk", "k", (12, 32, 80)), *levels("matryoshka", "k", (12, 32, 80)),
    "random_relu",
)  # fmt: skip
"""For 4608 units on rows with |x|^2 = 576, chosen on a small sample to have some 10 to 300 active units; above 1e5 the
log-sum-exp dominates, and units die. The most important come first, in case a session ends early. The controls that
are fitted on a CPU (fast_ica, dictionary_learning, kmeans) take hours at that width, pca has no more than 576
components, and the log-determinant needs batches of 18,432 rows."""
STREAM = (
    "topk:k=32:dead_after=1000", "batch_topk:k=32:dead_after=1000", "relu_l1:l1=5.0", "gated:l1=5.0",
    "jump_relu:l0=1.0:bandwidth=1.0:threshold=1.0", "lse_infomax:lambda_lse=10000.0", "random_relu",
)  # fmt: skip
"""One level of each kind among 4608 units, on rows with |x|^2 = 576. A unit is silent after
1,000 steps of 2,560 rows, a quarter of the 10 million tokens that the TopK paper waits in its longer training."""
OVERCOMPLETE_CONTROLS = ("kmeans", "kmeans:code=triangle", "random_relu", "dictionary_learning:k=8")


def parsed(words: Sequence[str]) -> tuple[SparseCoder, ...]:
    return tuple(sparse_coders.parse(word) for word in words)


@studies.register("sae")
@dataclass(frozen=True, kw_only=True)
class Sae(Study):
    """Can a sparse code be learned without a decoder, and is it as good?"""

    version: ClassVar[int] = 3
    question: ClassVar[str] = "Can a sparse code be learned without a decoder, and is it as good?"
    presets: ClassVar = {
        "demo": {},  # the defaults: the embedded digits, half a minute on two cores
        "synthetic": {
            "data": "dictionary",
            "coders": (*SYNTHETIC, *OVERCOMPLETE_CONTROLS),
            "d_code": 512,
            "epochs": 30,
            "batch": 512,
            "lrs": (1e-3, 3e-3, 1e-2, 3e-2),
            "seeds": (0, 1, 2, 3, 4),
        },
        "findings": {  # every coder at several levels, on any data set
            "coders": FINDINGS,
            "d_code": 64,
            "epochs": 100,
            "seeds": (0, 1, 2, 3, 4),
        },
        "activations": {
            "data": "activations:model=smollm2-135m:hook=model.layers.15:sequences=2000",
            "coders": ACTIVATIONS,
            "d_code": 4608,
            "epochs": 1,
            "batch": 512,
            "lrs": (1e-3, 3e-3, 1e-2),
            "seeds": (0, 1, 2, 3, 4),
        },
        "stream": {  # for one large GPU, after `assay data pull library`, or with --data.text FOLDER
            "data": "stream:model=smollm2-135m:hook=model.layers.15:text=library"
            ":tokens=53000000:batch=512:buffer=512000",
            "coders": STREAM,
            "d_code": 4608,
            "steps": 20_000,
            "batch": 2560,
            "warmup": 0.05,
            "decay": 0.2,
            "lrs": (1e-4, 4e-4, 1.6e-3),
            "seeds": (0,),
        },
        "stream_demo": {  # the same on a laptop: Python's own documentation, and six layers of a model without the hub
            "data": "stream:model=smollm2-135m:hook=model.layers.5:tokens=100000:buffer=16384:held_out=8192",
            "coders": ("topk:k=16", "relu_l1:l1=5.0", "lse_infomax:lambda_lse=100.0", "random_relu"),
            "d_code": 576,
            "steps": 400,
            "batch": 256,
            "warmup": 0.05,
            "decay": 0.2,
            "lrs": (1e-3,),
            "seeds": (0,),
        },
        "mnist": {
            "data": "mnist",
            "coders": (*FIELD, *CONTROLS),
            "d_code": 64,
            "epochs": 20,
            "lrs": (3e-4, 1e-3, 3e-3),
            "seeds": (0, 1, 2, 3, 4),
        },
        **PLANTED,
    }  # fmt: skip

    lowered: ClassVar[Mapping[str, str]] = {"recipe.batch": "--batch", "coder": "--coders"}

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
        data = Coded(self.data, self.data.fingerprint(self.data_dir))
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
        from assay.studies.sae.weights import keep

        keep(self.weights)
        look_in(self.data_dir, self.data)
        self.data.locate()

    def disk(self, runs: Sequence[Run]) -> int:
        from assay.studies.sae.weights import stored_bytes

        return stored_bytes(runs, self.weights)

    less_disk: ClassVar[str] = "`--weights directions` stores a quarter, without what an export needs."

    def check(self, runs: Sequence[Run]) -> None:
        check_sizes(runs, self.data_dir)

    def unfetched(self, runs: Sequence[Run]) -> str:
        return missing_data(runs, self.data_dir)

    def memory(self, run: Run) -> Mapping[str, int]:
        from assay.studies.sae.memory import memory

        return memory(run)

    def cohort(self, run: Run) -> Hashable:
        """Train levels, rates and seeds of one kind of coder together; on a stream, all kinds and modules."""
        from assay.studies.sae.fitting import cohort_key

        return cohort_key(run)

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        from assay.studies.sae.training import train_and_score

        with activate(ctx.numerics) as device:
            yield from train_and_score(runs, ctx, device)

    def report(self, records: Sequence[Record], out: Report) -> None:
        from assay.studies.sae.report import report

        report(records, out)


class Coded(NamedTuple):
    """The data, and the hash of its files: two files of one name are two data sets."""

    data: VectorData
    content: str | None


def coder_run(coded: Coded, coder: SparseCoder, *, seed: int, d_code: int, lr: float, recipe: Recipe) -> Run:
    """Make a run of the study `sae`, for any of its verbs. A coder that is fitted at once has no rate and no recipe."""
    fixed: dict[str, Any] = {"lr": lr, "recipe": recipe}
    if isinstance(coder, FittedCoder):
        fixed = {"lr": None, "recipe": None}
    return _study().cell(seed=seed, **coded._asdict(), coder=coder, d_code=d_code, **fixed)


@cache
def _study() -> Sae:
    """Cache a default study, since a plan makes a thousand runs."""
    return Sae()


def check_sizes(runs: Sequence[Run], folder: Path | None) -> None:
    """Raise where a coder, recipe or model cannot handle the data's sizes, as far as they are known before loading."""
    kinds = {canonical([run.options[key] for key in ("data", "coder", "d_code", "recipe")]): run for run in runs}
    for data in _data_of(runs):
        if folder is not None:
            folders(folder, remedy=data.remedy)  # is it there?
        data.check(folder)
    for run in kinds.values():
        _check_size(run)


def missing_data(runs: Sequence[Run], folder: Path | None) -> str:
    """The dry run's message about missing data: the runs fetch it, or say how to."""
    away = {what: data.remedy for data in _data_of(runs) for what in data.missing(folder)}
    remedies = " ".join(dict.fromkeys(away.values()))
    return f"not here yet, and not fetched by a dry run: {', '.join(away)}. {remedies}" if away else ""


def _data_of(runs: Sequence[Run]) -> list[VectorData]:
    found = {canonical(run.options["data"]): run.options["data"] for run in runs}
    return [VectorData.registry.load(data) for data in found.values()]


def _check_size(run: Run) -> None:
    from assay.studies.sae.fitting import Setting

    setting = Setting.of(run)
    if (shape := setting.data.shape()) is None:
        return
    for size in set(setting.recipe.sizes(shape[0])) if setting.recipe else {shape[0]}:
        setting.coder.check(shape[1], setting.d_code, size)


def look_in(folder: Path | None, data: VectorData) -> None:
    """Set the folder in which this process and its workers look for data files."""
    if folder is not None:
        folders(folder, remedy=data.remedy)  # is it there?
        os.environ[FOLDER] = HUB if is_hub(folder) else str(folder.resolve())
