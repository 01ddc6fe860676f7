"""A worker loads a job's plug-in files, executes its runs, and sends each outcome as it comes.

`python -m assay.core.worker FD` is a worker process of the `local` executor, at the other end of a pipe.
"""

import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO, cast

from assay.core.executors.base import Began, call
from assay.core.foreign import Source, load_source
from assay.core.pipe import Pipe
from assay.core.plugin import registries
from assay.core.run import Provenance, Run, canonical, finite, source_digest
from assay.core.streams import Forgiving
from assay.core.study import Context, Outcome, Progress
from assay.core.time_limit import time_limit

Message = Outcome | Progress
OOM_SCORE = Path("/proc/self/oom_score_adj")
GO_FIRST = 500
"""On the kernel's scale of -1000 to 1000: as if the process held half of all memory besides its own."""


@dataclass
class Job:
    """The runs of one cohort, as plain data that can be sent anywhere. The driver removes runs that are stored, so a
    job that is sent again holds only the rest."""

    study: str
    runs: list[Run]
    sources: tuple[Source, ...] = ()
    timeout_per_run: float | None = None
    scratch: str | None = None
    """The store's folder, if workers share its disk: a run may keep a checkpoint in its folder."""

    @property
    def limit(self) -> float | None:
        """Seconds it may take: runs of a cohort are computed together, so their time is pooled."""
        return self.timeout_per_run and self.timeout_per_run * len(self.runs)


def execute(job: Job, emit: Callable[[Any], None]) -> None:
    """Run a job; the caller records its exceptions."""
    if not job.runs:  # its worker died after the last outcome, and it was sent again
        return
    source_digest()  # before hours of training, in which somebody may edit the files that this process has imported
    for source in job.sources:
        load_source(source)
    study = registries()["studies"][job.study]()
    missing = set(job.runs)
    before = time.perf_counter(), time.process_time()
    with time_limit(job.limit, emit) as send, redirect_stdout(sys.stderr):
        send(Began())
        # A copy: in one process the driver removes runs from the same list while the study iterates over it.
        for outcome in study.execute(tuple(job.runs), Context(job.runs[0].numerics, send, job.scratch)):
            now = time.perf_counter(), time.process_time()
            cost = {"seconds": now[0] - before[0], "cpu_seconds": now[1] - before[1]} | dict(outcome.cost)
            if outcome.run not in missing:
                raise ValueError(f"{job.study} gave an outcome twice, or one it was not asked for: {outcome.run.label}")
            missing.remove(outcome.run)
            canonical([finite(outcome.metrics)[0], finite(cost)[0]])  # a result that is not JSON is this run's error
            send(replace(outcome, cost=cost, provenance=Provenance.here()))  # the study names its device by now
            before = now


def go_first() -> None:
    """Ask the kernel to end this process before its driver where memory runs out: a lost worker costs one job, a lost
    driver the command. Only Linux can be asked, and a process that is to go even earlier stays so."""
    with suppress(OSError, ValueError):
        if int(OOM_SCORE.read_text()) < GO_FIRST:
            OOM_SCORE.write_text(str(GO_FIRST))


def serve(pipe: Pipe) -> None:
    """Run whatever comes through the pipe until it closes."""
    sys.path[:] = pipe.receive()
    fn = pipe.receive()
    while True:
        pipe.send(call(fn, pipe.receive(), pipe.send))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    go_first()
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)  # what a plug-in starts must not hold the pipe open
    sys.stderr = cast(TextIO, Forgiving(sys.stderr))  # a plug-in may print when nobody reads any more
    with suppress(EOFError, ConnectionError):  # the driver is gone
        serve(Pipe(end))
