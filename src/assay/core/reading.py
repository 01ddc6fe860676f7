"""Files of others are opened here: a regular file of a bounded size, or an OSError that says what it is instead.

A pipe would make the reader wait for ever, a device would fill the memory, and a name from a config file may hold
characters that no path can have. Callers turn the OSError into a UserError that says what the file was wanted for.
"""

import errno
import os
import stat
from pathlib import Path

TEXT = 1 << 20
"""Bytes that a config or a manifest may have: the longest that ship with assay are a hundredth of it."""


def read_file(path: str | Path, *, limit: int | None = None) -> bytes:
    """The bytes of a regular file. Not blocked by a pipe without a writer."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a NUL, or a surrogate that no file name has
        raise OSError(errno.EINVAL, "no file can have that name") from None
    with open(opened, "rb") as file:  # noqa: PTH123 - it closes the descriptor
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
            raise OSError(errno.EINVAL, f"it is {kind}, not a file")
        data = file.read() if limit is None else file.read(limit + 1)
    if limit is not None and len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes")
    return data


def is_there(path: str | Path, *, folder: bool = False) -> bool:
    """Whether it is a file (a folder) here; False too for words that no path can be, which `Path` raises for."""
    try:
        return Path(path).is_dir() if folder else Path(path).is_file()
    except (OSError, ValueError):
        return False


def reason(error: Exception) -> str:
    """What went wrong, in one line of at most 200 characters, without the full stop."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = " ".join(said.split())
    return (line if len(line) <= 200 else f"{line[:200]}...").rstrip(".") or type(error).__name__
