"""Turns a section into what the page's templates show: a card, tables with their first columns, and charts.

A table shows its lead columns and folds the others. A chart that is as flat as a line of zeros is named, not drawn.
"""

import base64
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.core.run import Record, finite
from assay.metrics.intervals import Interval
from assay.report.section import Chart, Section, Table, Value
from assay.report.style import Looks, plugin_of
from assay.report.text import Shown, shown
from assay.report.thinning import flat_value

ROWS = 200
"""Most rows of a table on the page; a longer one has a file with all."""
TABLES = 40
"""Most tables of a study on the page; the others are files beside it."""
CHART_BYTES = 1_800_000
"""Most bytes of a page's charts; the rest is not drawn on it."""
COLUMNS = 7
"""Columns that a table shows first where it does not say which."""
CARD_COLUMNS, CARD_ROWS = 3, 5
CARD_SENTENCES, CARD_LETTERS = 3, 360
"""Most sentences of a card, and letters of them all: five cards fit a screen. The first is always there, whole."""
FILES = "report"
"""The folder beside the page with the files of long tables."""
MISSING = 200
"""Most runs without a result that are listed."""
LONG = 160
"""Letters of a table's note from which it is folded."""
Links = Mapping[str, str]
"""The pages of plug-ins by their spellings."""


@dataclass(frozen=True)
class PageCell:
    """One table cell, what it sorts by (a number, or its text), and the page of the plug-in that it names."""

    shown: Shown
    sort: str
    number: bool
    href: str = ""


@dataclass(frozen=True)
class Drawn:
    """A chart as the page holds it."""

    id: str
    name: str
    caption: str
    spec: str
    """Its JSON, safe inside a script element."""

    @property
    def text(self) -> str:
        """What is read out in its place."""
        return f"Chart: {self.caption or self.name} The numbers are in the tables of this section."


@dataclass
class Room:
    """The bytes that are left for a page's charts, and the looks that they share."""

    left: int
    looks: Looks = field(default_factory=Looks)

    def take(self, charts: Sequence[Chart], prefix: str) -> list[Drawn]:
        """Take the charts for which there is room, in their order."""
        taken = []
        for number, chart in enumerate(charts, start=1):
            block = json_block(self.looks.wear(chart.spec))
            if len(block) <= self.left:
                self.left -= len(block)
                taken.append(Drawn(f"{prefix}-chart-{number}", chart.name, chart.caption, block))
        return taken


def room_for(sections: Iterable[Section]) -> Room:
    """The room of a page, whose looks know every series: one colour and shape per plug-in on the whole page."""
    room = Room(CHART_BYTES)
    room.looks.learn(chart.spec for section in sections for chart in section.charts)
    return room


def study_view(
    number: int, study: tuple[str, str, Section], records: Iterable[Record], room: Room, links: Links
) -> dict[str, Any]:
    """What the page shows of one study, the first, the second, ..., given with its question and its section."""
    anchor, (name, question, section) = f"study-{number}", study
    status = Counter(record.status for record in records if record.run.study == name)
    flat = {chart.name: value for chart in section.charts if (value := flat_value(chart.spec)) is not None}
    wanted = [chart for chart in section.charts if chart.name not in flat]
    charts = room.take(wanted, anchor)
    tables = [table_view(name, table, links) for table in section.tables[:TABLES]]
    return {
        "anchor": anchor,
        "name": name,
        "question": question,
        "findings": [finding.sentence for finding in section.findings],
        "done": status["done"],
        "missing": status["failed"] + status["diverged"],
        "tables": tables,
        "more_tables": max(0, len(section.tables) - TABLES),
        "folder": f"{FILES}/{name}",
        "charts": charts,
        "flat": [(name, f"{value:.4g}") for name, value in flat.items()],
        "not_drawn": len(wanted) - len(charts),
        "card": _card(section, charts, tables),
    }


def _card(section: Section, charts: Sequence[Drawn], tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The study on the first screen: its findings, or the lead of its first table, and one chart."""
    named = [chart for finding in section.findings for chart in charts if chart.name == finding.chart]
    first = tables[0] if tables and not section.findings else None
    told = [finding.sentence for finding in section.findings[:CARD_SENTENCES]]
    while len(told) > 1 and sum(map(len, told)) > CARD_LETTERS:
        told.pop()
    return {
        "findings": told,
        "more": len(section.findings) - len(told),
        "columns": first["columns"][: min(CARD_COLUMNS, first["lead"])] if first else [],
        "rows": first["rows"][:CARD_ROWS] if first else [],
        "chart": next(iter([*named, *charts]), None),
    }


def table_view(study: str, table: Table, links: Links) -> dict[str, Any]:
    """A table with its lead columns first; `lead` counts them."""
    columns, lead = folded(table)
    cut = len(table.rows) > ROWS
    rows = [[_cell(table, row, column, links) for column in columns] for row in table.rows[:ROWS]]
    numeric = [any(cell.number for cell in column) for column in zip(*rows, strict=True)]
    text = "" if cut else base64.b64encode(table.csv().encode(errors="backslashreplace")).decode()
    return {
        "name": table.name,
        "note": table.note,
        "long": len(table.note) > LONG,
        "columns": list(zip(columns, numeric, strict=True)),
        "lead": lead,
        "rows": rows,
        "count": len(table.rows),
        "cut": cut,
        "csv": file_of(study, table) if cut else f"data:text/csv;base64,{text}",
    }


def folded(table: Table) -> tuple[list[str], int]:
    """The columns with those of the lead first, and how many those are. One column is never worth a fold."""
    lead = [column for column in table.lead if column in table.columns] or list(table.columns[:COLUMNS])
    rest = [column for column in table.columns if column not in lead]
    return [*lead, *rest], len(lead) + (len(rest) if len(rest) == 1 else 0)


def file_of(study: str, table: Table) -> str:
    return f"{FILES}/{study}/{table.name}.csv"


def _cell(table: Table, row: Mapping[str, Value], column: str, links: Links) -> PageCell:
    value = row[column]
    mean = value.mean if isinstance(value, Interval) else value
    parts = shown(table, row, column)
    if isinstance(mean, int | float):
        return PageCell(parts, repr(float(mean)) if math.isfinite(mean) else "", number=True)
    return PageCell(parts, mean or "", number=False, href=links.get(plugin_of(mean or ""), ""))


def rows_of(table: Table, spellings: Collection[str]) -> tuple[Mapping[str, Value], ...]:
    """The rows that name a plug-in, in whichever column."""
    return tuple(
        row
        for row in table.rows
        if any(isinstance(value, str) and plugin_of(value) in spellings for value in row.values())
    )


def missing_view(records: Sequence[Record]) -> dict[str, Any]:
    """The runs without a result: the first of them, and how many there are."""
    lost = [record for record in records if record.status != "done"]
    runs = []
    for record in lost[:MISSING]:
        error, run = record.error or "", {"id": record.run.id, "label": record.run.label, "status": record.status}
        silent = "a metric was not finite" if record.status == "diverged" else "no message"
        runs.append(run | {"last": [silent, *error.strip().splitlines()][-1], "error": error})
    return {"runs": runs, "count": len(lost)}


def provenance(records: Sequence[Record]) -> dict[str, str]:
    """The versions that the numbers were computed with: all that occur, not just the last."""
    if not records:
        return {}
    made = [record.provenance for record in records]
    status = Counter(record.status for record in records)
    dates = sorted(record.finished for record in records if record.finished)
    numerics = [record.run.numerics for record in records]
    return {
        "records": ", ".join(f"{count} {name}" for name, count in sorted(status.items())),
        "assay": _listed(one.assay for one in made),
        "source of assay": _listed(one.source for one in made),
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


def json_block(value: Any) -> str:
    """Encode JSON so that it is safe inside <script type="application/json">."""
    text = json.dumps(finite(value)[0], separators=(",", ":"), allow_nan=False)  # ASCII: U+2028 and U+2029 are escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
