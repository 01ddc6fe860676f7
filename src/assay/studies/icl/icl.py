"""Which sequence mixer learns which task in context, with how much carried state?"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from assay.core.convert import convert
from assay.core.errors import UserError
from assay.core.plugin import plugins_in
from assay.core.run import Record, Run, canonical
from assay.core.study import Context, Outcome, Report, Study
from assay.mixers import mixers
from assay.mixers.base import Mixer
from assay.models.sequence import SequenceModel
from assay.studies import studies
from assay.studies.icl.presets import PRESETS
from assay.studies.icl.references import score_references
from assay.studies.icl.report import report as write_report
from assay.studies.icl.scoring import MOST, largest
from assay.studies.icl.training import train_and_score
from assay.tasks import tasks
from assay.tasks.base import Task
from assay.train.device import activate
from assay.train.recipe import Optimizer, Train


@studies.register("icl")
@dataclass(frozen=True, kw_only=True)
class InContext(Study):
    """Which sequence mixer learns which task in context, with how much carried state?"""

    question: ClassVar[str] = "Which sequence mixer learns which task in context, with how much carried state?"
    autocast: ClassVar[bool] = True
    compiles: ClassVar[bool] = True
    presets: ClassVar = PRESETS
    compares: ClassVar[str] = "model.seq_mixer"
    for_cpu: ClassVar[tuple[str, ...]] = ("quick", "small", "demo")
    renamed: ClassVar[Mapping[str, str]] = {"task.eval_size": "eval_size"}

    task: Task = field(default_factory=lambda: tasks.parse("mqar"))
    """The task to learn in context."""
    model: SequenceModel = field(default_factory=SequenceModel)
    train: Train = field(default_factory=Train)
    optimizer: Optimizer = field(default_factory=Optimizer)
    eval_size: int = 10_000
    """Held-out sequences per validation, and for the final score."""
    seeds: tuple[int, ...] = (2,)
    """Each seed is a new initialisation and new data."""
    references_only: bool = False
    """Score the oracle and the plain predictors alone; train nothing."""

    def __post_init__(self) -> None:
        if not 1 <= self.eval_size <= MOST:
            raise UserError(f"eval_size={self.eval_size}: score at least one sequence, and at most {MOST:,}.")
        if self.train.curriculum and (len(self.task.parts()) < 2 or self.task.parts() != self.task.scored_parts()):
            raise UserError(
                f"train.curriculum={self.train.curriculum} needs a mixture of sizes that is scored on the sizes it is "
                f"trained on, and {self.task} is none: add min_kv_pairs=4 to mqar, or leave train.curriculum at 0."
            )
        if (self.train.curriculum or self.train.stop_at) and self.task.loss == "mse":
            raise UserError(
                f"train.curriculum and train.stop_at are accuracies, and {self.task} has none: leave them at 0."
            )

    def plan(self) -> list[Run]:
        """Plan a model per seed, and a run that scores the task's oracle and plain predictors on as many sequences."""
        self.task.require(self.task.in_context, "one answer per sequence: it is for encoders (assay expressivity).")
        asked: dict[str, Any] = {"task": self.task, "eval_size": self.eval_size}
        recipe: dict[str, Any] = {"model": self.model, "train": self.train, "optimizer": self.optimizer}
        trained = () if self.references_only else self.seeds
        return self.cells(trained, **asked, **recipe) + self.cells(self.seeds, **asked, model=None)

    def cohort(self, run: Run) -> Hashable:
        """Train models that differ only in seed and optimizer together, on a GPU."""
        if run.numerics.device != "cuda" or run.numerics.backend == "fla" or not _portable(run.options["model"]):
            return run.id  # no gain on a CPU, and foreign kernels have no axis for models
        return canonical({key: value for key, value in run.options.items() if key != "optimizer"})

    def check(self, runs: Sequence[Run]) -> None:
        for setting in {canonical([run.options["task"], run.options["model"]]): run.options for run in runs}.values():
            if setting["model"] is not None:
                convert(SequenceModel, setting["model"], what="model").check(tasks.load(setting["task"]).shape())

    def largest(self, run: Run) -> int:
        return largest(run)

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        with activate(ctx.numerics) as device:
            if runs[0].options["model"] is None:
                yield from (score_references(run, device) for run in runs)
            else:
                yield from train_and_score(runs, ctx, device)

    def report(self, records: Sequence[Record], out: Report) -> None:
        write_report(records, out)


def _portable(model: Mapping[str, Any] | None) -> bool:
    """Return whether the mixer, and every one inside it, can run many models at once."""
    parts = plugins_in(mixers.load(model["seq_mixer"])) if model else ()
    return all(part.portable for part in parts if isinstance(part, Mixer))
