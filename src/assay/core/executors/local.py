"""Long-lived worker processes on this machine run jobs, with one pipe each.

A killed worker loses the one job it held, which is sent again to a fresh worker; the others are not disturbed (a
ProcessPoolExecutor would lose all). Workers are started as `python -m`, not by multiprocessing, so a script or a
notebook that calls `assay.run` needs no `if __name__ == "__main__"` guard.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from assay.core import guard
from assay.core.executors import executors
from assay.core.executors.base import GRACE, TICK, Began, Ended, Executor, Limit, Receive, Work, device_name
from assay.core.pipe import Pipe


@executors.register("local")
@dataclass(frozen=True, kw_only=True)
class Local(Executor):
    """Worker processes on this machine, one per core or per visible GPU."""

    per_gpu: int = 1
    """Workers that share a GPU, where nobody says how many there are."""

    def slots(self) -> int:
        return self.workers or self.per_gpu * len(self.gpus) or super().slots()

    def run(self, fn: Work, jobs: Iterable[Any], emit: Receive, *, limit: Limit = lambda job: None) -> None:
        asked = fn, self.slots(), self.gpus
        if (pool := _kept.pop(asked, None)) is None or pool.stopped:
            pool = _Pool(*asked)
        if _keeping:
            _kept[asked] = pool
        fresh, again = ((job, 0) for job in jobs), deque[tuple[Any, int]]()  # again: jobs that lost their worker
        try:
            while True:
                while len(pool.busy) < pool.count and (item := again.popleft() if again else next(fresh, None)):
                    pool.give(*item, limit(item[0]))
                if not pool.busy:
                    return
                wait([worker.pipe.fileno() for worker in pool.busy], TICK)  # for a message, or until the tick is over
                for worker in list(pool.busy):
                    job, losses = pool.busy[worker]
                    messages, alive = worker.hear()
                    if messages and isinstance(messages[-1], Ended):
                        del pool.busy[worker]
                        pool.idle.append(worker)
                    elif not alive:
                        pool.bury(worker)
                        if losses < self.retries:
                            again.append((job, losses + 1))
                        else:
                            code = worker.process.wait()
                            cause = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
                            messages.append(Ended("lost", f"its worker died {losses + 1} times ({cause})"))
                    elif time.monotonic() > worker.deadline:
                        pool.bury(worker)
                        messages.append(Ended.overdue(worker.limit))
                    for message in messages:
                        emit(job, message)
        finally:
            if pool.busy or not _keeping:  # also where a job is left behind: its worker is not free for another plan
                pool.stop()


_keeping = False
_kept: "dict[tuple[Work, int, tuple[int, ...]], _Pool]" = {}
"""The pools of earlier plans, by what they do and on which devices."""


@contextmanager
def kept_workers() -> Iterator[None]:
    """Idle workers outlive their plan inside the block: the next plan finds them started, with everything imported.
    They keep the environment in which they were started."""
    global _keeping
    before, _keeping = _keeping, True
    try:
        yield
    finally:
        _keeping = before
        while _kept and not _keeping:
            _kept.popitem()[1].stop()


class _Worker:
    """One child process and this side of its pipe."""

    def __init__(self, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self.pipe = Pipe(ours)
        self.limit, self.deadline = 0.0, math.inf
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "assay.core.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=os.environ | environment,
            stdout=2,  # output of plug-ins is no result
            start_new_session=True,  # Ctrl-C reaches the driver alone, which then stops the workers itself
        )
        theirs.close()

    def send(self, message: Any) -> None:
        with suppress(ConnectionError):  # The worker died: `hear` says so, and the job is sent again.
            self.pipe.send(message)

    def hear(self) -> tuple[list[Any], bool]:
        """Return the messages that have come, none after the job's end, and whether more may come.

        The process is polled first, so that nothing it has sent is missed. An open pipe is not enough to go by: a child
        of a dead worker, forked by compiled code, may hold the other end (core/pipe.py)."""
        alive = self.process.poll() is None
        messages, is_open = self.pipe.arrived()
        if any(isinstance(message, Began) for message in messages):
            self.deadline = time.monotonic() + self.limit + GRACE
        ends = [place for place, message in enumerate(messages, 1) if isinstance(message, Ended)]
        del messages[ends[0] if ends else len(messages) :]  # a thread of the job may send more
        return [message for message in messages if not isinstance(message, Began)], alive and is_open

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its process group, so that its children die too
        self.process.wait()
        self.pipe.close()


class _Pool:
    """Busy and idle workers, started when first needed. A guard (core/guard.py) kills them should this process be
    killed."""

    def __init__(self, fn: Callable[..., None], count: int, gpus: tuple[int, ...]) -> None:
        self.fn, self.count, self.gpus = fn, count, gpus
        self.idle: list[_Worker] = []
        self.busy: dict[_Worker, tuple[Any, int]] = {}
        self.slots: dict[_Worker, int] = {}
        self.stopped = False
        self.guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def give(self, job: Any, losses: int, limit: float | None) -> None:
        worker = self.idle.pop() if self.idle else self._start()
        self.busy[worker] = (job, losses)
        worker.limit, worker.deadline = limit or math.inf, math.inf
        worker.send(job)

    def bury(self, worker: _Worker) -> None:
        self.busy.pop(worker, None)
        del self.slots[worker]
        worker.stop()
        self._tell_guard(f"-{worker.process.pid}")

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            for worker in list(self.slots):
                self.bury(worker)
            self.guard.communicate()

    def _start(self) -> _Worker:
        slot = min(set(range(self.count)) - set(self.slots.values()))
        gpu = {"CUDA_VISIBLE_DEVICES": device_name(self.gpus[slot % len(self.gpus)])} if self.gpus else {}
        worker = _Worker({"OMP_NUM_THREADS": "1"} | gpu)
        self.slots[worker] = slot
        self._tell_guard(f"+{worker.process.pid}")  # before it gets a job: until then it ends when its pipe closes
        worker.send(sys.path)
        worker.send(self.fn)
        return worker

    def _tell_guard(self, line: str) -> None:
        assert self.guard.stdin is not None
        with suppress(BrokenPipeError):  # the guard was killed: a driver that ends normally still stops its workers
            print(line, file=self.guard.stdin, flush=True)
