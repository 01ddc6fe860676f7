"""A run whose largest tensor alone exceeds the free memory is refused before anything is computed.

Less than that is not judged: a cohort that runs out of memory is halved, a lost worker's job is tried again.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from assay.core.errors import UserError
from assay.core.plugin import registries
from assay.core.run import Run

GROUP = Path("/sys/fs/cgroup")


def free_memory(group: Path = GROUP) -> int | None:
    """Return the bytes that the machine, or the container around this process, has free; None if it does not say."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found[0] = int(lines["MemAvailable"].split()[0]) * 1024  # with what caches would give back
    with suppress(OSError, ValueError):
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(found, default=None)


def check_memory(runs: Sequence[Run]) -> None:
    """Raise for the run with the largest tensor (`Study.largest`) if the free memory cannot hold it."""
    known = registries()["studies"]
    studies = {name: known[name]() for name in {run.study for run in runs}}
    free = free_memory()
    largest = max(runs, key=lambda run: studies[run.study].largest(run), default=None)
    if largest is None or free is None or (needed := studies[largest.study].largest(largest)) <= free:
        return
    raise UserError(f"{largest.label}: one tensor takes {size(needed)}, and {size(free)} are free. Lower its sizes.")


def size(count: int) -> str:
    """`812 MB`, `21.4 GB`, `4.1 TB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count / 1e6:.0f} MB"
