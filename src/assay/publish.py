"""What a command has found: tables to standard output, files to a folder, failures to standard error."""

import json
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import UserError
from assay.progress import say

if TYPE_CHECKING:
    from assay.api import Results, Session
    from assay.core.run import Record
    from assay.core.study import Study
    from assay.report.section import Section

PIPED = 118
"""Columns of a table that goes into a file or a program, unless COLUMNS says otherwise; machines take --json."""
NAMED = 4
"""Files a command was asked for by name that are named again when they are there, at most."""


def publish(session: "Session", results: "Results", *, as_json: bool, quiet: bool) -> int:
    """Tables to standard output, files to the output folder, failures to standard error."""
    from assay.report.section import Section

    study, out = session.plan.study, session.execution.out
    section = Section(study.name)
    settled = [record for record in results if study.shows_failures or record.status != "failed"]
    reported = settled and (study.shows_failures or any(record.status == "done" for record in settled))
    if reported and not _reported(study, settled, section):
        return 1
    page = f"; `assay report --out {out}` makes the page"
    show(section, study.folder(out), as_json=as_json, quiet=quiet, page=page)
    bad = [record for record in results if record.status != "done"]
    for record in bad:
        reason = (record.error or "a number was not finite").strip().splitlines()[-1]
        say(f"{record.status}: {session.labels[record.run.id]}: {reason} (assay show {record.run.id} --out {out})")
    for path in () if reported else study.promised():
        say(f"{path} was not written: no run came to its end.")
    return 1 if bad else 0


def _reported(study: "Study", records: "Sequence[Record]", section: "Section") -> bool:
    """Whether the study could make its report. Its records are stored either way; metrics of another shape than it
    writes, in a store that was edited or is a stranger's, are said in one line."""
    try:
        study.report(records, section)
        return True
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - a study's report is not ours
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        say(
            f"{study.name} could not be reported: {type(error).__name__}: {error} ({place}). Every run is stored; if a "
            "record was edited or is not yours, remove it with `assay rm ID`."
        )
        return False


def show(section: "Section", folder: Path, *, as_json: bool, quiet: bool, page: str = "") -> None:
    """The section's files into its folder, its tables to standard output."""
    from assay.report.files import write_section
    from assay.report.text import render

    files = write_section(section, folder) if section.tables else []
    if as_json:
        tables = {table.name: section.json_rows(table) for table in section.tables}
        first = next(iter(tables.values()), [])
        found = {"study": section.study, "rows": first, "files": [str(path) for path in files], "tables": tables}
        print(json.dumps(found, allow_nan=False))
        return
    print("\n\n".join(render(table, _width()) for table in section.tables))
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
