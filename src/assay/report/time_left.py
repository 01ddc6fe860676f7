"""How long runs still take, from the pace of those under way and what like ones have taken.

a run under way      its pace since its first progress here
one not begun        what finished ones and those under way say of runs like it (core.estimate): a reference that is
                     scored in a second says nothing of a training
"""

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from assay.core.drive import Event
from assay.core.estimate import duration, estimates
from assay.core.run import Record, Run

MEASURED = 5.0
"""Seconds of a run after which the time left is estimated."""
EVERY, SHARE = 1.0, 0.05
"""Seconds between two estimates of a whole plan, and the most of the time that they may take: they look at all of its
runs."""


def of_run() -> Callable[[Event], float | None]:
    """Return a function that estimates the seconds that an unfinished run will still take, at the pace since its first
    progress here, or since it started over."""
    began: dict[str, tuple[float, float]] = {}
    last: dict[str, float] = {}

    def left(event: Event) -> float | None:
        if not event.progress:
            return None
        run, now, share = event.run.id, time.monotonic(), event.progress.share
        if share < last.get(run, math.inf):
            began[run] = now, share
        last[run] = share
        start, before = began[run]
        if now - start < MEASURED or not before < share < 1:
            return None
        return (now - start) / (share - before) * (1 - share)

    return left


@dataclass(frozen=True)
class Left:
    """Seconds until all runs are over; where nothing is known of some, until the others are."""

    seconds: float
    all_known: bool

    def __str__(self) -> str:
        return f"{'' if self.all_known else '> '}{duration(self.seconds)}"


@dataclass
class UnderWay:
    """A run that has begun."""

    run: Run
    share: float = 0.0
    left: float | None = None


class OfPlan:
    """Estimates the time that all runs of a plan will still take, from its events as they come and what runs have cost
    before; None while nothing is known. `workers` and `costs` are asked for once something is there to estimate."""

    def __init__(
        self, todo: Sequence[Run], workers: Callable[[], int], costs: Callable[[], Iterable[Record]] = lambda: ()
    ) -> None:
        self._workers, self._costs = workers, costs
        self._of_run = of_run()
        self._todo = {run.id: run for run in todo}
        self._under_way: dict[str, UnderWay] = {}
        self._done: list[Record] = []
        self._told: Left | None = None
        self._due = 0.0

    def __call__(self, event: Event) -> Left | None:
        left = self._of_run(event)
        if event.record:
            self._todo.pop(event.run.id, None)
            self._under_way.pop(event.run.id, None)
            self._done.append(event.record)
        elif event.progress:
            now, share = self._under_way.get(event.run.id), event.progress.share
            if now is None or share < now.share:  # it starts, or starts over
                now = self._under_way[event.run.id] = UnderWay(event.run)
            now.share, now.left = share, now.left if left is None else left
        start = time.monotonic()
        if start >= self._due:
            self._told = self._left()
            took = time.monotonic() - start
            self._due = start + max(EVERY, took / SHARE)
        return self._told

    def _left(self) -> Left | None:
        ending = [each for each in self._under_way.values() if each.share >= 1]
        paced = [each for each in self._under_way.values() if each.share < 1 and each.left is not None]
        # One that is trained is still scored, and how long that takes shows once the first run is over.
        if ending and not any(record.status == "done" for record in self._done):
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
        others = list(estimates(rest, [*self._costs(), *self._done, *paces]))
        known_others = [together * seconds for seconds in others if seconds is not None]
        if rest and not lefts and not known_others:
            return None
        at_once = max(workers, len(self._under_way))
        return Left(_finished([*lefts, *known_others], at_once), all_known=len(known_others) == len(others))


def _finished(seconds: Sequence[float], at_once: int) -> float:
    """Return when runs that take so long are all over, each begun as soon as one before it has ended."""
    ends = sorted(seconds[:at_once])
    for each in seconds[at_once:]:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends, default=0.0)
