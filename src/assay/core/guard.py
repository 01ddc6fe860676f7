"""A small process beside a driver kills its workers, and what they have started, once the driver is gone.

A driver that is killed (SIGKILL, out of memory) cannot stop its workers, and one in C code notices nothing. The guard
reads `+GROUP` and `-GROUP`, process groups that start and end, from a pipe that only the driver holds, and acts
when it closes. A child that a run has put into a session of its own is not found.
"""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress


def guard(lines: Iterable[str]) -> None:
    groups = set[int]()
    for line in lines:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A scheduler sends these to all processes of a job; the guard has to outlive them.
        signal.signal(number, signal.SIG_IGN)
    guard(sys.stdin)
