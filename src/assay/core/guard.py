"""A small process beside a driver kills its workers, and what they have started, once the driver is gone.

A driver that is killed (SIGKILL, out of memory) cannot stop its workers, and one in C code notices nothing. The guard
reads `+GROUP` and `-GROUP`, process groups that start and end, from a pipe that only the driver holds, and acts
when it closes. A child that a run has put into a session of its own is not found. Runs in the driver's own process have
no group: the programs that they start are known by a mark in their environment, where the system shows that (/proc).
"""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def guard(lines: Iterable[str], mark: str = "") -> None:
    groups = set[int]()
    for line in lines:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(100 if mark else 0):  # some are started while others are killed
        if not sum(_killed(process, mark.encode()) for process in Path("/proc").glob("[0-9]*")):
            break


def _killed(process: Path, mark: bytes) -> bool:
    """Kill a process that has the mark in its environment; return whether it had."""
    with suppress(OSError):  # another user's, or gone
        if mark in (process / "environ").read_bytes().split(b"\0"):
            os.kill(int(process.name), signal.SIGKILL)
            return True
    return False


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A scheduler sends these to all processes of a job; the guard has to outlive them.
        signal.signal(number, signal.SIG_IGN)
    guard(sys.stdin, *sys.argv[1:])
