"""What happens on a worker: a job's plug-in files are loaded, its runs executed, each outcome sent as it comes.

`python -m assay.core.worker FD` is a worker process of the `local` executor, at the other end of a pipe.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from types import FrameType

from assay.core.executors.base import call
from assay.core.foreign import Source, load_source
from assay.core.plugin import registries
from assay.core.run import Provenance, Run, canonical, finite
from assay.core.study import Context, Outcome, Progress

Message = Outcome | Progress


@dataclass
class Job:
    """The runs of one cohort: plain data, so it can be sent anywhere. The driver strikes off what is stored, so a job
    that is sent again holds only the rest."""

    study: str
    runs: list[Run]
    sources: tuple[Source, ...] = ()
    timeout_per_run: float | None = None
    scratch: str | None = None
    """The store's folder, where workers share its disk: a run may keep a checkpoint beside its record-to-be."""


def execute(job: Job, emit: Callable[[Message], None]) -> None:
    """Run a job; an exception is the caller's to record."""
    for source in job.sources:
        load_source(source)
    study = registries()["studies"][job.study]()
    limit = job.timeout_per_run and job.timeout_per_run * len(job.runs)
    emit = uninterrupted(emit)
    missing = set(job.runs)
    before = time.perf_counter(), time.process_time()
    with time_limit(limit), redirect_stdout(sys.stderr):
        # A copy: in one process the driver strikes runs off the same list while the study goes through it.
        for outcome in study.execute(tuple(job.runs), Context(job.runs[0].numerics, emit, job.scratch)):
            now = time.perf_counter(), time.process_time()
            cost = {"seconds": now[0] - before[0], "cpu_seconds": now[1] - before[1]} | dict(outcome.cost)
            if outcome.run not in missing:
                raise ValueError(f"{job.study} gave an outcome twice, or one it was not asked for: {outcome.run.label}")
            missing.remove(outcome.run)
            canonical([finite(outcome.metrics)[0], finite(cost)[0]])  # what is not JSON is this run's error
            emit(replace(outcome, cost=cost, provenance=Provenance.here()))  # the study names its device by now
            before = now


def uninterrupted(emit: Callable[[Message], None]) -> Callable[[Message], None]:
    """`emit`, with the alarm of a time limit held back: half a message would leave the pipe unreadable."""

    def send(message: Message) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        try:
            emit(message)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return send


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer. Signals need the main thread, where workers run their jobs."""
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"over its limit of {seconds:g} s (--timeout-per-run)")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def serve(pipe: Connection) -> None:
    """Run whatever comes through the pipe until it closes."""
    sys.path[:], driver = pipe.recv()
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    fn = pipe.recv()
    while True:
        pipe.send(call(fn, pipe.recv(), pipe.send))


def _end_with(driver: int) -> None:
    """End when the driver does, even killed, rather than finish a job that nobody will store."""
    while os.getppid() == driver:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError):
        serve(Connection(int(sys.argv[1])))
