"""Writes pages from everything stored under a results folder: one HTML page, or a static site."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from assay.core.declared import declared
from assay.core.errors import UserError
from assay.core.files import check_writable, disk_errors, is_there, write_file
from assay.core.run import Record, Run, as_planned
from assay.core.store import Store, whole
from assay.report.section import Section, report_into
from assay.studies import studies


def existing_store(out: str | Path) -> Store:
    """Return the store of a results folder, or raise a UserError where nothing was ever stored."""
    if not is_there(out, folder=True):
        raise UserError(f"no results folder '{out}'. Run a study first, or name the folder with --out.")
    store = Store(out)
    if not is_there(store.root, folder=True):
        cards = Path(out) / "card"
        there = f" Cards keep theirs apart: --out {cards}." if is_there(Store(cards).root, folder=True) else ""
        raise UserError(
            f"'{out}' has no stored runs. Run a study with --out {out}, or name the folder with --out.{there}"
        )
    return store


def write_page(out: str | Path) -> tuple[Path, list[str]]:
    """Write one HTML page from everything stored under a folder, a section per study with records; also return the
    studies whose section could not be made, which the page says in its place."""
    from assay.report.page import build_page, long_tables

    check_writable(path := Path(out) / "report.html")
    found = _stored(out)
    with disk_errors(path):
        for file, text in long_tables(found.sections):
            write_file(path.parent / file, text.encode())
        write_file(path, build_page(found.sections, found.behind).encode())
    return path, found.failed


def write_site(out: str | Path, folder: str | Path) -> tuple[Path, list[str]]:
    """Write the same as a static site: the cards, a page per study, and one per plug-in that was run."""
    from assay.report.site import build_site, check_folder

    check_folder(Path(folder))
    check_writable(index := Path(folder) / "index.html")
    found = _stored(out)
    with disk_errors(index):
        for file, text in build_site(found.sections, found.behind, found.plugins):
            write_file(index.parent / file, text.encode())
    return index, found.failed


@dataclass
class _Stored:
    """What a page shows of a results folder."""

    sections: list[tuple[str, str, Section]] = field(default_factory=list)
    behind: list[Record] = field(default_factory=list)
    """All records, those with a result without their metrics."""
    plugins: dict[str, list[str]] = field(default_factory=dict)
    """`kind/name` of the plug-ins in each study's records."""
    failed: list[str] = field(default_factory=list)
    """Studies whose section could not be made."""


def _stored(out: str | Path) -> _Stored:
    store, known, found = existing_store(out), studies.names(), _Stored()
    for name in dict.fromkeys((*known, *store.studies())):  # one at a time: all records at once may not fit
        records = as_planned(whole(store.records(name)))
        cls = declared(studies, name) if records and name in known else None
        mine = [record for record in records if cls and (cls.shows_failures or record.status != "failed")]
        if cls and mine:
            section, problem = _section(name, mine)
            found.sections.append((name, cls.question + problem, section))
            found.failed += [name] if problem else []
            versions = {id(record.run.versions): record.run.versions for record in mine}  # shared by many runs
            found.plugins[name] = sorted({key for one in versions.values() for key in one if "/" in key})
        found.behind += _without_measurements(records)
    found.behind.sort(key=lambda record: record.run.study)
    return found


def _section(name: str, records: Sequence[Record]) -> tuple[Section, str]:
    """Make a study's section, and a remark where its report failed: one study must not cost the others their page."""
    section = Section(name)
    try:
        problem = report_into(section, studies[name](), records)
    except UserError as error:
        problem = str(error)
    if problem is None:
        return section, ""
    warnings.warn(f"{name} could not be reported: {problem}", stacklevel=2)
    return section, f" (This section could not be made: {problem})"


def _without_measurements(records: Iterable[Record]) -> Iterator[Record]:
    """Drop the metrics of records, for the part of the page that only counts runs and lists failures."""
    alike: Run | None = None
    for record in records:
        if record.status != "done":
            yield replace(record, metrics={}, cost={}, files={})
            continue
        run = record.run
        if alike is None or alike.numerics is not run.numerics:
            alike = Run(run.study, {}, 0, {}, run.numerics)
        yield Record(alike, "done", {}, {}, provenance=record.provenance, finished=record.finished)
