"""Records that come with assay, so that `assay findings` can be checked where nothing was computed.

src/assay/shipped/<study>.jsonl.xz     a record.json per line; files that runs saved, such as weights, are not there
src/assay/shipped/measured.json        numbers that were measured from those files, each with the hash of its records
src/assay/shipped/durations.json       how long the runs of each claim took, for the list of `assay reproduce`
"""

import hashlib
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from assay.core.errors import UserError
from assay.core.files import disk_errors, read_plain, write_file
from assay.core.reading import LARGEST, parse_record
from assay.core.run import Record, canonical

FOLDER = Path(__file__).parent.parent / "shipped"
MEASURED, DURATIONS = "measured.json", "durations.json"
MOST = 2**28
"""Bytes of records in a file, unpacked."""


def records(study: str, folder: Path | None = None) -> list[Record]:
    """The records of a study that ship, none where there is no file."""
    path = packed_in(folder or FOLDER, study)
    try:
        return list(_parsed(read_plain(path, LARGEST), path))
    except FileNotFoundError:
        return []
    except (OSError, lzma.LZMAError, ValueError) as error:
        advice = " They ship with assay: install it again." if folder is None else ""
        raise UserError(f"cannot read the records {path}: {error}.{advice}") from None


@lru_cache(maxsize=16)
def _parsed(packed: bytes, path: Path) -> tuple[Record, ...]:
    """Kept, since a command or a notebook asks for the records of a study again and again."""
    return tuple(parse_record(line, path) for line in _unpacked(packed).splitlines())


def _unpacked(packed: bytes) -> bytes:
    """Unpack at most MOST bytes: a stranger's card comes with records too, and a kilobyte can hold many megabytes."""
    reader = lzma.LZMADecompressor()
    found = reader.decompress(packed, MOST)
    if not reader.eof:
        raise ValueError(f"it is cut short, or holds more than {MOST // 2**20} MiB")
    if reader.unused_data:
        raise ValueError("something follows its records")
    return found


def packed_in(folder: Path, study: str) -> Path:
    return folder / f"{study}.jsonl.xz"


def write(folder: Path, study: str, found: Iterable[Record]) -> None:
    """Pack records into a folder, each as `_bare` returns it. The same records give the same bytes, and those with
    like options lie together, which takes a sixth off."""
    alike = sorted(map(_bare, found), key=lambda record: (canonical(record.run.options), record.run.id))
    lines = [canonical(record.to_json()) for record in alike]
    packed = lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9 | lzma.PRESET_EXTREME)
    with disk_errors(path := packed_in(folder, study)):
        write_file(path, packed)


def _bare(record: Record) -> Record:
    """Return the record without the name of the machine that computed it and the hashes of files, which do not ship."""
    return replace(record, artifacts=(), files={}, provenance=replace(record.provenance, host=""))


def add(study: str, folder: Path, found: Iterable[Record]) -> None:
    """Add records to those that a folder has of a study, but for runs that failed: that one diverged is a result. Of
    one run the new record is kept. A new record must tell which code made it; many that ship already do not."""
    new = [_bare(record) for record in found if record.status != "failed"]
    there = records(study, folder)
    old = {record.run.id: record for record in (*records(study), *there)}
    untold = [each for each in new if not each.provenance.names_its_code and each != old.get(each.run.id)]
    if untold:
        raise UserError(
            f"records of {study} do not tell which code made them, and so cannot ship: {len(untold)} of {len(new)}, "
            f"the first {untold[0].run.id}. This assay writes a digest of its source into what it computes: remove "
            "them with `assay rm ID`, compute them again, and ship those."
        )
    merged = {record.run.id: record for record in (*there, *new)}
    write(folder, study, merged.values())


SERIES = ("curve", "history")
"""Metrics with a value per epoch or validation: nine tenths of a record, and shipped only where a claim reads them."""


def digest(found: Sequence[Record]) -> str:
    """The hash of what was computed and what came out: a measured number belongs to exactly these records."""
    told = ((record.run.id, {k: v for k, v in record.metrics.items() if k not in SERIES}) for record in found)
    lines = (f"{key} {canonical(metrics)}" for key, metrics in told)
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def measured(folder: Path | None = None) -> dict[str, Mapping[str, Any]]:
    """Digest and check -> `mean`, `low`, `high`, `n`: what was measured from weights that do not ship."""
    try:
        found = json.loads(read_plain((folder or FOLDER) / MEASURED, LARGEST))
    except FileNotFoundError:
        return {}
    return {key_of(entry["claim"], entry["check"], entry["records"]): entry for entry in found}


def durations() -> dict[str, Mapping[str, Any]]:
    """Claim -> `runs`, their `seconds` in all, and the `device` that took them, as the records that ship say."""
    try:
        return json.loads(read_plain(FOLDER / DURATIONS, LARGEST))
    except FileNotFoundError:
        return {}


def key_of(claim: str, check: str, records: str) -> str:
    return f"{claim}\n{check}\n{records}"
