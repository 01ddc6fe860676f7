"""The memory that a process may still take on this machine is read from the system, in bytes."""

import os
import resource
from contextlib import suppress
from pathlib import Path


def free_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return what the machine has free for new processes, or the control group of a container or a scheduler, if that
    is less. None if the system does not say."""
    found = [_of_the_machine(proc), *_of_the_groups(proc, groups)]
    return min((size for size in found if size is not None), default=None)


def free_addresses(proc: Path = Path("/proc")) -> int | None:
    """Return what `ulimit -v` leaves to this process; a worker starts with as much. None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = 0
    with suppress(OSError, ValueError, IndexError):
        pages = int((proc / "self" / "statm").read_text().split()[0])
    return max(0, limit - pages * os.sysconf("SC_PAGE_SIZE"))


def _of_the_machine(proc: Path) -> int | None:
    with suppress(OSError, ValueError, KeyError, IndexError):
        lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines() if ":" in line)
        return int(lines["MemAvailable"].split()[0]) * 1024
    with suppress(OSError, ValueError):  # not Linux: the total, since free memory takes another library to know
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_the_groups(proc: Path, groups: Path) -> list[int | None]:
    """Return the free memory of this process's group and of every group around it: each may have a limit."""
    try:
        entries = [line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().splitlines()]
    except OSError:
        return []
    found = list[int | None]()
    for entry in entries:
        if len(entry) != 3 or entry[1] not in ("", "memory"):
            continue
        root = groups / "memory" if entry[1] else groups
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if entry[1] else ("memory.max", "memory.current")
        here = root / entry[2].lstrip("/")
        found += [_left(folder, *names) for folder in (here, *here.parents) if folder.is_relative_to(root)]
    return found


def _left(folder: Path, most: str, used: str) -> int | None:
    """Return the limit less what is used; cached files make room."""
    try:
        limit, held = (folder / most).read_text().strip(), int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
        return None if limit == "max" else max(0, int(limit) - max(0, held - cached))
    except (OSError, ValueError):
        return None


def size(count: int) -> str:
    """`812 MB`, `21.4 GB`, `4.1 TB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count / 1e6:.0f} MB"
