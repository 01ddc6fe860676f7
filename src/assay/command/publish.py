"""Results leave a command as findings and tables on standard output, as files, and as failures on standard error."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from assay.api import Results, Session
from assay.command.progress import say
from assay.report.files import write_section
from assay.report.section import Section, report_into
from assay.report.text import render, wrapped

PIPED = 118
"""Columns of a table that is piped or redirected, unless COLUMNS says otherwise."""
UNREAD = 141
"""The exit code of a program that writes into a pipe whose reader has left, as the shell reports it."""
NAMED = 4
"""Most requested files whose paths are printed once they are written."""


Shower = Callable[[Section, Path, str], None]
"""Gets a section, the folder of its files, and what to say of the page."""


def publish(session: Session, results: Results, show: Shower) -> int:
    """Shows a study's section, names its failures, and returns the exit code."""
    study, out = session.plan.study, session.execution.out
    section, problem = Section(study.name), None
    settled = [record for record in results if study.shows_failures or record.status != "failed"]
    reported = settled and (study.shows_failures or any(record.status == "done" for record in settled))
    if reported:
        problem = report_into(section, study, settled)
    if problem:
        say(
            f"{study.name} could not be reported: {problem}. Every run is stored; if a record was edited or is not "
            "yours, remove it with `assay rm ID`."
        )
        return 1
    page = f"; `assay report --out {out}` makes the page"
    show(section, study.folder(out), page)
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


@dataclass(frozen=True)
class Show:
    """Writes a section's files into its folder, and prints its findings and tables."""

    json: bool = False
    quiet: bool = False
    whole: bool = False
    """Whether tables have all their columns."""

    def __call__(self, section: Section, folder: Path, page: str = "") -> None:
        files = write_section(section, folder) if section.tables else []
        if self.json:
            said, paths = [finding.sentence for finding in section.findings], [str(path) for path in files]
            rows = {table.name: table.json_rows() for table in section.tables}
            told = {"findings": said, "rows": next(iter(rows.values()), []), "files": paths, "tables": rows}
            print(json.dumps({"study": section.study, **told}, allow_nan=False), flush=True)
            return
        findings = [wrapped(finding.sentence, screen()) for finding in section.findings]
        tables = [render(table, screen(), whole=self.whole) for table in section.tables]
        print("\n\n".join(filter(None, ["\n".join(findings), *tables])), flush=True)
        if self.quiet:
            return
        asked = files[len(files) - len(section.files) :] if files else []
        say(f"{len(files) - len(asked)} files in {folder}{page}")
        if hidden := 0 if self.whole else sum(len(t.columns) - len(t.lead) for t in section.tables if t.lead):
            say(f"{hidden} more columns are in the files, and printed with --all-columns")
        for path in asked[:NAMED]:
            say(f"wrote {path}")
        if len(asked) > NAMED:
            say(f"and {len(asked) - NAMED} more beside them")


def screen() -> int:
    """The columns to print in: of the terminal, or PIPED where the output goes elsewhere."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size((PIPED, 24)).columns if known else PIPED
