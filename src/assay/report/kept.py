"""Keeps sections in the user's cache, so that records that were reported before are not reported again.

A section is a function of the records, their artifacts, the study's options and the code. The name of its file is the
hash of all of these: an edited source file, another version of a library or a changed record is another file, and
nothing kept is ever out of date. With plug-ins from elsewhere (`--plugin`, entry points, a notebook) nothing is kept,
since what their files import is not known. The cache is the user's own: a results folder that came from elsewhere
cannot put anything on the page through it.
"""

import hashlib
import json
import os
import platform
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from assay.core.files import DAMAGE, read_sealed, write_sealed
from assay.core.foreign import loaded_sources
from assay.core.plugin import classes_in_session, registries
from assay.core.run import Record, version_of
from assay.data import places
from assay.metrics.intervals import Interval
from assay.report.section import Chart, Finding, Section, Table

LIBRARIES = ("altair", "matplotlib", "numpy", "safetensors", "scikit-learn", "scipy", "torch", "vl-convert-python")
"""Libraries that reports compute and draw with."""
RUNS, FILES = 2000, 64
"""Most runs of a section that is kept, since their hash takes time too, and most sections."""

Made = tuple[Section, str | None]
"""A section, and why it could not be made."""


def kept(study: str, options: Mapping[str, Any], records: Sequence[Record], make: Callable[[], Made]) -> Made:
    """Return the section of these records: as it was kept, or made now and kept, unless making it said a warning,
    failed, or wrote files that the user named. `options` are those of the study in which it differs from others."""
    path = _place(study, options, records)
    if path is None:
        return make()
    if (found := _read(path, study)) is not None:
        return found, None
    with warnings.catch_warnings(record=True) as heard:
        section, problem = make()
    for each in heard:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if not (heard or problem or section.files):
        _write(path, section)
    return section, problem


def _place(study: str, options: Mapping[str, Any], records: Sequence[Record]) -> Path | None:
    """Return the file of the section; None where not everything that it depends on is known."""
    outside = any(registry.installed for registry in registries().values())
    if len(records) > RUNS or loaded_sources() or classes_in_session() or outside:
        return None
    found = hashlib.sha256()
    try:
        for part in ([_code(), study, options], *([record.to_json(), _artifacts(record)] for record in records)):
            found.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    except (TypeError, ValueError):  # something that the store would not take either
        return None
    return places.cache() / "sections" / f"{found.hexdigest()}.json"


@cache
def _code() -> str:
    """Hash the source of assay, and the versions of what it runs on."""
    root = Path(__file__).parent.parent
    files = sorted(path for path in root.rglob("*") if "__pycache__" not in path.parts and path.is_file())
    found = hashlib.sha256(" ".join([sys.version, platform.machine(), *map(version_of, LIBRARIES)]).encode())
    for path in files:
        found.update(f"\n{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _artifacts(record: Record) -> list[Any]:
    """The artifacts as they lie on disk: changed ones are read again, and those that are gone are missed."""
    if record.folder is None:
        return []
    found: list[Any] = []
    for name in record.artifacts:
        try:
            there = os.lstat(record.folder / name)
            found.append([name, there.st_mode, there.st_size, there.st_mtime_ns])
        except (OSError, ValueError):
            found.append([name])
    return found


def _write(path: Path, section: Section) -> None:
    """Keep a section; where it cannot be written, it is made again the next time."""
    with suppress(OSError, TypeError, ValueError):
        told = {
            "findings": [vars(finding) for finding in section.findings],
            "tables": [asdict(table) for table in section.tables],
            "charts": [vars(chart) for chart in section.charts],
            "documents": {name: text if isinstance(text, str) else text() for name, text in section.documents.items()},
        }
        write_sealed(path, json.dumps(told).encode())
        dated = sorted((other.stat().st_mtime_ns, other) for other in path.parent.glob("*.json"))
        for _, other in dated[:-FILES]:
            other.unlink(missing_ok=True)


def _read(path: Path, study: str) -> Section | None:
    """Return the section of a file; None where there is none, or it cannot be read."""
    with suppress(*DAMAGE):
        told, section = json.loads(read_sealed(path)), Section(study)
        section.findings = [Finding(**finding) for finding in told["findings"]]
        section.charts = [Chart(**chart) for chart in told["charts"]]
        section.documents = told["documents"]
        section.tables = [_table(table) for table in told["tables"]]
        return section
    return None


def _table(told: Mapping[str, Any]) -> Table:
    """The table again; of the values of a table, only an interval is an object in JSON."""
    rows = [
        {key: Interval(**cell) if isinstance(cell, dict) else cell for key, cell in row.items()} for row in told["rows"]
    ]
    return Table(**{**told, "rows": tuple(rows), "lead": tuple(told["lead"])})
