"""Jobs run one after another in this process: the plain reference, and the one to use under a debugger.

There is no other process to kill a job that ignores its time limit. Programs that jobs start end with this process.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from assay.core import guard
from assay.core.executors import executors
from assay.core.executors.base import Began, Executor, Limit, Receive, Work, call

MARK = "ASSAY_STARTED_BY"
"""The environment variable by which the guard knows what jobs have started."""


@executors.register("serial")
@dataclass(frozen=True, kw_only=True)
class Serial(Executor):
    """One job after another in this process."""

    def slots(self) -> int:
        return 1

    def run(self, fn: Work, jobs: Iterable[Any], emit: Receive, *, limit: Limit = lambda job: None) -> None:
        before = os.environ.get(MARK)
        os.environ[MARK], _ = _guarded(os.getpid())
        try:
            self._each(fn, jobs, emit)
        finally:  # what this process starts later is no job's
            if before is None:
                del os.environ[MARK]
            else:
                os.environ[MARK] = before

    def _each(self, fn: Work, jobs: Iterable[Any], emit: Receive) -> None:
        for job in jobs:
            refused: list[BaseException] = []

            def send(message: Any, job: Any = job, refused: list[BaseException] = refused) -> None:
                if isinstance(message, Began):
                    return
                try:
                    emit(job, message)
                except BaseException as error:
                    refused.append(error)
                    raise

            ended = call(fn, job, send)
            if refused:  # an error of the receiver, not of the job
                raise refused[0]
            emit(job, ended)


@cache
def _guarded(process: int) -> tuple[str, object]:
    """Return the mark of this process's programs, and the guard that lives as long as the process."""
    mark = f"{process}-{secrets.token_hex(8)}"
    command = [sys.executable, "-I", "-S", guard.__file__, f"{MARK}={mark}"]
    pipe = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    if pipe.stdin:  # a child that is forked must not hold it open
        os.register_at_fork(after_in_child=pipe.stdin.close)
    return mark, pipe
