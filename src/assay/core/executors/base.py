"""An executor runs a function over jobs somewhere, and brings home the messages that the function sends."""

import os
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from assay.core.executors import executors
from assay.core.plugin import Plugin, Registry
from assay.core.time_limit import RunTimeoutError

Emit = Callable[[Any], None]
Work = Callable[[Any, Emit], None]
"""Does a job, and sends messages."""
Receive = Callable[[Any, Any], None]
"""Gets a job and a message of it."""
Limit = Callable[[Any], float | None]
"""Gives a job's time limit in seconds."""

GRACE = 10.0
"""Seconds from the interruption of a job at its time limit to the end of its worker, if that did not stop it."""
TICK = 1.0
"""Seconds between checks of silent jobs: one may have lost its worker, or be over its time."""


@dataclass(frozen=True)
class Began:
    """Tells the executor that a job is loaded and its time begins; not passed on."""


@dataclass(frozen=True)
class Ended:
    """The last message of a job: it returned, it raised, or its worker was lost more often than allowed."""

    status: Literal["finished", "failed", "lost"]
    detail: str = ""

    @classmethod
    def overdue(cls, seconds: float) -> "Ended":
        """Return the end of a job that did not stop at its limit."""
        return cls("failed", f"{RunTimeoutError.__name__}: {RunTimeoutError(seconds)} and did not stop: killed")


@dataclass(frozen=True, kw_only=True)
class Executor(Plugin):
    """The contract (tests/contracts/test_executors.py): every job's messages reach `emit(job, message)` in the calling
    process, in the order they were sent, and the last is one `Ended`; what a thread of the job sends after that is
    dropped. An exception is not retried; a lost worker is,
    `retries` times. Jobs are pulled when there is room for them. Leaving `run` early stops the workers. A job for which
    `limit` gives a number of seconds and that goes on `GRACE` seconds longer, counted from its `Began`, ends as failed
    together with its worker, unless it runs in the driver's own process."""

    registry: ClassVar[Registry] = executors

    shares_disk: ClassVar[bool] = True
    """Whether its workers see the driver's files."""

    workers: int = 0
    """Jobs at once, but one if serial; 0: one per GPU, or without a GPU one per core."""
    gpus: tuple[int, ...] = ()
    """Devices to use, one per worker; none: the CPU."""
    retries: int = 2
    """Times that a job is started again where its worker was lost; one that raises an error is not."""

    def slots(self) -> int:
        """Return how many jobs it can work on at once."""
        return self.workers or len(self.gpus) or os.cpu_count() or 1

    def run(self, fn: Work, jobs: Iterable[Any], emit: Receive, *, limit: Limit = lambda job: None) -> None:
        raise NotImplementedError(f"{type(self).__name__}.run")


def device_name(index: int) -> str:
    """Return the name in CUDA_VISIBLE_DEVICES of device number `index` of those this process sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[index] if visible else str(index)


def call(fn: Work, job: Any, emit: Emit) -> Ended:
    """Run one job here; an exception becomes text, since exceptions do not always survive a pipe. Once this returns,
    the job sends nothing more: a thread it left behind could otherwise send after its end, or into the next job."""
    lock, is_over = threading.RLock(), False

    def send(message: Any) -> None:
        with lock:  # a message being sent is finished before the job counts as over
            if not is_over:
                emit(message)

    try:
        fn(job, send)
    except (Exception, SystemExit, RunTimeoutError):  # noqa: BLE001 - whatever a study raises is that run's result
        return Ended("failed", traceback.format_exc())
    finally:
        with lock:
            is_over = True
    return Ended("finished")
