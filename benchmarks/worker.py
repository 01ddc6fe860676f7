"""A process that measures for a benchmark, and a time by which it ends: what fails costs its own number alone."""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

Asked = Callable[..., Any]
"""Asks a worker: (late, function, arguments) -> what it returns, or in one line why there is nothing."""


class Late:
    """Whether the time for all of it is over."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        return self.end - time.monotonic()

    def __call__(self) -> bool:
        return self.left() < 0


class Worker:
    """A process that measures. One in which something failed is replaced, so that a mixer that does not run costs its
    own cell alone."""

    def __init__(self, initializer: Callable[[], None] | None = None) -> None:
        self.initializer = initializer
        self.pool: ProcessPoolExecutor | None = None

    def ask(self, late: Late, measure: Callable[..., Any], *arguments: Any) -> Any:
        if late():
            return "no time"
        if self.pool is None:
            self.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=self.initializer)
        try:
            found = self.pool.submit(measure, *arguments).result()
        except Exception as error:  # noqa: BLE001 - a process that died raises here too
            self.close()
            return one_line(error)
        if isinstance(found, dict) and not found.get("graph", True):
            self.close()
        return found

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


def one_line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return (said[0] if said else type(error).__name__)[:80]
