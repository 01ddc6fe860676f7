"""Results leave a command as tables on standard output, files in a folder and failures on standard error."""

import json
import os
import shutil
import sys
from pathlib import Path

from assay.api import Results, Session
from assay.command.progress import say
from assay.report.files import write_section
from assay.report.section import Section, report_into
from assay.report.text import render

PIPED = 118
"""Columns of a table that is piped or redirected, unless COLUMNS says otherwise."""
UNREAD = 141
"""The exit code of a program that writes into a pipe whose reader has left, as the shell reports it."""
NAMED = 4
"""Most requested files whose paths are printed once they are written."""


def publish(session: Session, results: Results, *, as_json: bool, quiet: bool) -> int:
    """Prints a study's tables, writes its files, names its failures, and returns the exit code."""
    study, out = session.plan.study, session.execution.out
    section = Section(study.name)
    settled = [record for record in results if study.shows_failures or record.status != "failed"]
    reported = settled and (study.shows_failures or any(record.status == "done" for record in settled))
    if reported and (problem := report_into(section, study, settled)):
        say(
            f"{study.name} could not be reported: {problem}. Every run is stored; if a record was edited or is not "
            "yours, remove it with `assay rm ID`."
        )
        return 1
    page = f"; `assay report --out {out}` makes the page"
    show(section, study.folder(out), as_json=as_json, quiet=quiet, page=page)
    bad = [record for record in results if record.status != "done"]
    for record in bad:
        reason = (record.error or "a number was not finite").strip().splitlines()[-1]
        say(f"{record.status}: {session.labels[record.run.id]}: {reason} (assay show {record.run.id} --out {out})")
    for path in () if reported else study.promised():
        say(f"{path} was not written: no run came to its end.")
    if getattr(sys.stdout, "lost", False):  # assay.core.streams
        say(f"assay: nobody read the tables to their end. Every run is stored; the files are in {study.folder(out)}.")
        return UNREAD
    return 1 if bad or results.errors else 0


def show(section: Section, folder: Path, *, as_json: bool, quiet: bool, page: str = "") -> None:
    """Writes a section's files into its folder and prints its tables."""
    files = write_section(section, folder) if section.tables else []
    if as_json:
        tables = {table.name: table.json_rows() for table in section.tables}
        first = next(iter(tables.values()), [])
        found = {"study": section.study, "rows": first, "files": [str(path) for path in files], "tables": tables}
        print(json.dumps(found, allow_nan=False), flush=True)
        return
    print("\n\n".join(render(table, _width()) for table in section.tables), flush=True)
    if not quiet:
        asked = files[len(files) - len(section.files) :] if files else []
        say(f"{len(files) - len(asked)} files in {folder}{page}")
        for path in asked[:NAMED]:
            say(f"wrote {path}")
        if len(asked) > NAMED:
            say(f"and {len(asked) - NAMED} more beside them")


def _width() -> int:
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size((PIPED, 24)).columns if known else PIPED
