"""Time that models share: those that are trained or scored together each pay their part, and none pays for all."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spent:
    """Wall and processor time."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds)

    def share(self, among: int) -> "Spent":
        return Spent(self.seconds / among, self.cpu_seconds / among)


@dataclass(frozen=True)
class Trained:
    """What it took to have a model, and what else a record says of that."""

    spent: Spent
    notes: Mapping[str, Any] = field(default_factory=dict)

    def cost(self, scoring: Spent) -> dict[str, Any]:
        """Of a run, scored: without `seconds` of its own the first of a bank would be charged for the whole bank."""
        return {**vars(self.spent + scoring), **self.notes}


def stopwatch() -> Callable[[], Spent]:
    """A function that says how much time has passed since it was last asked, or made."""
    last = time.perf_counter(), time.process_time()

    def lap() -> Spent:
        nonlocal last
        before, last = last, (time.perf_counter(), time.process_time())
        return Spent(last[0] - before[0], last[1] - before[1])

    return lap
