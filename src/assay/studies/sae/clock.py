"""Divides time among models that are trained or scored together."""

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
    """The time a model's training took, and notes for its record's cost."""

    spent: Spent
    notes: Mapping[str, Any] = field(default_factory=dict)

    def cost(self, scoring: Spent) -> dict[str, Any]:
        """The cost of a scored run; without its own `seconds` a bank's first run would be charged for all."""
        return {**vars(self.spent + scoring), **self.notes}


def stopwatch() -> Callable[[], Spent]:
    """Return a function that returns the time since it was last called, or made."""
    last = time.perf_counter(), time.process_time()

    def lap() -> Spent:
        nonlocal last
        before, last = last, (time.perf_counter(), time.process_time())
        return Spent(last[0] - before[0], last[1] - before[1])

    return lap
