"""Long-lived worker processes on this machine, one pipe each.

A killed worker loses the one job it held, which is sent again to a fresh worker; the others are not disturbed (a
ProcessPoolExecutor would break whole). Workers are started as `python -m`, not by multiprocessing, so a script or a
notebook that calls `assay.run` needs no `if __name__ == "__main__"` guard.
"""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from assay.core.executors import executors
from assay.core.executors.base import Emit, Ended, Executor


@executors.register("local")
@dataclass(frozen=True, kw_only=True)
class Local(Executor):
    """Worker processes on this machine, one per core or per visible GPU."""

    def run(self, fn: Callable[[Any, Emit], None], jobs: Iterable[Any], emit: Callable[[Any, Any], None]) -> None:
        pool = _Pool(fn, self.slots(), self.gpus)
        queue, again = iter(jobs), deque[tuple[Any, int]]()

        def take() -> tuple[Any, int] | None:
            """A job that lost its worker before, or the next one."""
            if again:
                return again.popleft()
            job = next(queue, None)
            return None if job is None else (job, 0)

        try:
            while True:
                while pool.has_room and (item := take()):
                    pool.give(*item)
                if not pool.busy:
                    return
                for worker in pool.ready():
                    job, losses = pool.busy[worker]
                    message = worker.receive()
                    if message is None:
                        pool.bury(worker)
                        if losses < self.retries:
                            again.append((job, losses + 1))
                            continue
                        message = Ended("lost", f"its worker died {losses + 1} times ({worker.obituary()})")
                    elif isinstance(message, Ended):
                        pool.rest(worker)
                    emit(job, message)
        finally:
            pool.stop()


class _Worker:
    """One child process and this side of its pipe."""

    def __init__(self, fn: Callable[..., None], environment: dict[str, str]) -> None:
        self.pipe, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "assay.core.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=os.environ | environment,
            stdout=2,  # what plug-ins print is not a result
            start_new_session=True,  # Ctrl-C reaches the driver alone, which then stops the workers itself
        )
        theirs.close()
        self.pipe.send((sys.path, os.getpid()))
        self.pipe.send(fn)

    def receive(self) -> Any:
        """The next message, or None when the process is gone."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):  # also in the middle of a message
            return None

    def obituary(self) -> str:
        code = self.process.wait()
        return f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a group: its own children go with it
        self.process.wait()
        self.pipe.close()


class _Pool:
    """Workers that are busy with a job, and workers that rest; started when first needed."""

    def __init__(self, fn: Callable[..., None], count: int, gpus: tuple[int, ...]) -> None:
        self.fn, self.count, self.gpus = fn, count, gpus
        self.idle: list[_Worker] = []
        self.busy: dict[_Worker, tuple[Any, int]] = {}
        self.slots: dict[_Worker, int] = {}

    @property
    def has_room(self) -> bool:
        return len(self.busy) < self.count

    def give(self, job: Any, losses: int) -> None:
        worker = self.idle.pop() if self.idle else self._start()
        self.busy[worker] = (job, losses)
        with suppress(ConnectionError):  # It died while resting: reading from it says so, and the job is sent again.
            worker.pipe.send(job)

    def ready(self) -> list[_Worker]:
        pipes = {worker.pipe: worker for worker in self.busy}
        return [pipes[pipe] for pipe in wait(list(pipes)) if isinstance(pipe, Connection)]

    def rest(self, worker: _Worker) -> None:
        del self.busy[worker]
        self.idle.append(worker)

    def bury(self, worker: _Worker) -> None:
        del self.busy[worker], self.slots[worker]
        worker.stop()

    def stop(self) -> None:
        for worker in (*self.idle, *self.busy):
            worker.stop()

    def _start(self) -> _Worker:
        slot = min(set(range(self.count)) - set(self.slots.values()))
        worker = _Worker(self.fn, {"OMP_NUM_THREADS": "1"} | _gpu(slot, self.gpus))
        self.slots[worker] = slot
        return worker


def _gpu(slot: int, gpus: tuple[int, ...]) -> dict[str, str]:
    """The environment in which worker `slot` sees one GPU."""
    if not gpus:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    index = gpus[slot % len(gpus)]
    return {"CUDA_VISIBLE_DEVICES": visible.split(",")[index] if visible else str(index)}
