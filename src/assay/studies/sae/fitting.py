"""Reads the settings of runs, loads the data they share, and scores trained coders, for `assay sae` and its verbs.

Models that are trained or scored together share the time it took."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float

from assay.core.convert import construct, option_types
from assay.core.run import Run, canonical
from assay.core.study import Outcome
from assay.sparse_coders.base import CoderModule, SparseCoder, TrainedCoder
from assay.studies.sae.scoring import codes, score
from assay.studies.sae.weights import WEIGHTS, encoded, saved_module
from assay.train.coder_bank import Recipe
from assay.vectors.base import VectorData, Vectors

__all__ = ["saved_module"]

Spent = Float[np.ndarray, "2"]
"""Wall and processor time, in seconds."""


@dataclass(frozen=True)
class Setting:
    """The options of a run, as objects."""

    data: VectorData
    coder: SparseCoder
    d_code: int
    lr: float | None
    recipe: Recipe | None
    """None, as is the rate, where the coder is fitted at once."""

    @classmethod
    def of(cls, run: Run) -> Self:
        return construct(cls, {key: run.options[key] for key in option_types(cls)}, what=f"run {run.id}")


def cohort_key(run: Run) -> str:
    """The options that runs of one cohort share: those of one bank, or, on a stream, those of one forward pass of the
    language model, whatever the coder and the module."""
    recipe, data = run.options["recipe"], run.options["data"]
    if recipe is None or not VectorData.registry[data["name"]].streams:
        return bank_key(run)
    shared = {key: value for key, value in data.items() if key != "hook"}
    return canonical({**run.options, "data": shared, "coder": None, "lr": None})


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


def stopwatch() -> Callable[[], Spent]:
    """Return a function that returns the time since it was last called, or made."""
    last = np.array([time.perf_counter(), time.process_time()])

    def lap() -> Spent:
        nonlocal last
        before, last = last, np.array([time.perf_counter(), time.process_time()])
        return last - before

    return lap


def outcomes(
    runs: Sequence[Run],
    modules: Sequence[CoderModule],
    data: Vectors,
    histories: Sequence[Mapping[str, Any]],
    spent: Spent,
    notes: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Outcome]:
    """Score models together and yield their outcomes; those that diverged have no score. `spent` is what training took
    of each, and `notes` are for the cost of its record."""
    lap = stopwatch()
    sound = [all(value.isfinite().all() for value in module.state_dict().values()) for module in modules]
    scores = score([module for module, is_sound in zip(modules, sound, strict=True) if is_sound], data)
    spent = spent + lap() / len(runs)

    def cost(scoring: Spent) -> dict[str, Any]:
        """Without `seconds` of its own a bank's first run would be charged for all."""
        seconds, cpu_seconds = (spent + scoring).tolist()
        return {"seconds": seconds, "cpu_seconds": cpu_seconds, **notes}

    for run, module, history, is_sound in zip(runs, modules, histories, sound, strict=True):
        lap()  # leaves out the time the caller spent on the last outcome
        if not is_sound:
            yield Outcome(run, {"history": history}, cost(np.zeros(2)), diverged="the weights")
            continue
        metrics = next(scores) | {"history": history}
        usage = torch.softmax(-codes(module, data.test.x), dim=1).mean(dim=0)
        kept = {WEIGHTS: encoded(module, usage, data.preparation)}
        yield Outcome(run, metrics, cost(lap()), kept)
