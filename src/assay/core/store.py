"""A store has one folder per run; `record.json` is written last, by rename, so its presence means the run is complete.

    results/.store/<study>/<run id>/{record.json, artifacts...}     results/.store/<study>/.locks

The folders are the truth, and can be read while a driver writes; for lists and labels an index (assay.core.index) saves
reading all of them. A file that is no record, or a record that has lost an artifact, counts as absent with a warning,
and a driver that computes that run again keeps the old file as `record.json.unreadable`.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from assay.core import index, locks
from assay.core.errors import UserError
from assay.core.files import disk_errors, write_file, write_files
from assay.core.index import RECORD, names, uncollected
from assay.core.locks import Lock
from assay.core.reading import NewerRecord, read_record
from assay.core.run import Provenance, Record, Run, Status, finite, not_finite
from assay.core.study import CHECKPOINT, SET_ASIDE, Outcome

__all__ = ["RECORD", "Store", "disk_errors", "whole", "write_file"]

SEVERAL = 10
"""Most runs that an error about an ambiguous prefix names."""


class Store:
    """The records under one output folder."""

    def __init__(self, out: Path | str) -> None:
        self.root = Path(out) / ".store"

    def folder(self, run: Run) -> Path:
        return self.root / run.study / run.id

    def get(self, run: Run) -> Record | None:
        """Return the run's record, if it is complete and its files are there."""
        path = self.folder(run) / RECORD
        try:
            record = self._read(path)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}.") from None
        if record is None or not whole([record]):
            return None
        return dataclasses.replace(record, run=run)

    def commit(self, outcome: Outcome, *, place: int | None = None) -> Record:
        """Store a finished run: its artifacts first, its record last. An older result stays until all are on disk."""
        metrics, all_finite = finite(dict(outcome.metrics))
        cost, _ = finite(dict(outcome.cost))
        status: Status = "diverged" if outcome.diverged or not all_finite else "done"
        saved = outcome.artifacts
        self.make_way(outcome.run, saved)
        files = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in saved.items()}
        named, lost = [outcome.diverged] if isinstance(outcome.diverged, str) else [], not_finite(outcome.metrics)
        named += [f"the metric{'s'[: len(lost) > 1]} {', '.join(lost)}"] if lost else []
        error = f"not finite: {' and '.join(named)}" if named else None
        made = outcome.provenance
        record = Record(outcome.run, status, metrics, cost, error, made, _now(), tuple(saved), place, files=files)
        return self._write(record, saved)

    def commit_failure(self, run: Run, error: str, *, place: int | None = None) -> Record:
        """Store a failed run as a record with its traceback, not a crash; it never replaces a result."""
        stored = self.get(run)
        if stored and stored.status == "done":
            reason = error.strip().splitlines()[-1]
            warnings.warn(f"{run.label} failed ({reason}); its stored result is kept", stacklevel=2)
            return stored
        self.make_way(run)
        return self._write(Record(run, "failed", {}, {}, error, Provenance.here(), _now(), (), place), {})

    def studies(self) -> list[str]:
        """Return the studies that have folders here."""
        return [name for name in names(self.root) if not name.startswith(".")]

    def records(self, study: str | None = None) -> list[Record]:
        """Return every complete record, ordered by study and id."""
        return self._indexed(index.records, study)

    def summaries(self, study: str | None = None) -> list[Record]:
        """Return the records without their metrics, except a refusal and the seconds it took: for lists and labels."""
        return self._indexed(index.summaries, study)

    def costs(self, study: str) -> list[Record]:
        """Return a summary per setting that has finished runs, with their median cost: for estimates."""
        return self._indexed(index.costs, study)

    def _indexed(self, ask: Callable[[Path, index.Read], list[Record]], study: str | None) -> list[Record]:
        with uncollected():
            folders = [self.root / name for name in ([study] if study else self.studies())]
            return [record for folder in folders for record in ask(folder, self._listed)]

    def find(self, prefix: str) -> Record:
        """Return the one record whose id starts with `prefix`."""
        named = ((study, name) for study in self.studies() for name in names(self.root / study))
        paths = (self.root / study / name / RECORD for study, name in named if name.startswith(prefix))
        found = list(islice((record for path in paths if (record := self._listed(path))), SEVERAL))
        if len(found) != 1:
            ids = ", ".join(record.run.id for record in found) + (", ..." if len(found) == SEVERAL else "")
            problem = f"several runs start with '{prefix}': {ids}" if found else f"no run '{prefix}' in {self.root}"
            raise UserError(f"{problem}. `assay show` lists all.")
        return found[0]

    def remove(self, record: Record) -> bool:
        """Remove a run, unless another process has locked it."""
        with self.lock(record.run) as mine, disk_errors(self.folder(record.run)):
            if mine:
                folder = self.folder(record.run)
                with suppress(FileNotFoundError):
                    (Path.unlink if folder.is_symlink() else shutil.rmtree)(folder)
            return mine

    def take(self, run: Run) -> Lock | None:
        """Lock a run that is to be computed; None while another process has it locked. A dead process holds no lock."""
        folder = self.folder(run)
        with disk_errors(folder.parent / locks.LOCKS):
            return locks.take(folder.parent / locks.LOCKS, run.id)

    @contextmanager
    def lock(self, run: Run) -> Iterator[bool]:
        """Lock a run for a while; yields False while another process has it locked."""
        held = self.take(run)
        try:
            yield held is not None
        finally:
            if held:
                held.release()

    def _write(self, record: Record, artifacts: Mapping[str, bytes]) -> Record:
        text = json.dumps(record.to_json(), indent=1, allow_nan=False)
        folder = self.folder(record.run)
        with disk_errors(folder):
            write_files({folder / name: data for name, data in (*artifacts.items(), (RECORD, text.encode()))})
        if record.status != "failed":
            self.drop_checkpoint(record.run)
        return dataclasses.replace(record, folder=self.folder(record.run))

    def has_checkpoint(self, run: Run) -> bool:
        """Return whether an interrupted process left a checkpoint beside the run; it may be of other runs besides."""
        return (self.folder(run) / CHECKPOINT).exists()

    def drop_checkpoint(self, run: Run) -> None:
        """Remove the checkpoint: the run is stored, or starts anew."""
        with disk_errors(self.folder(run)):
            for path in (self.folder(run) / name for name in (CHECKPOINT, CHECKPOINT + SET_ASIDE)):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def _listed(self, path: Path) -> Record | None:
        """Return the record for a list, or None: one that is unreadable or newer does not stop the others."""
        try:
            return self._read(path)
        except OSError as error:
            warnings.warn(f"{path} cannot be read ({error.strerror}): it is left out", stacklevel=2)
        except NewerRecord as error:
            warnings.warn(f"one record is left out: {str(error).rstrip('.')}", stacklevel=2)
        return None

    def _read(self, path: Path) -> Record | None:
        try:
            return read_record(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            warnings.warn(f"{path} is not a record ({error}): it counts as absent", stacklevel=2)
            return None

    def make_way(self, run: Run, names: Iterable[str] = ()) -> None:
        """Rename whatever is in the place of a run's folder, of its files or of its record, before they are written."""
        folder = self.folder(run)
        if folder.is_symlink() or not folder.is_dir():  # what is saved in a link would replace files of others
            _set_aside(folder, "no folder", as_name=f".{folder.name}")  # which no list reads
        for path in (folder / name for name in names):
            if path.is_symlink() or not path.is_file():
                _set_aside(path, "no file")
        try:
            read_record(folder / RECORD)
        except (OSError, ValueError) as error:
            _set_aside(folder / RECORD, f"not a record ({error})")


def _set_aside(path: Path, why: str, *, as_name: str = "") -> None:
    """Rename what is there, if something is."""
    if os.path.lexists(path):
        free = (path.with_name(f"{as_name or path.name}{SET_ASIDE}{n or ''}") for n in range(1_000_000))
        aside = next(name for name in free if not os.path.lexists(name))
        with disk_errors(path):
            path.replace(aside)
        warnings.warn(f"{path} is {why}; set aside as {aside.name}", stacklevel=2)


def whole(records: Iterable[Record]) -> list[Record]:
    """Return the records whose files are all there; warn about the others."""
    found = []
    for record in records:
        if name := record.missing():
            warnings.warn(
                f"run {record.run.id} has lost its file {name}, or it is not what was written: it counts as absent and "
                "is computed again when asked for",
                stacklevel=2,
            )
        else:
            found.append(record)
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
