"""Files are written completely or not at all, and read only if they are plain files: a store may be a stranger's."""

import errno
import hashlib
import os
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from assay.core.errors import UserError

DAMAGE = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What reading a damaged or foreign file raises, whatever its format; libraries add errors of their own."""
TEXT = 1 << 20
"""Most bytes of a config or a manifest: the longest that ship with assay are a hundredth of it."""


class NotPlain(ValueError):
    """A link, a pipe, a folder or a device is where a file is expected."""


Data = bytes | Iterable[bytes | memoryview]
"""A file's content, whole or in parts: what is too large to be held twice is made while it is written."""


def write_file(path: Path, data: Data) -> None:
    """Write a file by way of a temporary one in the same folder, fsync and rename. Nothing else writes to the disk."""
    write_files({path: data})


def write_files(files: Mapping[Path, Data]) -> None:
    """Write files of which the last says that the others are there. All are on the disk under temporary names before
    the first is renamed, so a full disk leaves the older ones as they were; and the older last one is removed before
    another is replaced, so that it never stands beside newer files if this is interrupted."""
    staged = dict[Path, Path]()
    *others, last = files
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")
            staged[temporary] = path
            # A file of this name is a dead process's, or a stranger's link to a file that must not be emptied.
            temporary.unlink(missing_ok=True)
            with temporary.open("xb") as file:
                file.writelines([data] if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(file.fileno())
        if others:
            last.unlink(missing_ok=True)
        for temporary, path in staged.items():
            temporary.replace(path)
    except BaseException:
        for temporary in staged:
            temporary.unlink(missing_ok=True)
        raise


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading, unbuffered, without following a link at its end or waiting for a pipe's writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise NotPlain("it is no plain file") from None
        raise
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlain(f"it is {'a folder' if stat.S_ISDIR(mode) else 'a pipe or a device'}, not a file")
    return os.fdopen(descriptor, "rb", buffering=0)


def read_plain(path: Path, limit: int | None = None) -> bytes:
    """Return the bytes of a plain file; one larger than `limit` is refused unread."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise NotPlain(f"it has more than {limit} bytes")
        return file.read()


def read_file(path: str | Path, *, limit: int | None = None) -> bytes:
    """Return the bytes of a file that a user names, following links: a regular file of a bounded size, or an OSError
    that says what it is instead. A pipe would make the reader wait for ever, and a device would fill the memory."""
    try:
        return read_plain(Path(os.path.realpath(path)), limit)
    except NotPlain as error:
        raise OSError(errno.EINVAL, str(error)) from None
    except ValueError:  # a NUL, or a surrogate that no file name has
        raise OSError(errno.EINVAL, "no file can have that name") from None


def sha256(path: Path) -> str:
    """Hash a file, once until it changes: every plan asks, and texts and weights are large."""
    there = path.stat()
    return _sha256(path, there.st_ctime_ns, there.st_mtime_ns, there.st_size)


@lru_cache(maxsize=2**16)
def _sha256(path: Path, *signature: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sealed(path: Path, data: bytes) -> None:
    """Write a file of a cache behind a line with its hash."""
    write_file(path, _seal(data) + data)


def read_sealed(path: Path, limit: int | None = None) -> bytes:
    """Return what `write_sealed` wrote; a NotPlain error for a file that was cut short or changed since."""
    found = read_plain(path, limit)
    data = found[len(_seal(b"")) :]
    if found != _seal(data) + data:
        raise NotPlain("it is not what was written")
    return data


def _seal(data: bytes) -> bytes:
    return f"{hashlib.sha256(data).hexdigest()}\n".encode()


def is_there(path: str | Path, *, folder: bool = False) -> bool:
    """Return whether a file (a folder) is here; False too for text that cannot be a path, for which `Path` raises."""
    with suppress(OSError, ValueError):
        return Path(path).is_dir() if folder else Path(path).is_file()
    return False


def exists(path: str | Path) -> bool:
    """Return whether a file or a folder is here."""
    return is_there(path) or is_there(path, folder=True)


def can_be_path(path: str | Path) -> bool:
    """Return whether this can be a path: False for a NUL, half a surrogate pair, or more letters than a name has."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    except ValueError:
        return False
    return True


def reason(error: Exception) -> str:
    """Return what went wrong, in one line of at most 200 characters, without the full stop."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = " ".join(said.split())
    return (line if len(line) <= 200 else f"{line[:200]}...").rstrip(".") or type(error).__name__


def check_writable(path: Path) -> None:
    """Raise a UserError where a file cannot be written, before anything is computed for it; nothing is left behind."""
    with disk_errors(path):
        if not can_be_path(path) or path.is_dir():
            raise OSError(errno.EISDIR, "a folder has that name, or no file can have it")
        above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
        tempfile.TemporaryFile(dir=above).close()  # the mode of a folder does not tell of read-only disks and quotas


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise a one-line UserError for a full disk or a read-only folder."""
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
