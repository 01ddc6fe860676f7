"""Trains the models of one cohort, validates them on the way, and scores them on sequences validation never saw."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import torch
from torch import nn

from assay.core.convert import construct, option_types
from assay.core.run import Run
from assay.core.study import Context, Outcome
from assay.metrics.size import flops_per_token, parameters
from assay.models.sequence import SequenceModel, SequenceModule
from assay.nn.random import initialised_from, stream
from assay.studies.icl.k90 import LEARNED
from assay.studies.icl.scoring import TOKENS, by_part, score
from assay.tasks.base import Task
from assay.train.bank import Bank
from assay.train.checkpoint import Checkpoint, Keeper, resumed, unfinished
from assay.train.recipe import Optimizer, Train
from assay.train.trainer import SingleTrainer, Trainer

GOALS = (0.9, 0.98)
"""Accuracies whose first step above them is recorded."""


SIGN = 2.0
"""Seconds between two messages that training goes on: on a CPU a validation of the default run is minutes away."""


@dataclass(frozen=True)
class Setting:
    """The options of a run, as objects."""

    task: Task
    model: SequenceModel
    train: Train
    optimizer: Optimizer
    eval_size: int

    @classmethod
    def of(cls, run: Run) -> Self:
        return construct(cls, {key: run.options[key] for key in option_types(cls)}, what=f"run {run.id}")


@dataclass
class RunProgress:
    """The state of one run during training."""

    run: Run
    curve: list[dict[str, Any]] = field(default_factory=list)
    seconds_to: dict[str, float] = field(default_factory=dict)
    diverged: dict[str, Any] = field(default_factory=dict)
    """What was found when its loss was no number, and the step."""


def train_and_score(runs: Sequence[Run], ctx: Context, device: torch.device) -> Iterator[Outcome]:
    """Train and score runs that differ in seed and optimizer, resuming from their checkpoint."""
    for together, saved in unfinished(runs, ctx, whole=True):
        yield from _train_and_score(together, ctx, device, saved)


def _train_and_score(
    runs: Sequence[Run], ctx: Context, device: torch.device, saved: Checkpoint | None
) -> Iterator[Outcome]:
    """Train and score; a run whose loss is not finite stops there while the others continue. It is stored with them: if
    it were stored before, a later process would train fewer runs, and could not resume from their checkpoint."""
    settings = [Setting.of(run) for run in runs]
    shared = settings[0]
    begin = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    progress = [RunProgress(run) for run in runs]

    def take_up(fresh: Trainer, saved: Checkpoint) -> None:
        nonlocal begin
        fresh.restore(saved.state["trainer"])
        taken = [RunProgress(run, **saved.runs[run.id]) for run in runs]
        begin -= float(saved.state["seconds"])
        progress[:] = taken

    trainer = resumed(saved, lambda: _trainer(runs, settings, ctx, device), take_up)
    trainer.watch = _signs_of_life(trainer, runs, ctx)
    keeper = Keeper(ctx)
    for step in trainer.run():
        found = _scored(trainer, shared.task, shared.eval_size, runs, "validation")
        finite = trainer.losses.isfinite().tolist()
        for index in trainer.going:
            _note(progress[index], step, found[index], ctx, shared, time.perf_counter() - begin)
            if not finite[index]:
                progress[index].diverged = {**found[index], "steps": step}
                trainer.stop(index)
        if shared.train.curriculum or shared.train.stop_at:
            trainer.validated([by_part(each) for each in found])
        if trainer.going and step < shared.train.max_steps:
            keeper.keep(runs[-1], lambda: _checkpoint(trainer, progress, time.perf_counter() - begin))
    for each in progress:
        if each.diverged:
            yield Outcome(each.run, each.diverged, diverged=f"the training loss at step {each.diverged['steps']}")
    going = {index: each for index, each in enumerate(progress) if not each.diverged}
    if going:
        yield from _outcomes(trainer, going, runs, shared, time.perf_counter() - begin)


def _signs_of_life(trainer: Trainer, runs: Sequence[Run], ctx: Context) -> Callable[[int], None]:
    """Return what tells, between validations, how many steps are done."""
    due = 0.0

    def watch(step: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + SIGN
            for index in trainer.going:
                ctx.progress(runs[index], step, trainer.train.max_steps)

    return watch


def _checkpoint(trainer: Trainer, progress: Iterable[RunProgress], seconds: float) -> Checkpoint:
    kept = {each.run.id: {key: value for key, value in vars(each).items() if key != "run"} for each in progress}
    return Checkpoint(trainer.step, {"trainer": trainer.state(), "seconds": seconds}, kept)


def build(model: SequenceModel, task: Task, seed: int) -> SequenceModule:
    longest = _longest(model, task)
    with initialised_from(seed, "model"):
        return model.build(task.shape(), longest)


@lru_cache(maxsize=256)
def _longest(model: SequenceModel, task: Task) -> int:
    """Return the length to build mixers for: the task's, or the longest at which they are scored where they cannot go
    beyond what they were built for. Others stay as they are, since hyena's filter is stretched over that length."""
    length = task.shape().length
    scored = max((each.shape().length for each in _versions(model, task).values()), default=length)
    if scored <= length or not model.seq_mixer.portable:
        return length
    with torch.no_grad(), initialised_from(0, "length"):
        mixer = model.seq_mixer.build(model.model_dim, length).eval()
        try:
            mixer(torch.zeros(1, scored, model.model_dim))
        except Exception:  # noqa: BLE001 - a table or a mask that is too short may fail in any way
            return scored
    return length


def _versions(model: SequenceModel, task: Task) -> dict[int, Task]:
    """Return the longer versions of a task on which a model is scored; none for a model with a table of positions."""
    return {} if model.has_table else task.longer()


def _trainer(runs: Sequence[Run], settings: Sequence[Setting], ctx: Context, device: torch.device) -> Trainer:
    shared = settings[0]
    compile = ctx.numerics.compile
    seeds = [run.seed for run in runs]
    start = {seed: build(shared.model, shared.task, seed).to(device) for seed in dict.fromkeys(seeds)}
    if len(runs) == 1:
        (seed,) = seeds
        return SingleTrainer(start[seed], shared.task, shared.train, shared.optimizer, seed=seed, compile=compile)
    optimizers = [setting.optimizer for setting in settings]
    models = [start[seed] for seed in seeds]
    return Bank(models, shared.task, shared.train, optimizers, seeds=seeds, compile=compile)


def _scored(trainer: Trainer, task: Task, size: int, runs: Sequence[Run], split: str) -> list[dict[str, Any]]:
    streams = {seed: stream(seed, split, device=trainer.device) for seed in {run.seed for run in runs}}
    held_out = task.held_out("validation" if split == "validation" else "test")
    return score(trainer.answers, held_out, size=size, rngs=[streams[run.seed] for run in runs])


def _note(
    progress: RunProgress, step: int, found: Mapping[str, Any], ctx: Context, shared: Setting, seconds: float
) -> None:
    plain = {key: value for key, value in found.items() if not isinstance(value, list | dict)}
    if "by_size" in found:
        plain["smallest"] = by_part(found)[0]
    progress.curve.append({"step": step, **plain})
    shown = {key: value for key, value in plain.items() if key in ("accuracy", "mse", "bits_per_byte", "loss")}
    ctx.progress(progress.run, step, shared.train.max_steps, **shown)
    for goal in GOALS:
        if found.get("accuracy", 0) >= goal:
            progress.seconds_to.setdefault(f"seconds_to_{100 * goal:.0f}", seconds)


def _outcomes(
    trainer: Trainer, going: Mapping[int, RunProgress], runs: Sequence[Run], shared: Setting, seconds: float
) -> Iterator[Outcome]:
    final = _scored(trainer, shared.task, shared.eval_size, runs, "test")
    longer = _longer(trainer, shared, runs)
    other = shared.task.unseen()
    unseen = _scored(trainer, other, shared.eval_size, runs, "unseen") if other else None
    sizes = _sizes(shared.model, shared.task)
    memory = torch.cuda.max_memory_allocated() if trainer.device.type == "cuda" else None
    # Models that were trained together share the time and the memory.
    cost = {"seconds": seconds / len(runs), "tokens_per_second": sum(trainer.tokens) / seconds, "memory": memory}
    cost["trained_together"] = len(runs)
    for index, progress in going.items():
        metrics = final[index] | longer[index] | sizes | _milestones(progress.curve) | {"curve": progress.curve}
        if unseen:
            metrics["unseen_accuracy"] = unseen[index]["accuracy"]
        if (stopped := trainer.stopped_at[index]) is not None:
            metrics["stopped_at"] = stopped
        yield Outcome(runs[index], metrics, cost | {"tokens": trainer.tokens[index]} | progress.seconds_to)


def _longer(trainer: Trainer, shared: Setting, runs: Sequence[Run]) -> list[dict[str, dict[str, float]]]:
    """Score accuracy at other lengths, one draw each; empty for a model with a table of positions."""
    versions = _versions(shared.model, shared.task)
    if not versions:
        return [{} for _ in runs]
    found = {}
    for length, task in versions.items():
        size = _size(length, shared.eval_size)
        found[length] = _scored(trainer, task, size, runs, f"length {length}")
    return [{"by_length": {str(n): scores[i]["accuracy"] for n, scores in found.items()}} for i in range(len(runs))]


def _size(length: int, eval_size: int) -> int:
    return min(eval_size, max(1, TOKENS // length))


def scored_on(model: SequenceModel, task: Task, eval_size: int) -> list[tuple[Task, int]]:
    """Return the tasks that a model is scored on when it is trained, each with the number of sequences: its own first,
    on as many as at a validation."""
    own, unseen = [(task.held_out("test"), eval_size)], task.unseen()
    longer = [(each, _size(length, eval_size)) for length, each in _versions(model, task).items()]
    return [*own, *longer, *([(unseen, eval_size)] if unseen else [])]


@lru_cache(maxsize=64)
def _sizes(options: SequenceModel, task: Task) -> dict[str, Any]:
    """Measure a model once for all rates and seeds: counting its operations takes longer than a training step."""
    length, width, model = task.shape().length, options.model_dim, build(options, task, 0)
    answers = task.sample(1, stream(0, "shape")).targets.shape[1]
    head = 2 * width * model.outputs * answers / length
    return {
        "params": parameters(model),
        "layer_params": parameters(model.layers),
        "state_scalars": options.state_size(length),
        "flops_per_token": flops_per_token(nn.Sequential(*model.layers), length, width) + head,
    }


def _milestones(curve: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """Find the first validated step at which each goal was reached; None if it never was."""
    if not curve or "accuracy" not in curve[0]:
        return {}
    found = {f"steps_to_{100 * goal:.0f}": _reached(curve, "accuracy", goal) for goal in GOALS}
    return found | ({"left_plateau": _reached(curve, "smallest", LEARNED)} if "smallest" in curve[0] else {})


def _reached(curve: Sequence[Mapping[str, Any]], metric: str, goal: float) -> int | None:
    return next((point["step"] for point in curve if point[metric] >= goal), None)
