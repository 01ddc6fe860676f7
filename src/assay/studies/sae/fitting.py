"""Trains or fits the coders of one cohort and scores them, for `assay sae` and its verbs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import torch

from assay.core.convert import construct, option_types
from assay.core.run import Run, canonical
from assay.core.study import Context, Outcome
from assay.sparse_coders.base import CoderModule, FittedCoder, SparseCoder, TrainedCoder
from assay.studies.sae.clock import Spent, Trained, stopwatch
from assay.studies.sae.scoring import codes, score, together
from assay.studies.sae.spec import metrics as spec
from assay.studies.sae.weights import WEIGHTS, encoded, saved_module, weights
from assay.train.checkpoint import Checkpoint, Keeper, resumed, unfinished
from assay.train.coder_bank import CoderBank, CoderRecipe, rectangles
from assay.vectors.base import VectorData, Vectors

__all__ = ["WEIGHTS", "saved_module", "weights"]
MESSAGES = 20
"""Progress messages per run."""
COUNT_EVERY = 10
"""Epochs between two counts of dead and redundant units."""


@dataclass(frozen=True)
class Setting:
    """The options of a run, as objects."""

    data: VectorData
    coder: SparseCoder
    d_code: int
    lr: float | None
    recipe: CoderRecipe | None
    """None, as is the rate, where the coder is fitted at once."""

    @classmethod
    def of(cls, run: Run) -> Self:
        return construct(cls, {key: run.options[key] for key in option_types(cls)}, what=f"run {run.id}")


def bank_key(run: Run) -> str:
    """The options that runs of one bank share: all but the seed, the rate, and the coder's columns."""
    coder = SparseCoder.registry[run.options["coder"]["name"]]
    if not issubclass(coder, TrainedCoder):
        return run.id
    fixed = {key: value for key, value in run.options["coder"].items() if key not in coder.columns}
    return canonical({**run.options, "coder": fixed, "lr": None})


@lru_cache(maxsize=1)
def _loaded(spec_text: str, content: str | None, device: str) -> Vectors:
    data: VectorData = VectorData.registry.parse(spec_text)
    found = data.load_with(device)
    train, validation, test = (part.to(device) for part in (found.train, found.validation, found.test))
    dictionary = None if found.dictionary is None else found.dictionary.to(device)
    return replace(found, train=train, validation=validation, test=test, dictionary=dictionary)


def load(data: VectorData, device: torch.device) -> Vectors:
    """Load data to the device; the last set is cached until its files change, since cohorts share it."""
    return _loaded(data.label, data.fingerprint(), device.type)


def train_and_score(runs: Sequence[Run], ctx: Context, device: torch.device) -> Iterator[Outcome]:
    first, lap = Setting.of(runs[0]), stopwatch()
    data = load(first.data, device)
    loading = lap().share(len(runs))
    if isinstance(first.coder, FittedCoder):
        for run in runs:
            setting, lap = Setting.of(run), stopwatch()
            setting.coder.check(data.d_in, setting.d_code, len(data.train))
            module = setting.coder.fit(data.train.x, setting.d_code, run.seed)  # type: ignore[attr-defined]
            yield from _outcomes([run], [module], data, [{}], Trained(lap() + loading))
        return
    for places in rectangles([run.seed for run in runs]):
        for some, saved in unfinished([runs[place] for place in places], ctx, whole=True):
            yield from _train(some, ctx, data, loading, saved)


def _train(
    runs: Sequence[Run], ctx: Context, data: Vectors, loading: Spent, saved: Checkpoint | None
) -> Iterator[Outcome]:
    settings = [Setting.of(run) for run in runs]
    recipe, coders = settings[0].recipe, [setting.coder for setting in settings]
    assert recipe is not None
    rates = [float(setting.lr or 0) for setting in settings]
    lap = stopwatch()
    seeds = [run.seed for run in runs]
    histories: list[dict[str, list[Any]]] = [{} for _ in runs]
    spent = Spent()

    def start() -> CoderBank:
        return CoderBank(coders, seeds, rates, data.train.x, settings[0].d_code, recipe)  # type: ignore[arg-type]

    def take_up(fresh: CoderBank, saved: Checkpoint) -> None:
        nonlocal histories, spent
        fresh.restore(saved.state["bank"])
        seconds, cpu_seconds = saved.state["spent"]
        histories = [dict(saved.runs[run.id]) for run in runs]
        spent = Spent(float(seconds), float(cpu_seconds))

    def checkpoint() -> Checkpoint:
        state = {"bank": bank.state(), "spent": [spent.seconds, spent.cpu_seconds]}
        return Checkpoint(bank.epoch, state, {run.id: history for run, history in zip(runs, histories, strict=True)})

    bank, keeper = resumed(saved, start, take_up), Keeper(ctx)
    every = max(1, recipe.epochs // MESSAGES)
    for epoch in bank.run():
        spent += lap()
        _note(histories, epoch.terms)
        if epoch.number % COUNT_EVERY == 0:
            _count_units(bank, histories, data)
        if epoch.number % every == 0:
            for place, run in enumerate(runs):
                ctx.progress(run, epoch.number, recipe.epochs, loss=epoch.terms["total"][place])
        if epoch.number < recipe.epochs:
            keeper.keep(runs[-1], checkpoint)
    training = (spent + lap()).share(len(runs))
    notes = {"train_seconds": training.seconds, "train_cpu_seconds": training.cpu_seconds}
    trained = Trained(training + loading, {**notes, "trained_together": len(runs)})
    size = together(data, settings[0].d_code)
    for begins in range(0, len(runs), size):
        some = range(len(runs))[begins : begins + size]
        models, told = [bank.model(place) for place in some], [histories[place] for place in some]
        yield from _outcomes([runs[place] for place in some], models, data, told, trained)


def _note(histories: Sequence[dict[str, list[Any]]], terms: dict[str, list[float]]) -> None:
    for place, history in enumerate(histories):
        for name, values in terms.items():
            history.setdefault("train_loss" if name == "total" else name, []).append(values[place])


@torch.no_grad()
def _count_units(bank: CoderBank, histories: Sequence[dict[str, list[Any]]], data: Vectors) -> None:
    """Count dead and redundant units on test rows, as the spec does."""
    for place, history in enumerate(histories):
        a = codes(bank.model(place), data.test.x)
        history.setdefault("dead_units", []).append(spec.dead_units(a))
        history.setdefault("redundancy", []).append(spec.redundancy_score(a))


def _outcomes(
    runs: Sequence[Run],
    modules: Sequence[CoderModule],
    data: Vectors,
    histories: Sequence[dict[str, list[Any]]],
    trained: Trained,
) -> Iterator[Outcome]:
    """Score models together and yield their outcomes; those that diverged have no score."""
    lap = stopwatch()
    sound = [all(value.isfinite().all() for value in module.state_dict().values()) for module in modules]
    scores = score([module for module, is_sound in zip(modules, sound, strict=True) if is_sound], data)
    fitting = lap().share(len(runs))
    for run, module, history, is_sound in zip(runs, modules, histories, sound, strict=True):
        lap()  # leaves out the time the caller spent on the last outcome
        if not is_sound:
            yield Outcome(run, {"history": history}, trained.cost(fitting), diverged=True)
            continue
        metrics = next(scores) | {"history": history}
        usage = torch.softmax(-codes(module, data.test.x), dim=1).mean(dim=0)
        kept = {WEIGHTS: encoded(module, usage, data.preparation)}
        yield Outcome(run, metrics, trained.cost(fitting + lap()), kept)
