"""This module measures here what a mixer costs: tokens per second trained and decoded, what is kept for the backward
pass, beside attention, and how long a card of it will take. Never stored or shipped: a speed belongs to the machine it
was measured on."""

import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.api import configure
from assay.card.battery import Trial
from assay.card.protocol import ANCHORS, KEPT, SCREENING
from assay.card.question import Question, Tier
from assay.core.run import Numerics
from assay.metrics.intervals import Interval
from assay.mixers import mixers
from assay.mixers.base import MixerModule, replays
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
REPEATS = 4
"""Rounds in which every mixer is timed once: what else the machine does then slows all of them."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second of one layer of width 64, the median over rounds: trained (forward and backward, 8 sequences of
    256), and decoded."""

    trained: float
    decoded: float | None
    """None: the mixer has no `step`, and nobody would decode by running over all tokens for each."""
    by_length: Mapping[int, float] = field(default_factory=dict)
    """Trained, by the length of the sequences, where it was asked for."""
    kept: Mapping[int, float] = field(default_factory=dict)
    """Bytes per token that the layer keeps for the backward pass, by length, where it was asked for."""
    rounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Both speeds round by round, by their names."""

    def ratio(self, other: "Speed", way: str) -> Interval:
        """Return how many times as fast as another, with the least and the most of all rounds."""
        found = [mine / its for mine, its in zip(self.rounds.get(way, ()), other.rounds.get(way, ()), strict=True)]
        whole = getattr(self, way) / getattr(other, way)
        return Interval(median(found), min(found), max(found), len(found)) if found else Interval(whole, None, None, 1)


def speeds(words: Iterable[str], device: torch.device, *, by_length: Collection[str] = ()) -> dict[str, Speed]:
    """Time one layer of each mixer, all of them in every round; `by_length` are those that are also timed at other
    lengths, and whose memory is counted."""
    tokens = BATCH * LENGTH
    runs, longer = _timed(words, device, by_length=by_length)
    took = _seconds(runs, device)

    def rates(word: str, way: Any) -> list[float]:
        return [(DECODED if way == "decoded" else tokens) / seconds for seconds in took[word, way]]

    found = {}
    for word in dict.fromkeys(word for word, _ in runs):
        rounds = {way: rates(word, way) for way in ("trained", "decoded") if (word, way) in took}
        own = [length for of, length in longer if of == word]
        at = {length: median(rates(word, "trained" if length == LENGTH else length)) for length in own}
        kept = {length: kept_bytes(*longer[word, length]) for length in own}
        decoded = median(rounds["decoded"]) if "decoded" in rounds else None
        found[word] = Speed(median(rounds["trained"]), decoded, at, kept, rounds)
    return found


Layer = tuple[MixerModule, Tensor]
"""With what it is given."""


def _timed(
    words: Iterable[str], device: torch.device, *, by_length: Collection[str]
) -> tuple[dict[tuple[str, Any], Callable[[], None]], dict[tuple[str, int], Layer]]:
    """Return what is timed, by mixer and way or length, and the layers of those that are timed at all lengths."""
    tokens = BATCH * LENGTH
    lengths = [length for length in LENGTHS if length <= tokens]
    made = {word: layer_of(word, BATCH, LENGTH, device) for word in words}
    longer = {
        (word, length): made[word] if length == LENGTH else layer_of(word, tokens // length, length, device)
        for word in made
        for length in lengths
        if word in by_length
    }
    runs: dict[tuple[str, Any], Callable[[], None]] = {}
    for word, (layer, x) in made.items():
        runs |= {(word, "trained"): partial(_train, layer, x)}
        if not replays(layer):
            runs |= {(word, "decoded"): partial(_decode, layer, x)}
    runs |= {key: partial(_train, *pair) for key, pair in longer.items() if key[1] != LENGTH}
    return runs, longer


def kept_bytes(layer: nn.Module, x: Float[Tensor, "batch time d_model"]) -> float:
    """Count the bytes per token that a forward pass keeps for the backward pass: each storage once, without the layer's
    own parameters and buffers, which are there anyway. The same count on every device."""
    own = {each.untyped_storage().data_ptr() for each in (*layer.parameters(), *layer.buffers())}
    sizes: dict[int, int] = {}

    def keep(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        y = layer(x)  # alive while it is counted, so that no address is used twice
    del y
    return sum(sizes.values()) / (x.shape[0] * x.shape[1])


def layer_of(mixer: str, batch: int, length: int, device: torch.device) -> Layer:
    with initialised_from(0, "speed"):
        layer = mixers.parse(mixer).build(WIDTH, length).to(device)
    return layer, torch.randn(batch, length, WIDTH, generator=stream(0, "speed", device=device), device=device)


def _train(layer: MixerModule, x: Tensor) -> None:
    layer.zero_grad()
    layer(x).square().mean().backward()


@torch.no_grad()
def _decode(layer: MixerModule, x: Tensor) -> None:
    state = layer.init_state(1)
    for token in x[:1, :DECODED].unbind(1):
        _, state = layer.step(token, state)


Key = TypeVar("Key")


def _seconds(runs: Mapping[Key, Callable[[], None]], device: torch.device) -> dict[Key, list[float]]:
    """Time every run once in each round, after one round that warms up."""
    found: dict[Key, list[float]] = {key: [] for key in runs}
    for _ in range(REPEATS + 1):
        for key, run in runs.items():
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            found[key].append(time.perf_counter() - start)
    return {key: times[1:] for key, times in found.items()}


FORWARD = 1 / 3
"""What a forward pass takes of a training step."""
TIMED, ENOUGH = 4, 0.5
"""Training steps that are timed for an estimate, of every part of a mixture, after those that warm up; on a CPU no more
once they have taken so many seconds."""
LARGEST, SCORED = 2**16, 2**18
"""On a CPU, a step of more work than this (tokens times layers times width) is timed with fewer sequences; and as much
is scored, of each length, to time the tests of a run. Scoring has larger batches, so less of it says less."""
STARTING, DRAWING = 1.5, 1.0
"""Seconds until workers have imported what they need, and for the page of a card, on two ARM cores."""


@dataclass(frozen=True)
class Expected:
    """Seconds of one core, or of one GPU, for the questions of a mixer."""

    least: float
    """Every question answered by its first rates and seeds, at the full number of steps."""
    most: float
    """Every rate trained in full, one more beyond the grid, and all again for twice as long."""


@dataclass(frozen=True)
class Pace:
    """Seconds of one model."""

    step: float
    """A training step, with its share of a validation."""
    tests: float
    """What a run is scored on when it is trained, at its own length and at others."""

    def of(self, steps: float, runs: float) -> float:
        return self.step * steps + self.tests * runs


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
    pace = pace_of(tier, question, mixer, device, together=device.type == "cuda")
    rates, seeds = len(question.rates), len(tier.seeds_of(mixer))
    again = seeds if question.goal is not None else 0
    # How many trainings in full the runs amount to, and how many runs they are.
    least = rates / SCREENING + KEPT + seeds, rates + KEPT + seeds
    most = rates / SCREENING + rates + 1 + seeds + 2 * again, 2 * rates + 1 + seeds + again
    sure = pace.of(sum(trial.steps for trial in missing), len(missing))
    done = pace.of(sum(trial.steps for trial in known), len(known))
    return Expected(*(max(sure, pace.of(full * question.steps, runs) - done) for full, runs in (least, most)))


def seconds(tier: Tier, question: Question, mixer: str, device: torch.device, trials: Sequence[Trial]) -> float:
    """Estimate what some runs of a mixer will take."""
    pace = pace_of(tier, question, mixer, device, together=device.type == "cuda")
    return pace.of(sum(trial.steps for trial in trials), len(trials))


def fixed_seconds(mine: Sequence[str], words: Sequence[str], device: torch.device) -> float:
    """Estimate what a card takes beside its runs, on a CPU: to start workers, to time the layers of all mixers, from
    one round of that, and to draw the pages."""
    begin = time.perf_counter()
    for run in _timed(words, device, by_length=[word for word in words if word in (*mine, *ANCHORS)])[0].values():
        with suppress(Exception):  # it fails again where it is timed, and says so
            run()
    return STARTING + (REPEATS + 1) * (time.perf_counter() - begin) + DRAWING * len(mine)


def pace_of(tier: Tier, question: Question, mixer: str, device: torch.device, *, together: bool) -> Pace:
    """Time a few training steps of one model, with as few sequences as LARGEST says, and a few of the sequences that it
    is scored on; or of as many models `together` as the tier has seeds, divided by their number: a GPU trains them as
    one program."""
    from assay.studies.icl.icl import InContext
    from assay.studies.icl.training import build, scored_on

    batch = question.batch if together else max(1, min(question.batch, question.batch * LARGEST // question.work))
    given = question.options(mixer, rate=question.rates[0], seed=0, steps=1)
    given["train"] |= {"validate_every": 1, "curriculum": 0.0, "stop_at": 0.0, "micro_batch_size": batch}
    study = configure(studies["icl"], None, given)
    assert isinstance(study, InContext)
    parts = len(study.task.parts())
    before = 2 * (WARM_UP_STEPS + parts) if together else 1  # each part of a mixture is captured as a graph of its own
    train = replace(study.train, max_steps=before + parts * TIMED)
    seeds = tier.seeds if together else tier.seeds[:1]
    models = [build(study.model, study.task, seed).to(device) for seed in seeds]
    trainer = _trainer(models, study.task, train, study.optimizer, seeds)
    step = _seconds_per_step(trainer, before, parts) * question.batch / batch / len(seeds)
    if together:
        validation, tests = step * question.eval_size / question.batch * FORWARD, 0.0
    else:
        rounds = scored_on(study.model, study.task, question.eval_size)
        tokens = SCORED * question.batch * study.task.shape().length // question.work
        validation, *longer = (_seconds_to_score(trainer, task, size, tokens) for task, size in rounds)
        tests = validation + sum(longer)
    return Pace(step + validation / question.every, tests)


def _seconds_per_step(trainer: Trainer, before: int, parts: int) -> float:
    """Time a training step, after `before` that warm up, as often for each of the `parts` of a mixture."""
    times: list[float] = []
    for _ in trainer.run():
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        timed, took = len(times) - before, times[-1] - times[min(before, len(times)) - 1]
        if trainer.device.type == "cpu" and timed > 0 and timed % parts == 0 and took >= ENOUGH:
            break
    return (times[-1] - times[before - 1]) / (len(times) - before)


def _seconds_to_score(trainer: Trainer, task: Task, size: int, tokens: int) -> float:
    """Time the scoring of `size` sequences by that of a few, about so many `tokens`."""
    from assay.studies.icl.scoring import score

    parts, rng = len(task.scored_parts()), stream(0, "speed", device=trainer.device)
    few = min(size, max(parts, tokens // task.shape().length))
    try:
        for sequences in (parts, few):  # the first warms up, and may read a text
            begin = time.perf_counter()
            score(trainer.answers, task, size=sequences, rngs=[rng])
    except Exception:  # noqa: BLE001 - a mixer may fail at a length, and its runs say so
        return 0.0
    return (time.perf_counter() - begin) * size / few


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
                speeds([word], place, by_length=ANCHORS)


if __name__ == "__main__":
    main(*sys.argv[1:])
