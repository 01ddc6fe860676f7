"""Which sequence mixer learns which task in context, with how much carried state?"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from assay.core.convert import convert
from assay.core.run import Record, Run
from assay.core.study import Context, Outcome, Report, Study
from assay.metrics.size import parameters
from assay.models.sequence import SequenceModel, SequenceModule
from assay.nn.random import initialised_from, stream
from assay.studies import studies
from assay.studies.icl.scoring import score
from assay.tasks import tasks
from assay.tasks.base import Batch, Task
from assay.train.device import activate
from assay.train.recipe import Optimizer, Train, Trainer


@studies.register("icl")
@dataclass(frozen=True, kw_only=True)
class InContext(Study):
    """Which sequence mixer learns which task in context, with how much carried state?"""

    question: ClassVar[str] = "Which sequence mixer learns which task in context, with how much carried state?"
    presets: ClassVar = {
        "small": {
            "task": "mqar:vocab_size=256:input_seq_len=32:num_kv_pairs=4",
            "train": Train(micro_batch_size=128),
            "optimizer": Optimizer(lr=2e-3),
        },
        "spec": {},
    }

    task: Task = field(default_factory=lambda: tasks.parse("mqar"))
    """What is to be learned in context."""
    model: SequenceModel = field(default_factory=SequenceModel)
    train: Train = field(default_factory=Train)
    optimizer: Optimizer = field(default_factory=Optimizer)
    eval_size: int = 10_000
    """Held-out sequences per validation, and for the final score."""
    seeds: tuple[int, ...] = (2,)
    """Each seed is a new initialisation and new data."""

    def plan(self) -> list[Run]:
        parts = {name: getattr(self, name) for name in ("task", "model", "train", "optimizer", "eval_size")}
        return [self.cell(seed=seed, **parts) for seed in self.seeds]

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        with activate(ctx.numerics) as device:
            for run in runs:
                yield train_and_score(run, ctx, device)

    def report(self, records: Sequence[Record], out: Report) -> None:
        from assay.studies.icl.report import report

        report(records, out)


STEPS_TO = (0.9, 0.98)


def train_and_score(run: Run, ctx: Context, device: torch.device) -> Outcome:
    """One model: trained, validated on the way, scored at the end on sequences that validation never saw."""
    study = load(run.options)
    model = build(study, run.seed).to(device)
    trainer = Trainer(model, study.task, study.train, study.optimizer, seed=run.seed)
    checkpoint = ctx.checkpoint(run)
    curve: list[dict[str, Any]] = []
    if checkpoint and checkpoint.exists():
        curve = trainer.load(checkpoint)
    begin = time.perf_counter()
    for step in trainer.run():
        held_out = score_model(model, study, stream(run.seed, "validation", device=device))
        curve.append({"step": step, **{key: value for key, value in held_out.items() if key != "by_answer"}})
        ctx.progress(run, step, study.train.max_steps, **_headline(held_out))
        if not torch.isfinite(trainer.loss):
            return Outcome(run, {**held_out, "steps": step}, diverged=True)
        if checkpoint and step < study.train.max_steps:
            trainer.save(checkpoint, curve)
    seconds = time.perf_counter() - begin
    final = score_model(model, study, stream(run.seed, "test", device=device))
    tokens = study.train.max_steps * study.train.micro_batch_size * study.task.shape().length
    cost = {"tokens_per_second": tokens / seconds, "memory": _memory(device)}
    return Outcome(run, final | _sizes(study, model) | _milestones(curve) | {"curve": curve}, cost)


def load(options: Mapping[str, Any]) -> InContext:
    """The study of one run, from its JSON options."""
    hints = {"task": Task, "model": SequenceModel, "train": Train, "optimizer": Optimizer, "eval_size": int}
    return InContext(**{key: convert(hint, options[key], what=f"option '{key}'") for key, hint in hints.items()})


def build(study: InContext, seed: int) -> SequenceModule:
    with initialised_from(seed, "model"):
        return study.model.build(study.task.shape())


def score_model(model: SequenceModule, study: InContext, rng: torch.Generator) -> dict[str, Any]:
    def answer(batch: Batch) -> torch.Tensor:
        with torch.autocast(rng.device.type, torch.bfloat16, enabled=rng.device.type == "cuda"):
            return model(batch.inputs, batch.positions)

    model.eval()
    found = score(answer, study.task, size=study.eval_size, rng=rng)
    model.train()
    return found


def _sizes(study: InContext, model: SequenceModule) -> dict[str, Any]:
    length = study.task.shape().length
    tables = sum(p.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters())
    return {
        "params": parameters(model),
        "params_without_tables": parameters(model) - tables - parameters(model.head),
        "state_scalars": study.model.state_size(length),
    }


def _milestones(curve: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """The first validated step at which the held-out accuracy was there; None if it never was."""
    if not curve or "accuracy" not in curve[0]:
        return {}
    reached = {goal: [point["step"] for point in curve if point["accuracy"] >= goal] for goal in STEPS_TO}
    return {f"steps_to_{100 * goal:.0f}": steps[0] if steps else None for goal, steps in reached.items()}


def _headline(found: Mapping[str, Any]) -> dict[str, float]:
    return {key: found[key] for key in ("accuracy", "mse", "loss") if key in found}


def _memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else None
