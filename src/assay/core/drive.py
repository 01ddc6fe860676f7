"""The driver: from a plan to stored records. It alone writes the store, and it says what happens as events."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

from assay.core.executors.base import Ended, Executor
from assay.core.foreign import loaded_sources
from assay.core.plan import Plan, cohorts
from assay.core.run import Record, Run
from assay.core.store import Store
from assay.core.study import Outcome, Progress
from assay.core.worker import Job, Message, execute


@dataclass(frozen=True)
class Event:
    """Something to show: a run went on, was stored, or is held by another driver."""

    kind: Literal["progress", "stored", "waiting"]
    run: Run
    record: Record | None = None
    progress: Progress | None = None


@dataclass
class Drive:
    """One pass over a plan. Call it once; `records` then holds every planned run that has a record."""

    plan: Plan
    store: Store
    executor: Executor
    workers: int = 1
    force: bool = False
    timeout_per_run: float | None = None
    watch: Callable[[Event], None] = lambda event: None
    _locks: dict[str, ExitStack] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)

    def __call__(self, todo: Sequence[Run]) -> list[Record]:
        """Execute what is unfinished. Runs that another driver holds are waited for, then read from the store."""
        left = list(todo)
        try:
            while left:
                self.executor.run(execute, self._jobs(left), self._receive)
                left = [run for run in left if run.id not in self._settled]
                if left:
                    self.watch(Event("waiting", left[0]))
                    time.sleep(1.0)
        finally:
            for lock in self._locks.values():
                lock.close()
        return [record for run in self.plan.runs if (record := self.store.get(run))]

    def _jobs(self, runs: Sequence[Run]) -> Iterator[Job]:
        """Cohorts, locked when an executor has room for them; what another driver holds or has stored is left out."""
        for cohort in cohorts(self.plan.study, runs, self.workers):
            mine = [run for run in cohort if self._take(run)]
            if mine:
                yield Job(self.plan.study.name, mine, loaded_sources(), self.timeout_per_run)

    def _take(self, run: Run) -> bool:
        lock = ExitStack()
        if not lock.enter_context(self.store.lock(run)):
            lock.close()
            return False
        self._locks[run.id] = lock
        record = self.store.get(run)
        if record and record.status == "done" and not self.force:  # another driver was faster
            self._settle(record)
            return False
        return True

    def _receive(self, job: Job, message: Message | Ended) -> None:
        match message:
            case Progress():
                self.watch(Event("progress", message.run, progress=message))
            case Outcome():
                job.runs.remove(message.run)
                self._settle(self.store.commit(message))
            case Ended(status="finished") if job.runs:
                self._fail(job, f"{job.study} yielded no outcome for this run")
            case Ended(status="failed" | "lost"):
                self._fail(job, message.detail)

    def _fail(self, job: Job, error: str) -> None:
        for run in list(job.runs):
            job.runs.remove(run)
            self._settle(self.store.commit_failure(run, error))

    def _settle(self, record: Record) -> None:
        self._settled.add(record.run.id)
        self._locks.pop(record.run.id).close()
        self.watch(Event("stored", record.run, record=record))
