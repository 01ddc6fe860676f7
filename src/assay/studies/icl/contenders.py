"""Records pooled for a table: a record per seed, at the learning rate that the other seeds chose (report.tuned).

The choice is made on validation, and the score is of a third split. A seed that diverged at the rate the others chose
stays in the row: it has no score, and solved nothing. So does a setting of which every seed diverged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.core.run import Record, canonical
from assay.metrics.intervals import Interval, student_t
from assay.report.tuned import at_the_edge, leave_one_out, most_common

Rates = Mapping[float, Mapping[int, Record]]


@dataclass(frozen=True)
class Contender:
    """What one row of a table is made of."""

    records: tuple[Record, ...]
    """One per seed."""
    tried: Rates
    """Every record, by rate and seed."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Of all its records, but for the rate."""
        return self.records[0].run.options

    @property
    def chosen(self) -> tuple[float, ...]:
        """The rate that each seed counts with."""
        return tuple(rate_of(record) for record in self.records)

    @property
    def rate(self) -> float:
        """The rate that most seeds count with; of equals, the lowest."""
        return most_common(self.chosen)

    @property
    def at_the_edge(self) -> bool:
        """Whether a rate beyond those tried might have been better, for any of its seeds."""
        return at_the_edge(self.chosen, self.tried)

    @property
    def rates(self) -> str | None:
        """The rate that most seeds count with, how many that are if not all, and whether one is at the edge; None
        where no run at any rate came to an end, and so none was chosen."""
        if not any(record.status == "done" for by_seed in self.tried.values() for record in by_seed.values()):
            return None
        count = self.chosen.count(self.rate)
        share = "" if count == len(self.records) else f" ({count}/{len(self.records)})"
        return f"{self.rate:g}{share}" + (" edge" if self.at_the_edge else "")

    @property
    def diverged(self) -> str | None:
        """How many seeds of how many have no score; None where all have one."""
        count = len(self.records) - len(self.finished)
        return f"{count}/{len(self.records)}" if count else None

    @property
    def finished(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records if record.status == "done")

    @property
    def first(self) -> Mapping[str, Any]:
        """The metrics of one seed, for what all have in common; empty where every seed diverged."""
        return self.finished[0].metrics if self.finished else {}

    def scored(self, metric: str) -> bool:
        """Whether that is a score of its task. Diverged runs say so too: they were validated on the way."""
        return any(metric in record.metrics for record in self.records)

    def values(self, *path: str) -> dict[int, float]:
        """A number by seed, at a path into the metrics; without the seeds that lack it."""
        found = {record.run.seed: _at(record.metrics, path) for record in self.finished}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def interval(self, *path: str) -> Interval | None:
        values = list(self.values(*path).values())
        return student_t(values) if values else None


def contenders(records: Iterable[Record]) -> list[Contender]:
    """The trained models among the records, in the order they come."""
    groups: dict[str, dict[float, dict[int, Record]]] = {}
    for record in records:
        if record.run.options.get("model") is not None:
            groups.setdefault(_key(record), {}).setdefault(rate_of(record), {})[record.run.seed] = record
    return [Contender(tuple(leave_one_out(group, validation).values()), group) for group in groups.values()]


def rate_of(record: Record) -> float:
    return float(record.run.options["optimizer"]["lr"])


def validation(record: Record) -> float:
    """Of the last validation: larger is better."""
    last = record.metrics["curve"][-1]
    return float(last["accuracy"]) if "accuracy" in last else -float(last["mse"])


def _key(record: Record) -> str:
    """The setting without seed and rate."""
    run = record.run.to_json()
    options = {**run["options"], "optimizer": {**run["options"]["optimizer"], "lr": None}}
    return canonical({**run, "seed": None, "options": options})


def _at(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None
