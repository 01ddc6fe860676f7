"""How long runs still take, from the pace of those under way and what like ones have taken.

a run under way      its pace since its first progress here
one not begun        what finished ones and those under way say of runs like it (core.estimate): a reference that is
                     scored in a second says nothing of a training
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.core.drive import Event
from assay.core.estimate import estimate
from assay.core.run import Record, Run

MEASURED = 5.0
"""Seconds of a run after which the time left is estimated."""
EVERY, SHARE = 1.0, 0.05
"""Seconds between two estimates of a whole plan, and the most of the time that they may take: they look at all of its
runs."""


def of_run() -> Callable[[Event], float | None]:
    """Return a function that estimates the seconds that an unfinished run will still take, at the pace since its first
    progress here."""
    began: dict[str, tuple[float, float]] = {}

    def left(event: Event) -> float | None:
        if not event.progress:
            return None
        now, share = time.monotonic(), event.progress.share
        start, before = began.setdefault(event.run.id, (now, share))
        if now - start < MEASURED or not before < share < 1:
            return None
        return (now - start) / (share - before) * (1 - share)

    return left


@dataclass
class UnderWay:
    """A run that has begun."""

    run: Run
    share: float = 0.0
    left: float | None = None


class OfPlan:
    """Estimates the seconds that all runs of a plan will still take, from its events as they come; None while nothing
    like one of them is known. `workers` is asked for once something is there to estimate."""

    def __init__(self, todo: Sequence[Run], workers: Callable[[], int]) -> None:
        self._workers = workers
        self._of_run = of_run()
        self._todo = {run.id: run for run in todo}
        self._under_way: dict[str, UnderWay] = {}
        self._done: list[Record] = []
        self._told: float | None = None
        self._due = 0.0

    def __call__(self, event: Event) -> float | None:
        left = self._of_run(event)
        if event.record:
            self._todo.pop(event.run.id, None)
            self._under_way.pop(event.run.id, None)
            self._done.append(event.record)
        elif event.progress:
            now = self._under_way.setdefault(event.run.id, UnderWay(event.run))
            now.share, now.left = event.progress.share, now.left if left is None else left
        start = time.monotonic()
        if event.record or start >= self._due:
            self._told = self._left()
            took = time.monotonic() - start
            self._due = start + max(EVERY, took / SHARE)
        return self._told

    def _left(self) -> float | None:
        ending = [each for each in self._under_way.values() if each.share >= 1]
        paced = [each for each in self._under_way.values() if each.share < 1 and each.left is not None]
        # One that is trained is still scored, and how long that takes shows once the first run is over.
        if ending and not self._done:
            return None
        workers = self._workers()
        # Runs that are computed together share the time that they take, as in the cost of a record.
        together = max(1.0, len(self._under_way) / workers)
        lefts = [each.left or 0.0 for each in paced]
        paces = [
            Record(each.run, "done", {}, cost={"seconds": left / (1 - each.share) / together})
            for each, left in zip(paced, lefts, strict=True)
        ]
        known = {each.run.id for each in (*ending, *paced)}
        rest = [run for key, run in self._todo.items() if key not in known]
        others = estimate(rest, [*self._done, *paces], workers=1) if rest else 0.0
        if others is None:
            return None
        # No plan ends sooner than the run that takes longest.
        return max([(others + sum(lefts) / together) / min(workers, max(1, len(self._todo))), *lefts])
