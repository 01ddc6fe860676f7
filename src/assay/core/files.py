"""Files are written whole or not at all, and read only where they are plain files: a store may be a stranger's."""

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from assay.core.errors import UserError


class NotPlain(ValueError):
    """A link, a pipe, a folder or a device stands where a file is expected."""


def write_file(path: Path, data: bytes) -> None:
    """The only way anything reaches the disk: temporary file in the same folder, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")
    try:
        # What has this name already is a dead process's, or a stranger's link to a file that must not be emptied.
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def open_plain(path: Path) -> BinaryIO:
    """A file opened for reading, unbuffered, without following a link at its end or waiting for a pipe's writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise NotPlain("it is no plain file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlain("it is no plain file")
    return os.fdopen(descriptor, "rb", buffering=0)


def read_plain(path: Path, limit: int | None = None) -> bytes:
    """The bytes of a plain file; one larger than `limit` is refused unread."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise NotPlain(f"it has {size} bytes, more than the {limit} that are read")
        return file.read()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A full disk or a read-only folder, said in one line."""
    try:
        yield
    except OSError as error:
        remedy = {
            errno.ENOSPC: "Free some space, or choose another folder with --out",
            errno.EDQUOT: "Your quota is used up: free some space, or choose another folder with --out",
            errno.EROFS: "The file system is read-only: choose another folder with --out",
            errno.EACCES: "You may not write there: choose another folder with --out",
            errno.ENOTDIR: "A file stands where a folder is needed: choose another folder with --out",
            errno.ELOOP: "A link stands where assay needs a file of its own: remove it, or choose another folder",
        }.get(error.errno or 0, "Choose another folder with --out")
        raise UserError(
            f"cannot write {path}: {error.strerror}. {remedy}, then repeat the command: what was stored is kept."
        ) from None
