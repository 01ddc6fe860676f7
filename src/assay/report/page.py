"""Builds the HTML page: one file that needs no network.

Foreign text stays inert in three ways: Jinja escapes it in the markup, chart data goes into `application/json` blocks
with `<`, `>` and `&` as \\u003c and so on, and the page's policy allows only scripts whose hash it lists, and no
fetching. The policy needs no 'unsafe-eval', because vega-embed's `ast` mode interprets expressions.
"""

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from assay.core.run import Record, finite
from assay.metrics.intervals import Interval
from assay.report.bundle import bundle
from assay.report.section import Chart, Section, Table, Value
from assay.report.text import Shown, shown

CONTENT_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "base-uri 'none'; form-action 'none'"
)


ROWS = 200
"""Most rows of a table on the page; a longer one has a file with all."""
TABLES = 40
"""Most tables of a study on the page; the others are files beside it."""
MISSING = 200
CHART_BYTES = 1_800_000
"""Most bytes of a page's charts; the rest is not drawn on it."""
FILES = "report"
"""The folder beside the page with the files of long tables."""


def long_tables(sections: Sequence[tuple[str, str, Section]]) -> Iterator[tuple[str, str]]:
    """Yield the path, from the page, and the CSV of each table that is not wholly on it."""
    for study, _, section in sections:
        for place, table in enumerate(section.tables):
            if place >= TABLES or len(table.rows) > ROWS:
                yield _file_of(study, table), table.csv()


def build_page(
    sections: Sequence[tuple[str, str, Section]], records: Sequence[Record], *, title: str = "assay report"
) -> str:
    """Build the page from (study, its question, its section) and the records behind them."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("assay.report", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = [_asset("page.js")]
    if any(section.charts for _, _, section in sections):
        scripts.insert(0, _vega())
    known = {study for study, _, _ in sections}
    missing = [record for record in records if record.status != "done"]
    room = Room(CHART_BYTES)
    page = environment.get_template("page.html.j2").render(
        title=title,
        policy=CONTENT_POLICY.format(scripts=" ".join(map(_hash, scripts))),
        style=_asset("page.css"),
        scripts=scripts,
        studies=[_study(*section, records, room) for section in sections],
        unknown=sorted(Counter(record.run.study for record in records if record.run.study not in known).items()),
        missing=[_missing(record) for record in missing[:MISSING]],
        missing_count=len(missing),
        provenance=_provenance(records) if records else {},
    )
    return page.encode(errors="backslashreplace").decode()  # lone surrogates come from file names that are no UTF-8


def json_block(value: Any) -> str:
    """Encode JSON so that it is safe inside <script type="application/json">."""
    text = json.dumps(finite(value)[0], separators=(",", ":"), allow_nan=False)  # ASCII: U+2028 and U+2029 are escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@dataclass(frozen=True)
class PageCell:
    """One table cell and what it sorts by: a number, or its text."""

    shown: Shown
    sort: str
    number: bool


@dataclass
class Room:
    """The bytes that are left for charts."""

    left: int

    def take(self, charts: Sequence[Chart]) -> list[dict[str, str]]:
        """Take the charts for which there is room, in their order."""
        taken = []
        for chart in charts:
            block = json_block(chart.spec)
            if len(block) <= self.left:
                self.left -= len(block)
                taken.append({"name": chart.name, "caption": chart.caption, "spec": block})
        return taken


def _study(name: str, question: str, section: Section, records: Sequence[Record], room: Room) -> dict[str, Any]:
    status = Counter(record.status for record in records if record.run.study == name)
    charts = room.take(section.charts)
    return {
        "name": name,
        "question": question,
        "done": status["done"],
        "missing": status["failed"] + status["diverged"],
        "tables": [_table(name, table) for table in section.tables[:TABLES]],
        "more_tables": max(0, len(section.tables) - TABLES),
        "folder": f"{FILES}/{name}",
        "charts": charts,
        "not_drawn": len(section.charts) - len(charts),
    }


def _table(study: str, table: Table) -> dict[str, Any]:
    cut = len(table.rows) > ROWS
    rows = [[_cell(table, row, column) for column in table.columns] for row in table.rows[:ROWS]]
    numeric = [any(cell.number for cell in column) for column in zip(*rows, strict=True)]
    return {
        "name": table.name,
        "note": table.note,
        "columns": list(zip(table.columns, numeric, strict=True)),
        "rows": rows,
        "count": len(table.rows),
        "cut": cut,
        "csv": _file_of(study, table) if cut else f"data:text/csv;base64,{_base64(table.csv())}",
    }


def _file_of(study: str, table: Table) -> str:
    return f"{FILES}/{study}/{table.name}.csv"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode(errors="backslashreplace")).decode()


def _cell(table: Table, row: Mapping[str, Value], column: str) -> PageCell:
    value = row[column]
    mean = value.mean if isinstance(value, Interval) else value
    parts = shown(table, row, column)
    if isinstance(mean, int | float):
        return PageCell(parts, repr(float(mean)) if math.isfinite(mean) else "", number=True)
    return PageCell(parts, mean or "", number=False)


def _missing(record: Record) -> dict[str, str]:
    lines = (record.error or "").strip().splitlines()
    return {
        "id": record.run.id,
        "label": record.run.label,
        "status": record.status,
        "last": lines[-1] if lines else "a metric was not finite" if record.status == "diverged" else "no message",
        "error": record.error or "",
    }


def _provenance(records: Sequence[Record]) -> dict[str, str]:
    """The versions that the numbers were computed with: all that occur, not just the last."""
    made = [record.provenance for record in records]
    status = Counter(record.status for record in records)
    dates = sorted(record.finished for record in records if record.finished)
    numerics = [record.run.numerics for record in records]
    return {
        "records": ", ".join(f"{count} {name}" for name, count in sorted(status.items())),
        "assay": _listed(one.assay for one in made),
        "Python": _listed(one.python for one in made),
        "PyTorch": _listed(one.torch for one in made),
        "machine": _listed(f"{one.host} ({one.machine})" for one in made if one.host or one.machine),
        "CPU": _listed(one.cpu for one in made if one.cpu),
        "GPU": _listed(f"{one.gpu} (driver {one.driver}, CUDA {one.cuda})" for one in made if one.gpu),
        "device": _listed(f"{one.device}, {one.dtype}" for one in numerics),
        "computed": f"{_day(dates[0])} to {_day(dates[-1])} UTC" if dates else "",
    }


def _day(moment: str) -> str:
    """2025-06-01T10:20:30+00:00 -> 2025-06-01 10:20; the store writes UTC."""
    return moment[:16].replace("T", " ")


def _listed(values: Iterable[str]) -> str:
    return "; ".join(sorted({value for value in values if value}))


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script."""
    script = bundle()
    assert "</script" not in script.lower(), "the bundle would end its own script element"
    return script


def _asset(name: str) -> str:
    from importlib.resources import files

    return files("assay.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
