"""The index holds what listings, labels and estimates need of one study's records, in one file beside their folders.

    results/.store/<study>/.index       a line with the hash of the rest, then {"layout": ..., "settings", "rows"}

It is a cache; the folders are the truth. Every use lists them and stats each record's file (times, size, inode); an
entry that is missing or stale is read from its record, and deleted records are dropped. So an index that is missing,
damaged, of another version or of a read-only store costs time and nothing else. It is plain JSON, replaced by rename:
processes use it concurrently, and the last to write wins.

Runs that differ only in their seed share one entry in `settings`, and one options object in memory.
"""

import gc
import json
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self, get_args, get_type_hints

from assay.core.errors import UserError
from assay.core.files import DAMAGE, read_sealed, write_sealed
from assay.core.grouping import grouped
from assay.core.reading import RUN, fitting, parsed
from assay.core.run import FORMAT, REFUSED, Numerics, Record, Run, Status

RECORD = "record.json"
INDEX = ".index"
LAYOUT = [1, FORMAT, *asdict(Numerics())]
"""An index with another layout, record format or numerics counts as missing."""
WORTHWHILE = 100
"""Least number of records of a study that has an index: fewer are read as quickly."""
SETTLED_NS = 2_000_000_000
"""A file that changed more recently may change again within the clock's resolution: it is not entered yet."""
PER_RECORD = 8192
"""Most bytes of an index for each record: a larger file is not ours."""
Signature = tuple[int, int, int, int]
Read = Callable[[Path], Record | None]


class Row(NamedTuple):
    """A record in the index."""

    id: str
    changed: int
    modified: int
    size: int
    inode: int
    setting: int
    seed: int
    status: str
    finished: str
    refusal: str | None
    place: int | None
    seconds: float | int | None

    @property
    def signature(self) -> Signature:
        return self[1:5]


ROW_TYPES = set(product(*(get_args(hint) or (hint,) for hint in get_type_hints(Row).values())))
STATUS = set(get_args(Status))


@dataclass
class Index:
    """A study's index file, and what was found since it was written."""

    settings: list[Run] = field(default_factory=list)
    """One run of each setting, with any seed."""
    rows: dict[str, Row] = field(default_factory=dict)

    def run(self, row: Row) -> Run:
        alike = self.settings[row.setting]
        run = Run(alike.study, alike.options, row.seed, alike.versions, alike.numerics)
        # The folder's name, which `read` compares: hashing it again would take longer than all else.
        vars(run)["id"] = row.id
        return run

    def summary(self, row: Row) -> Record:
        """Return the record without its measurements."""
        metrics = {} if row.refusal is None else {REFUSED: row.refusal}
        cost = {} if row.seconds is None else {"seconds": row.seconds}
        return Record(self.run(row), row.status, metrics, cost, finished=row.finished, place=row.place)  # type: ignore[arg-type]

    def enter(self, record: Record, signature: Signature, numbers: dict[tuple[str, str], int]) -> Row:
        """Return a row for a record that was read; `numbers` are the places of settings in the list."""
        run = record.run
        number = numbers.setdefault(run.setting, len(self.settings))
        if number == len(self.settings):
            self.settings.append(run)
        return Row(
            run.id, *signature, setting=number, seed=run.seed, status=record.status, finished=record.finished,
            refusal=record.refusal, place=record.place, seconds=record.cost.get("seconds"),
        )  # fmt: skip


def summaries(folder: Path, read: Read) -> list[Record]:
    """Return the study's records without their measurements, ordered by id: id, run, status, times, and the cost in
    seconds. `read` gives the record of a path, or None where there is none."""
    index, rows = _listed(folder, read)
    return [index.summary(row) for row in rows.values()]


def costs(folder: Path, read: Read) -> list[Record]:
    """Return a summary for each setting of the study that has finished runs, with the median of their seconds."""
    index, rows = _listed(folder, read)
    timed = [row for row in rows.values() if row.status == "done" and row.seconds is not None]
    finished = grouped(timed, lambda row: row.setting)
    typical = [some[0]._replace(seconds=median(row.seconds for row in some)) for some in finished.values()]  # type: ignore[type-var]
    return [index.summary(row) for row in typical]


def records(folder: Path, read: Read) -> list[Record]:
    """Return the study's records, ordered by id. For those in the index, the file is read when a measurement is asked
    for: a list of a hundred thousand takes seconds."""
    just_read: dict[str, Record] = {}

    def remembered(path: Path) -> Record | None:
        if (record := read(path)) is not None:
            just_read[path.parent.name] = record
        return record

    index, rows = _listed(folder, remembered)
    return [just_read.get(name) or Stored.of(index.run(row), row, folder / name, read) for name, row in rows.items()]


def _listed(folder: Path, read: Read) -> tuple[Index, dict[str, Row]]:
    """Return every record's row, by id. Brings the index file up to date."""
    files, now = list(record_files(folder)), time.time_ns()
    index = _load(folder / INDEX, len(files))
    numbers: dict[tuple[str, str], int] = {}
    rows: dict[str, Row] = {}
    changed, reused = False, 0
    for name, signature in files:
        row = index.rows.get(name)
        if row is None or row.signature != signature:
            record = read(folder / name / RECORD)
            if record is None:
                continue
            numbers = numbers or {run.setting: number for number, run in enumerate(index.settings)}
            row = index.enter(record, signature or (0, 0, 0, 0), numbers)
            changed |= _settled(signature, now)
        else:
            reused += 1
        rows[name] = row
    if changed or reused < len(index.rows):
        kept = {name: row for name, row in rows.items() if _settled(row.signature, now)}
        if len(kept) >= WORTHWHILE:
            _save(folder / INDEX, Index(index.settings, kept))
    return index, rows


class _Later:
    """A field that is available once its record was read. Has no `__set__`: the value that was read shadows it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, record: Any, owner: type | None = None) -> Any:
        if record is None:
            raise AttributeError(self.name)
        return vars(record.whole())[self.name]


class Stored(Record):
    """A record whose run, status and times come from the index; the rest is read on first use."""

    LATER = ("metrics", "cost", "error", "provenance", "artifacts", "files")
    metrics, cost, error, provenance, artifacts, files = map(_Later, LATER)

    @classmethod
    def of(cls, run: Run, row: Row, folder: Path, read: Read) -> Self:
        made = object.__new__(cls)
        vars(made).update(run=run, status=row.status, finished=row.finished, place=row.place, folder=folder, _read=read)
        return made

    def __eq__(self, other: object) -> bool:
        compared = [f.name for f in fields(Record) if f.compare]
        return isinstance(other, Record) and all(getattr(self, name) == getattr(other, name) for name in compared)

    def whole(self) -> Self:
        """Return the record itself, once its file was read."""
        assert self.folder is not None
        found = vars(self)["_read"](self.folder / RECORD)
        if found is None:
            raise UserError(f"{self.folder} was removed or damaged after it was listed: load the records again.")
        # The status too: a run may have been computed again since it was listed.
        vars(self).update({name: getattr(found, name) for name in (*self.LATER, "status", "finished", "place")})
        return self


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection, which takes a fifth of the time and finds nothing while records are read in bulk."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def record_files(folder: Path) -> Iterator[tuple[str, Signature | None]]:
    """Yield run ids that have a record, in order, and what tells its file from an earlier one of that name; None if it
    is no plain file, or cannot be examined: then reading it says why."""
    base = str(folder)
    for name in names(folder):
        if name.startswith("."):  # locks, and the index
            continue
        try:
            found = os.lstat(f"{base}/{name}/{RECORD}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            yield name, None
            continue
        plain = stat.S_ISREG(found.st_mode)
        yield name, (found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino) if plain else None


def names(folder: Path) -> list[str]:
    """Return what is in a folder, in order; warn where it cannot be listed."""
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in found)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        warnings.warn(f"{folder} cannot be read ({error.strerror}): it is left out", stacklevel=2)
        return []


def _settled(signature: Signature | None, now: int) -> bool:
    return signature is not None and 0 < signature[0] < now - SETTLED_NS


def _load(path: Path, records: int) -> Index:
    """Return the index in the file; an empty one if it is missing or not ours. A stranger may have written it."""
    with suppress(*DAMAGE):
        body = read_sealed(path, PER_RECORD * (records + 1))
        data = parsed(body, {"layout": list, "settings": [list], "rows": [list]})
        if data["layout"] == LAYOUT:
            settings = [_setting(path.parent.name, *entry) for entry in data["settings"]]
            rows = [_row(entry, len(settings)) for entry in data["rows"]]
            return Index(settings, {row.id: row for row in rows})
    return Index()


def _setting(study: str, options: Any, versions: Any, numerics: Any) -> Run:
    fitting({"study": study, "options": options, "seed": 0, "versions": versions, "numerics": numerics}, RUN)
    return Run(study, options, 0, versions, Numerics(**numerics))


def _row(entry: Any, settings: int) -> Row:
    if tuple(map(type, entry)) not in ROW_TYPES:
        raise ValueError("not a row")
    row = Row(*entry)
    if not 0 <= row.setting < settings or row.status not in STATUS or not row.finished.isprintable():
        raise ValueError("not a row")
    return row


def _save(path: Path, index: Index) -> None:
    """Replace the file; a store that cannot be written has no index."""
    used = {number: place for place, number in enumerate(sorted({row.setting for row in index.rows.values()}))}
    settings = [index.settings[number] for number in used]
    data: Mapping[str, Any] = {
        "layout": LAYOUT,
        "settings": [[run.options, run.versions, asdict(run.numerics)] for run in settings],
        "rows": [row._replace(setting=used[row.setting]) for row in index.rows.values()],
    }
    with suppress(OSError):
        write_sealed(path, json.dumps(data, separators=(",", ":"), allow_nan=False).encode())
