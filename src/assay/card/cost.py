"""This module measures here what a mixer costs: tokens per second trained and decoded, beside attention, and how long a
card of it will take. Never stored or shipped: a speed belongs to the machine it was measured on."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from assay.api import configure
from assay.card.battery import Trial
from assay.card.protocol import ANCHORS, KEPT, SCREENING
from assay.card.question import Question, Tier
from assay.core.run import Numerics
from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.models.sequence import SequenceModule
from assay.nn.capture import WARM_UP_STEPS
from assay.nn.random import initialised_from, stream
from assay.studies import studies
from assay.tasks.base import Task
from assay.train.bank import Bank
from assay.train.device import activate
from assay.train.recipe import Optimizer, Train
from assay.train.trainer import SingleTrainer, Trainer

WIDTH, BATCH, LENGTH = 64, 8, 256
LENGTHS = (64, 256, 1024)
"""Lengths at which training is timed, with as many tokens in a batch as at LENGTH."""
DECODED = 64
"""Tokens that are decoded, after each other, from a fresh state."""
REPEATS = 3


@dataclass(frozen=True)
class Speed:
    """Tokens per second of one layer of width 64: trained (forward and backward, 8 sequences of 256), and decoded."""

    trained: float
    decoded: float
    by_length: Mapping[int, float] = field(default_factory=dict)
    """Trained, by the length of the sequences, where it was asked for."""


def speed(mixer: str, device: torch.device, *, by_length: bool = False) -> Speed:
    """Time one layer, the best of a few repetitions: other programs only ever slow it down."""
    layer, x = _layer(mixer, BATCH, LENGTH, device)

    @torch.no_grad()
    def decode() -> None:
        state = layer.init_state(1)
        for token in x[:1, :DECODED].unbind(1):
            _, state = layer.step(token, state)

    trained, tokens = _trained(layer, x, device), BATCH * LENGTH
    lengths = (length for length in LENGTHS if length <= tokens) if by_length else ()
    longer = {
        length: trained if length == LENGTH else _trained(*_layer(mixer, tokens // length, length, device), device)
        for length in lengths
    }
    return Speed(trained, DECODED / _seconds(decode, device), longer)


def _layer(mixer: str, batch: int, length: int, device: torch.device) -> tuple[MixerModule, Tensor]:
    with initialised_from(0, "speed"):
        layer = mixers.parse(mixer).build(WIDTH, length).to(device)
    return layer, torch.randn(batch, length, WIDTH, generator=stream(0, "speed", device=device), device=device)


def _trained(layer: MixerModule, x: Tensor, device: torch.device) -> float:
    """Return the tokens per second of a forward and a backward pass."""

    def train() -> None:
        layer.zero_grad()
        layer(x).square().mean().backward()

    return x.shape[0] * x.shape[1] / _seconds(train, device)


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    best = float("inf")
    for _ in range(REPEATS + 1):  # the first warms up
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


TIMED = 4
"""Training steps that are timed for an estimate, of every part of a mixture, after those that warm up."""


@dataclass(frozen=True)
class Expected:
    """Seconds of one core, or of one GPU, for the questions of a mixer."""

    least: float
    """Every question answered by its first rates and seeds, at the full number of steps."""
    most: float
    """Every rate trained in full, one more beyond the grid, and all again for twice as long."""


def expected(
    tier: Tier,
    question: Question,
    mixer: str,
    device: torch.device,
    known: Sequence[Trial] = (),
    missing: Sequence[Trial] = (),
) -> Expected:
    """Estimate from a few training steps what a question will take, but for what is `known`; `missing` are the trials
    that will surely be computed."""
    per_step = _seconds_per_step(tier, question, mixer, device, together=device.type == "cuda")
    rates, seeds = len(question.rates), len(tier.seeds_of(mixer))
    least = rates / SCREENING + KEPT + seeds
    most = rates / SCREENING + rates + 1 + seeds + (2 * seeds if question.goal is not None else 0)
    done, sure = (sum(trial.steps for trial in trials) for trials in (known, missing))
    left = (max(sure, runs * question.steps - done) for runs in (least, most))
    return Expected(*(steps * per_step for steps in left))


def seconds(tier: Tier, question: Question, mixer: str, device: torch.device, trials: Sequence[Trial]) -> float:
    """Estimate what some runs of a mixer will take."""
    per_step = _seconds_per_step(tier, question, mixer, device, together=device.type == "cuda")
    return per_step * sum(trial.steps for trial in trials)


def _seconds_per_step(tier: Tier, question: Question, mixer: str, device: torch.device, *, together: bool) -> float:
    """Time a step of one model, or of as many `together` as the tier has seeds, divided by their number: a GPU trains
    them as one program."""
    from assay.studies.icl.icl import InContext
    from assay.studies.icl.training import build

    given = question.options(mixer, rate=question.rates[0], seed=0, steps=1)
    given["train"] |= {"validate_every": 1, "curriculum": 0.0, "stop_at": 0.0}
    study = configure(studies["icl"], None, given)
    assert isinstance(study, InContext)
    parts = len(study.task.parts())
    before = 2 * (WARM_UP_STEPS + parts) if together else 1  # each part of a mixture is captured as a graph of its own
    train = replace(study.train, max_steps=before + parts * TIMED)
    seeds = tier.seeds if together else tier.seeds[:1]
    models = [build(study.model, study.task, seed).to(device) for seed in seeds]
    times = []
    for _ in _trainer(models, study.task, train, study.optimizer, seeds).run():
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter())
    return (times[-1] - times[before - 1]) / (parts * TIMED) / len(seeds)


def _trainer(
    models: Sequence[SequenceModule], task: Task, train: Train, optimizer: Optimizer, seeds: Sequence[int]
) -> Trainer:
    if len(models) == 1:
        return SingleTrainer(models[0], task, train, optimizer, seed=seeds[0])
    return Bank(models, task, train, [optimizer for _ in models], seeds=seeds)


def main(device: str, backend: str, *words: str) -> None:
    """Time some mixers for the kernels that are then in Triton's cache: `python -m assay.card.cost cuda triton kda`."""
    with activate(Numerics(device=device, backend=backend)) as place:
        for word in words:
            with suppress(Exception):
                speed(word, place, by_length=word in ANCHORS)


if __name__ == "__main__":
    main(*sys.argv[1:])
