"""Runs in flight are locked through one file per study, where every run is one byte: one descriptor holds any number.

They are POSIX record locks. The system drops a process's locks when it ends, however it ends; it also drops them when
the process closes any descriptor of the file. A process therefore has one descriptor per file, in the table below, and
closes it when it holds nothing more. The table also keeps two sessions of one process apart, which the system does not.

The file stays empty and is never truncated or removed. If someone removes it, locks taken from then on are in a new
file and do not see those in the old one: a run may be computed twice, and its record is still written whole.
"""

import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from assay.core.errors import UserError
from assay.core.files import disk_errors

LOCKS = ".locks"
FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""A link or a pipe in the place of a lock file is neither followed, emptied nor waited for."""
File = tuple[int, int, int]
"""Process, device and inode: a file has many paths, and a forked child none of its parent's locks."""


@dataclass
class _Held:
    descriptors: list[int] = field(default_factory=list)
    places: set[int] = field(default_factory=set)


_TABLE: dict[File, _Held] = {}
_GUARD = threading.Lock()


@dataclass(frozen=True)
class Lock:
    """One locked run."""

    file: File
    place: int

    def release(self) -> None:
        with _GUARD:
            held = _TABLE[self.file]
            held.places.discard(self.place)
            if held.places:
                fcntl.lockf(held.descriptors[-1], fcntl.LOCK_UN, 1, self.place)
            else:
                _close(self.file)


def take(path: Path, run_id: str) -> Lock | None:
    """Lock a run through the lock file of its study; None if another process, or another session here, holds it."""
    place = int(run_id[:15], 16)  # as many hexadecimal digits as a signed 64-bit offset can hold
    with _GUARD:
        file = _opened(path)
        held = _TABLE[file]
        try:
            if place in held.places:
                return None
            fcntl.lockf(held.descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            held.places.add(place)
            return Lock(file, place)
        except (BlockingIOError, PermissionError):  # POSIX lets a system choose between the two
            return None
        finally:
            if not held.places:
                _close(file)


def _opened(path: Path) -> File:
    """Return the entry of the file that has this path now, whichever had it before."""
    try:
        known = _file(path.lstat())
        if known in _TABLE:
            return known
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, FLAGS, 0o666)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is no plain file, where assay keeps its locks: remove it, or choose another --out.")
    # A second descriptor of a file in the table is kept with the first: closing it would drop the locks.
    _TABLE.setdefault(_file(found), _Held()).descriptors.append(descriptor)
    return _file(found)


def _file(found: os.stat_result) -> File:
    return os.getpid(), found.st_dev, found.st_ino


def _close(file: File) -> None:
    for descriptor in _TABLE.pop(file).descriptors:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file of its own until the block ends: of processes that make the same, one does and the others wait."""
    with disk_errors(path):
        descriptor = os.open(path, FLAGS, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # released when the file is closed, also when the process is killed
        yield
    finally:
        os.close(descriptor)
