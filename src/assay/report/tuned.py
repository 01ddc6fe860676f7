"""A record per seed, each at the learning rate that the other seeds chose on validation.

    seed   validation at 1e-3, 3e-3, 1e-2        chosen by the others    the row counts its test score at
    0      .80  .97  .10                         3e-3                    3e-3
    1      .82  .95  .96                         3e-3                    3e-3
    2      .79  .98  .12                         3e-3                    3e-3

So a rate is chosen by seeds that the score is not taken from. A rate at which a seed diverged is the worst for it. A
seed that diverges at the rate the others chose stays in the row: it has no score. One seed alone has to choose for
itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from assay.core.run import Numerics, Record
from assay.metrics.intervals import Interval, student_t

Rate = TypeVar("Rate", float, float | None)
Worth = Callable[[Record], float]
"""Of a finished record, on validation: larger is better."""


def leave_one_out(tried: Mapping[Rate, Mapping[int, Record]], worth: Worth) -> dict[int, Record]:
    """Each seed's record at the rate that the other seeds chose; of equals, the lowest rate."""
    seeds = sorted({seed for by_seed in tried.values() for seed in by_seed})
    chosen = {}
    for seed in seeds:
        others = [other for other in seeds if other != seed] or [seed]
        there = {rate: _worth(by_seed, others, worth) for rate, by_seed in tried.items() if seed in by_seed}
        best = max(sorted(there, key=lambda rate: rate or 0), key=lambda rate: there[rate])
        chosen[seed] = tried[best][seed]
    return chosen


def _worth(by_seed: Mapping[int, Record], seeds: Sequence[int], worth: Worth) -> float:
    there = [by_seed.get(seed) for seed in seeds]
    return fmean(worth(r) if r is not None and r.status == "done" else -float("inf") for r in there)


def most_common(chosen: Sequence[Rate]) -> Rate:
    """Of the seeds' rates the one that most have; of equals, the lowest."""
    return max(sorted(set(chosen), key=lambda rate: rate or 0), key=chosen.count)


def at_the_edge(chosen: Iterable[float | None], tried: Iterable[float | None]) -> bool:
    """Whether any seed's rate is the lowest or the highest of several that were tried; what has no rate has no edge."""
    rates = sorted({rate for rate in tried if rate is not None})
    return len(rates) > 1 and not {rates[0], rates[-1]}.isdisjoint(chosen)


@dataclass(frozen=True)
class Tuned:
    """What a row of a table is made of, as a `Cell` is; its seeds may count at different rates."""

    every: tuple[Record, ...]
    """One per seed, diverged or not."""
    rates: tuple[float | None, ...]
    """That were tried."""

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(record for record in self.every if record.status == "done")

    @property
    def diverged(self) -> int:
        return len(self.every) - len(self.records)

    @property
    def options(self) -> Mapping[str, Any]:
        """Of all its records, but for the rate."""
        return self.every[0].run.options

    @property
    def numerics(self) -> Numerics:
        return self.every[0].run.numerics

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(record.run.seed for record in self.every)

    @property
    def rate(self) -> float | None:
        """The rate that most seeds count with; of equals, the lowest."""
        return most_common([record.run.options["lr"] for record in self.every])

    @property
    def at_the_edge(self) -> bool:
        """Whether a rate beyond those tried might have been better, for any of its seeds."""
        return at_the_edge([record.run.options["lr"] for record in self.every], self.rates)

    def values(self, metric: str) -> dict[int, float]:
        """The metric by seed, where it was measured."""
        found = {record.run.seed: record.metrics.get(metric) for record in self.records}
        return {seed: float(value) for seed, value in sorted(found.items()) if isinstance(value, int | float)}

    def interval(self, metric: str) -> Interval | None:
        values = list(self.values(metric).values())
        return student_t(values) if values else None
