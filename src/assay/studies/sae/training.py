"""Trains or fits the coders of one cohort, and hands them over to be scored, for `assay sae` and its verbs.

On rows in memory a cohort is one bank, of one kind of coder. On a stream it is a bank for each kind of coder and each
module of the language model, which take turns on every buffer: the forward pass is made once for all.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch

from assay.core.run import Run
from assay.core.study import Context, Outcome
from assay.data.row_stream import RowStream
from assay.metrics import sparsity
from assay.sparse_coders.base import FittedCoder, TrainedCoder
from assay.studies.sae import fitting
from assay.studies.sae.fitting import Setting, Spent, bank_key, stopwatch
from assay.studies.sae.scoring import codes, together
from assay.studies.sae.spec import metrics as spec
from assay.train.checkpoint import Checkpoint, Keeper, resumed, unfinished
from assay.train.coder_bank import CoderBank, EpochTerms, Recipe, StepRecipe, rectangles
from assay.vectors.base import VectorData, Vectors
from assay.vectors.stream import Stream

MESSAGES = 20
"""Progress messages per run."""
COUNT_EVERY = 10
"""Epochs between two counts of dead and redundant units."""
POINTS, JUDGED = 50, 2**13
"""Most points of a learning curve, and validation rows that a point is measured on."""


@dataclass
class Member:
    """A bank, its runs, the data they are scored on, and the history of each."""

    runs: Sequence[Run]
    data: Vectors
    bank: CoderBank
    histories: list[dict[str, Any]] = field(default_factory=list)

    def note(self, epoch: EpochTerms) -> None:
        for place, history in enumerate(self.histories):
            for name, values in epoch.terms.items():
                history.setdefault("train_loss" if name == "total" else name, []).append(values[place])

    @torch.no_grad()
    def count_units(self) -> None:
        """Count dead and redundant units on test rows, as the spec does."""
        for place, history in enumerate(self.histories):
            a = codes(self.bank.model(place), self.data.test.x)
            _append(history, dead_units=spec.dead_units(a), redundancy=spec.redundancy_score(a))

    @torch.no_grad()
    def measure(self, steps: int) -> None:
        """Add a point to the learning curves: after so many steps, on validation rows, by the coder's own decoder."""
        x = (self.data.validation if len(self.data.validation) else self.data.test).x[:JUDGED]
        for place, history in enumerate(self.histories):
            model = self.bank.model(place)
            z = codes(model, x)
            _append(history, steps=steps, curve_l0=sparsity.l0(z), curve_dead=sparsity.dead(z) / model.d_code)
            if model.has_decoder:
                _append(history, curve_fvu=sparsity.fraction_unexplained(x, model.decode(z[None])[0]))


def _append(history: dict[str, Any], **values: float) -> None:
    for name, value in values.items():
        history.setdefault(name, []).append(value)


def train_and_score(runs: Sequence[Run], ctx: Context, device: torch.device) -> Iterator[Outcome]:
    lap = stopwatch()
    data = {source: fitting.load(source, device) for source in {Setting.of(run).data for run in runs}}
    loading = lap() / len(runs)
    if isinstance(Setting.of(runs[0]).coder, FittedCoder):
        for run in runs:
            setting, lap = Setting.of(run), stopwatch()
            own = data[setting.data]
            setting.coder.check(own.d_in, setting.d_code, len(own.train))
            module = setting.coder.fit(own.train.x, setting.d_code, run.seed)  # type: ignore[attr-defined]
            yield from fitting.outcomes([run], [module], own, [{}], lap() + loading)
        return
    for some, saved in unfinished(runs, ctx, whole=True):
        yield from _train(some, ctx, data, loading, saved)


def _train(
    runs: Sequence[Run], ctx: Context, data: Mapping[VectorData, Vectors], loading: Spent, saved: Checkpoint | None
) -> Iterator[Outcome]:
    first, lap, spent, done = Setting.of(runs[0]), stopwatch(), np.zeros(2), 0
    recipe, source = first.recipe, _stream(first, data)
    assert recipe is not None
    rows = len(next(iter(data.values())).train) if source is None else first.data.buffer  # type: ignore[attr-defined]

    def take_up(fresh: list[Member], saved: Checkpoint) -> None:
        nonlocal spent, done
        for member, state in zip(fresh, saved.state["banks"], strict=True):
            member.bank.restore(state)
            member.histories = [dict(saved.runs[run.id]) for run in member.runs]
        spent, done = np.array(saved.state["spent"], dtype=float), saved.done

    def checkpoint() -> Checkpoint:
        told = {
            run.id: history for member in members for run, history in zip(member.runs, member.histories, strict=True)
        }
        state = {"banks": [member.bank.state() for member in members], "spent": spent.tolist()}
        return Checkpoint(done, state, {run.id: told[run.id] for run in runs})

    members, keeper = resumed(saved, lambda: _members(runs, data, source), take_up), Keeper(ctx)
    passes = recipe.passes(rows)
    epochs = [member.bank.run() for member in members]
    while done < passes:
        with _products(recipe):
            if source is not None:
                source.fill(done)
            finished = [next(own) for own in epochs]
        done += 1
        spent = spent + lap()
        _follow(members, finished, passes, recipe)
        if done % max(1, passes // MESSAGES) == 0:
            _tell(ctx, members, finished, passes, _speed(source, done, spent))
        if done < passes:
            keeper.keep(runs[-1], checkpoint)
    training = (spent + lap()) / len(runs)
    seconds, cpu_seconds = training.tolist()
    notes = {"train_seconds": seconds, "train_cpu_seconds": cpu_seconds, "trained_together": len(runs)}
    if source is not None:
        notes |= {**source.read(passes), **_speed(source, done, spent)}
    yield from _scored(members, training + loading, notes)


@contextmanager
def _products(recipe: Recipe) -> Iterator[None]:
    """Compute products as precisely as the recipe says, where it does."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(getattr(recipe, "matmul", before))
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _stream(setting: Setting, data: Mapping[VectorData, Vectors]) -> RowStream | None:
    """The stream of all modules that the cohort's data name, or None where the rows are in memory."""
    if not isinstance(setting.data, Stream):
        return None
    return setting.data.rows(
        {own.hook: found.preparation for own, found in data.items() if isinstance(own, Stream) and found.preparation}
    )


def _members(runs: Sequence[Run], data: Mapping[VectorData, Vectors], source: RowStream | None) -> list[Member]:
    """A bank for each kind of coder, module, and number of models that a seed has."""
    found = []
    for _, kind in groupby(sorted(runs, key=bank_key), key=bank_key):
        same = list(kind)
        for places in rectangles([run.seed for run in same]):
            own = [same[place] for place in places]
            settings = [Setting.of(run) for run in own]
            first = settings[0]
            coders = [setting.coder for setting in settings if isinstance(setting.coder, TrainedCoder)]
            rates = [float(setting.lr or 0) for setting in settings]
            vectors = data[first.data]
            x = vectors.train.x if source is None else source.buffers[first.data.hook]  # type: ignore[attr-defined]
            assert first.recipe is not None
            bank = CoderBank(
                coders, [run.seed for run in own], rates, x, first.d_code, first.recipe, streamed=source is not None
            )
            found.append(Member(own, vectors, bank, [{} for _ in own]))
    return found


def _follow(members: Sequence[Member], finished: Sequence[EpochTerms], passes: int, recipe: Recipe) -> None:
    """Write the histories: loss terms each epoch, and counts of units or, where steps are counted, learning curves."""
    for member, epoch in zip(members, finished, strict=True):
        member.note(epoch)
        if isinstance(recipe, StepRecipe):
            if epoch.number % -(-passes // POINTS) == 0 or epoch.number == passes:
                member.measure(min(recipe.steps, epoch.number * len(recipe.sizes(len(member.bank.data)))))
        elif epoch.number % COUNT_EVERY == 0:
            member.count_units()


def _tell(
    ctx: Context, members: Sequence[Member], finished: Sequence[EpochTerms], passes: int, speed: Mapping[str, float]
) -> None:
    for member, epoch in zip(members, finished, strict=True):
        for place, run in enumerate(member.runs):
            ctx.progress(run, epoch.number, passes, loss=epoch.terms["total"][place], **speed)


def _speed(source: RowStream | None, done: int, spent: Spent) -> dict[str, float]:
    """Tokens that the language model read per second of training, all coders included."""
    seconds = float(spent[0])
    return {} if source is None or not seconds else {"tokens_per_s": done * source.tokens / seconds}


def _scored(members: list[Member], spent: Spent, notes: Mapping[str, Any]) -> Iterator[Outcome]:
    while members:
        member = members.pop(0)
        models = [member.bank.model(place) for place in range(len(member.runs))]
        member.bank.close()  # graphs of a step hold as much memory as the step
        size = together(member.data, models[0].d_code)
        for begins in range(0, len(models), size):
            some = slice(begins, begins + size)
            scored = member.runs[some], models[some], member.data, member.histories[some]
            yield from fitting.outcomes(*scored, spent, notes)
