"""The time limit of a job is kept from inside by an alarm that raises.

A run may catch what the alarm raises or be held in C code, where no Python signal handler runs; an executor with
processes of its own then kills the worker (`GRACE` in executors/base.py).
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Emit = Callable[[Any], None]


class RunTimeoutError(BaseException):
    """A job took longer than it may. Like KeyboardInterrupt it is no Exception, so `except Exception` in a study lets
    it through."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"over its limit of {seconds:g} s (--timeout-per-run)")


@contextmanager
def time_limit(seconds: float | None, emit: Emit) -> Iterator[Emit]:
    """Raise `RunTimeoutError` in a block that takes longer than `seconds`, but never while a message is being sent:
    yields `emit`, guarded against that.

    Half a message would leave the driver waiting for its other half. Blocking the signal in the main thread would not
    do: any other thread takes it, and Python then runs the handler in the main thread all the same. So the handler
    only makes a note while a message is on its way, and the error is raised once it has been sent.

    Signals need the main thread, where workers run their jobs; elsewhere there is no limit.
    """
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield emit
        return
    over = sending = False

    def expire(signum: int, frame: FrameType | None) -> None:
        nonlocal over
        over = True
        if not sending:
            raise RunTimeoutError(seconds)

    def send(message: Any) -> None:
        nonlocal sending
        if threading.current_thread() is not threading.main_thread():
            emit(message)  # signal handlers run in the main thread alone
            return
        sending = True
        try:
            emit(message)
        finally:
            sending = False
        if over:
            raise RunTimeoutError(seconds)

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield send
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
