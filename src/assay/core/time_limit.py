"""The time limit of a job is kept from inside by an alarm that raises.

A run may catch what the alarm raises or be held in C code, where no Python signal handler runs; an executor with
processes of its own then kills the worker (`GRACE` in executors/base.py).
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class RunTimeoutError(BaseException):
    """A job took longer than it may. Like KeyboardInterrupt it is no Exception, so `except Exception` in a study lets
    it through."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"over its limit of {seconds:g} s (--timeout-per-run)")


class TimeLimit:
    """Raises `RunTimeoutError` in a block that takes longer than `seconds`, but never while a message is being sent.

    Half a message would leave the driver waiting for its other half. Blocking the signal in the main thread would not
    do: any other thread takes it, and Python then runs the handler in the main thread all the same. So the handler
    only makes a note while a message is on its way, and the error is raised once it has been sent.

    Signals need the main thread, where workers run their jobs; elsewhere there is no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds if threading.current_thread() is threading.main_thread() else None
        self._over = self._sending = False
        self._previous: Any = None

    def __enter__(self) -> "TimeLimit":
        if self.seconds:
            self._previous = signal.signal(signal.SIGALRM, self._expire)
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.seconds:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._previous)

    def guard(self, emit: Callable[[Any], None]) -> Callable[[Any], None]:
        """Wrap `emit` so that the alarm does not interrupt it."""

        def send(message: Any) -> None:
            if threading.current_thread() is not threading.main_thread():
                emit(message)  # signal handlers run in the main thread alone
                return
            self._sending = True
            try:
                emit(message)
            finally:
                self._sending = False
            if self._over and self.seconds:
                raise RunTimeoutError(self.seconds)

        return send

    def _expire(self, signum: int, frame: FrameType | None) -> None:
        self._over = True
        if not self._sending and self.seconds:
            raise RunTimeoutError(self.seconds)
