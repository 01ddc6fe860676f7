"""The driver turns a plan into stored records. It alone writes the store, and it reports what happens as events."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from assay.core.executors.base import Ended, Executor
from assay.core.foreign import loaded_sources
from assay.core.locks import Lock
from assay.core.plan import Plan, Retry, cohorts, halves, to_be_tried_again
from assay.core.run import Record, Run
from assay.core.store import Store
from assay.core.study import Outcome, Progress
from assay.core.worker import Job, Message, execute


@dataclass(frozen=True)
class Event:
    """Something to show: a run progressed, was stored, or is locked by another process."""

    kind: Literal["progress", "stored", "waiting"]
    run: Run
    record: Record | None = None
    progress: Progress | None = None


@dataclass
class Drive:
    """One pass over a plan, called once with the runs to compute."""

    plan: Plan
    store: Store
    executor: Executor
    workers: int = 1
    retry: Retry = "failed"
    force: bool = False
    timeout_per_run: float | None = None
    watch: Callable[[Event], None] = lambda event: None
    errors: list[str] = field(default_factory=list)
    """Errors that jobs raised after their last run was stored: they belong to no run, so no record tells of them."""
    _locks: dict[str, Lock] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)
    _smaller: list[list[Run]] = field(default_factory=list)
    _handed: list[Job] = field(default_factory=list)

    def __call__(self, todo: Sequence[Run]) -> list[Record]:
        """Execute what is unfinished. Runs locked by another process are waited for, then read from the store."""
        left = list(todo)
        try:
            while left:
                groups = self._smaller or cohorts(left, self.workers)
                self._smaller = []
                self.executor.run(execute, self._jobs(groups), self._receive, limit=lambda job: job.limit)
                left = [run for run in left if run.id not in self._settled]
                if left and not self._smaller:
                    self._wait_for_one_of(left)
        finally:
            for lock in self._locks.values():
                lock.release()
        return [record for run in self.plan.runs if (record := self.store.get(run))]

    @property
    def under_way(self) -> list[list[Run]]:
        """The runs that were handed to the executor and are not stored, by job: those of one share a checkpoint."""
        return [job.runs for job in self._handed if any(run.id in self._locks for run in job.runs)]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {run.id: place for place, run in enumerate(self.plan.runs)}

    def _jobs(self, groups: Sequence[Sequence[Run]]) -> Iterator[Job]:
        """Lock groups as executors have room for them. Skips runs locked or already stored by another process."""
        # Where workers share the driver's disk, a run may keep a checkpoint in its folder.
        scratch = str(self.store.root.resolve()) if self.executor.shares_disk else None
        for group in groups:
            mine = [run for run in group if self._take(run)]
            if mine:
                self._handed.append(Job(mine[0].study, mine, loaded_sources(), self.timeout_per_run, scratch))
                yield self._handed[-1]

    def _take(self, run: Run) -> bool:
        """Lock a run; False if another process has locked it, or has just stored it."""
        lock = self.store.take(run)
        if lock is None:
            return False
        self._locks[run.id] = lock
        self.store.make_way(run)
        if self.force:
            self.store.drop_checkpoint(run)
            return True
        record = self.store.get(run)
        if record is None or to_be_tried_again(record, self.retry):
            return True
        self._settle(record)
        return False

    def _wait_for_one_of(self, runs: Sequence[Run]) -> None:
        self.watch(Event("waiting", runs[0]))
        while True:
            for run in runs:
                with self.store.lock(run) as free:
                    if free:
                        return
            time.sleep(1.0)

    def _receive(self, job: Job, message: Message | Ended) -> None:
        match message:
            case Progress():
                self.watch(Event("progress", message.run, progress=message))
            case Outcome():
                record = self.store.commit(message, place=self._places[message.run.id])
                job.runs.remove(message.run)
                self._settle(record)
            case Ended(status="finished") if job.runs:
                self._fail(job, f"{job.study} yielded no outcome for this run")
            case Ended(status="failed" | "lost") if job.runs:
                self._fail(job, message.detail)
            case Ended(status="failed" | "lost"):
                self.errors.append(message.detail)
                said = f"{job.study} raised an error after its last run, whose result is stored and kept"
                warnings.warn(f"{said}:\n{message.detail.rstrip()}", stacklevel=2)

    def _fail(self, job: Job, error: str) -> None:
        """Store a run that failed alone as a failed record. A group is retried in halves, so that one run that raises,
        kills its worker or needs too much memory does not take the others with it."""
        if len(job.runs) > 1:
            self._smaller += halves(job.runs)
            for run in job.runs:
                self._locks.pop(run.id).release()
            job.runs.clear()
            return
        for run in job.runs:
            self._settle(self.store.commit_failure(run, error, place=self._places[run.id]))

    def _settle(self, record: Record) -> None:
        self._settled.add(record.run.id)
        self._locks.pop(record.run.id).release()
        self.watch(Event("stored", record.run, record=record))
