"""A control group with a memory limit, for processes that the kernel is to kill; made where this machine allows it."""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench import Cannot, expect, kill

MOUNTS = Path("/proc/mounts")


@dataclass(frozen=True)
class Hierarchy:
    """A mounted tree of control groups that can limit memory."""

    root: Path
    limit: str
    swap: str
    """The names of a group's limit files: memory, and swap."""
    swap_besides: bool
    """Version 2 counts swap apart; version 1 limits the sum of both."""


def hierarchies(mounts: Path = MOUNTS) -> list[Hierarchy]:
    """List the mounted hierarchies, version 2 first. A machine may have both, and limit memory in one of them."""
    found = []
    for line in mounts.read_text().splitlines():
        _, root, kind, options, *_ = line.split()
        if kind == "cgroup2" and "memory" in _words(Path(root) / "cgroup.controllers"):
            found.insert(0, Hierarchy(Path(root), "memory.max", "memory.swap.max", True))
        elif kind == "cgroup" and "memory" in options.split(","):
            found.append(Hierarchy(Path(root), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", False))
    return found


@contextmanager
def memory_group(size: int, mounts: Path = MOUNTS) -> Iterator[Path]:
    """Make a group whose processes may take `size` bytes together, and no swap. At the end it is removed, and processes
    still in it are killed."""
    group = next((made for tree in hierarchies(mounts) if (made := _make(tree, size))), None)
    if group is None:
        raise Cannot("no memory control group may be made here")
    try:
        yield group
    finally:
        _remove(group)


def killed_for_memory(group: Path) -> int:
    """Return how many processes of a group the kernel has killed for its limit."""
    lines = [line.split() for name in ("memory.events", "memory.oom_control") for line in _lines(group / name)]
    return next(int(count) for word, count in lines if word == "oom_kill")


def _make(tree: Hierarchy, size: int) -> Path | None:
    group = tree.root / f"assay-drill-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        if tree.swap_besides and "memory" not in _words(tree.root / "cgroup.subtree_control"):
            (tree.root / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
    except OSError:
        return None
    try:
        (group / tree.limit).write_text(str(size))
        if (group / tree.swap).exists():
            (group / tree.swap).write_text("0" if tree.swap_besides else str(size))
    except OSError:
        group.rmdir()
        return None
    return group


def _remove(group: Path) -> None:
    """Kill a group's processes and remove it: the kernel keeps a group until the last of them is gone."""
    end = time.monotonic() + 10
    while group.exists():
        for pid in map(int, _words(group / "cgroup.procs")):
            if pid:  # 0 is a process that this one cannot name, and to `kill` all of its own group
                kill(pid, signal.SIGKILL)
        with suppress(OSError):
            group.rmdir()
            return
        expect(time.monotonic() < end, f"the control group {group} could not be removed")
        time.sleep(0.1)


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
