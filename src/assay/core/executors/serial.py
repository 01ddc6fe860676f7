"""Jobs run one after another in this process: the plain reference, and the one to use under a debugger.

There is no other process to kill a job that ignores its time limit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from assay.core.executors import executors
from assay.core.executors.base import Began, Executor, Limit, Receive, Work, call


@executors.register("serial")
@dataclass(frozen=True, kw_only=True)
class Serial(Executor):
    """One job after another in this process."""

    def slots(self) -> int:
        return 1

    def run(self, fn: Work, jobs: Iterable[Any], emit: Receive, *, limit: Limit = lambda job: None) -> None:
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
