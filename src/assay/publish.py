"""What a command found, to where it belongs: tables to standard output, files to the output folder."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assay.progress import say

if TYPE_CHECKING:
    from assay.report.section import Section


def show(section: "Section", out: Path, *, as_json: bool, quiet: bool, page: bool = False) -> None:
    """The section's files into its folder, its tables as text or as one JSON document; `page`: say how to make it."""
    from assay.report.files import write_section
    from assay.report.text import render

    files = write_section(section, out / section.study) if section.tables else []
    if as_json:
        tables = {table.name: section.json_rows(table) for table in section.tables}
        first = next(iter(tables.values()), [])
        found = {"study": section.study, "rows": first, "files": [str(path) for path in files], "tables": tables}
        print(json.dumps(found, allow_nan=False))
        return
    fits = sys.stdout.isatty() or "COLUMNS" in os.environ  # piped tables stay whole unless a width is asked for
    width = shutil.get_terminal_size().columns if fits else None
    print("\n\n".join(render(table, width) for table in section.tables))
    if not quiet:
        hint = f"; `assay report --out {out}` makes the page" if page else ""
        say(f"{len(files)} files in {out / section.study}{hint}")
