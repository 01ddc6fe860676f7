"""One folder per run; `record.json` is written last, by rename, so its presence means the run is complete.

    results/.store/<study>/<run id>/{record.json, lock, artifacts...}

The folders are the truth, and a reader can use them while a driver writes; an index (assay.core.index) saves reading
all of them where a listing or a label is all that is asked for.
"""

import dataclasses
import errno
import fcntl
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from assay.core.errors import UserError
from assay.core.index import RECORD, record_files, run_names, summaries
from assay.core.run import FORMAT, Provenance, Record, Run, Status, finite
from assay.core.study import CHECKPOINT, Outcome


def write_file(path: Path, data: bytes) -> None:
    """The only way anything reaches the disk: temporary file in the same folder, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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
        }.get(error.errno or 0, "Choose another folder with --out")
        raise UserError(
            f"cannot write {path}: {error.strerror}. {remedy}, then repeat the command: what was stored is kept."
        ) from None


SEVERAL = 10
"""Runs of one prefix that are named, at most."""


class Store:
    """The records under one output folder."""

    def __init__(self, out: Path | str) -> None:
        self.root = Path(out) / ".store"

    def folder(self, run: Run) -> Path:
        return self.root / run.study / run.id

    def get(self, run: Run) -> Record | None:
        """The run's record, if it is complete."""
        return self._read(self.folder(run) / RECORD)

    def commit(self, outcome: Outcome, *, place: int | None = None) -> Record:
        """Store a finished run: its artifacts first, its record last."""
        metrics, whole = finite(dict(outcome.metrics))
        cost, _ = finite(dict(outcome.cost))
        status: Status = "diverged" if outcome.diverged or not whole else "done"
        if outcome.artifacts:  # an older record must not stand beside newer files, should this be cut short
            with disk_errors(self.folder(outcome.run)):
                (self.folder(outcome.run) / RECORD).unlink(missing_ok=True)
        for name, data in outcome.artifacts.items():
            self._write(self.folder(outcome.run) / name, data)
        names = tuple(outcome.artifacts)
        record = Record(outcome.run, status, metrics, cost, None, outcome.provenance, _now(), names, place)
        return self._write_record(record)

    def commit_failure(self, run: Run, error: str, *, place: int | None = None) -> Record:
        """A failed run is a record with its traceback, not a crash; it never replaces a result."""
        stored = self.get(run)
        if stored and stored.status == "done":
            reason = error.strip().splitlines()[-1]
            warnings.warn(f"{run.label} failed ({reason}); its stored result is kept", stacklevel=2)
            return stored
        return self._write_record(Record(run, "failed", {}, {}, error, Provenance.here(), _now(), (), place))

    def records(self, study: str | None = None) -> list[Record]:
        """Every complete record, ordered by study and id."""
        paths = [
            self.root / name / id / RECORD for name in self._studies(study) for id, _ in record_files(self.root / name)
        ]
        return [record for path in paths if (record := self._read(path))]

    def summaries(self, study: str | None = None) -> list[Record]:
        """The same without what was measured, but for a refusal and the seconds it took: for lists, labels and
        estimates."""
        return [record for name in self._studies(study) for record in summaries(self.root / name, self._read)]

    def find(self, prefix: str) -> Record:
        """The one record whose id starts with `prefix`."""
        names = [(name, id) for name in self._studies() for id in run_names(self.root / name) if id.startswith(prefix)]
        there = (record for name, id in names if (record := self._read(self.root / name / id / RECORD)))
        found = list(islice(there, SEVERAL))
        if len(found) != 1:
            ids = ", ".join(record.run.id for record in found) + (", ..." if len(found) == SEVERAL else "")
            problem = f"several runs start with '{prefix}': {ids}" if found else f"no run '{prefix}' in {self.root}"
            raise UserError(f"{problem}. `assay show` lists all.")
        return found[0]

    def _studies(self, study: str | None = None) -> list[str]:
        return [study] if study else run_names(self.root)

    def remove(self, record: Record) -> bool:
        """Remove a run, unless a driver holds it."""
        with self.lock(record.run) as mine, disk_errors(self.folder(record.run)):
            if mine:
                shutil.rmtree(self.folder(record.run))
            return mine

    @contextmanager
    def lock(self, run: Run) -> Iterator[bool]:
        """Hold a run while it is in flight; False when another driver has it. A dead driver's lock is free."""
        path = self.folder(run) / "lock"
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _write(self, path: Path, data: bytes) -> None:
        with disk_errors(path):
            write_file(path, data)

    def _write_record(self, record: Record) -> Record:
        text = json.dumps(record.to_json(), indent=1, allow_nan=False)
        self._write(self.folder(record.run) / RECORD, text.encode())
        if record.status != "failed":
            self.drop_checkpoint(record.run)
        return dataclasses.replace(record, folder=self.folder(record.run))

    def drop_checkpoint(self, run: Run) -> None:
        with disk_errors(self.folder(run)):
            (self.folder(run) / CHECKPOINT).unlink(missing_ok=True)

    def _read(self, path: Path) -> Record | None:
        try:
            data = json.loads(path.read_bytes())
            if isinstance(data, dict) and data.get("format", 0) > FORMAT:
                raise UserError(
                    f"{path} was written by a newer assay (format {data['format']}, this one reads {FORMAT}). "
                    "Upgrade assay, or choose another folder with --out."
                )
            record = Record.from_json(data)
            if record.run.id != path.parent.name or record.run.study != path.parent.parent.name:
                raise ValueError("its id is not its folder's")
            return dataclasses.replace(record, folder=path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._set_aside(path, error)
            return None

    def _set_aside(self, path: Path, error: Exception) -> None:
        """A truncated or foreign record counts as absent; it is kept under another name."""
        aside = next(
            name for n in range(1_000_000) if not (name := path.with_name(f"{RECORD}.unreadable{n or ''}")).exists()
        )
        with disk_errors(path):
            path.replace(aside)
        warnings.warn(f"{path} is not a record ({error}); set aside as {aside.name}", stacklevel=2)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
