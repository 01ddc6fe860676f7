"""What a study found, from Python: `found = assay.run("icl", preset="demo")`, then `found.plot()`, `found.rows()`.

A study's tables, charts and findings are made when they are first asked for, from the records alone.
"""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.core.run import Record, flat
from assay.core.study import Study
from assay.report.section import Section, Table, report_into
from assay.report.text import render, shown
from assay.studies import studies

WIDTH = 118
"""Columns of a table, as of one that is piped."""


class Text(str):
    """A text that a Python session shows as it is, and a notebook as HTML."""

    html: str

    def __new__(cls, text: str, html: str) -> "Text":
        made = super().__new__(cls, text)
        made.html = html
        return made

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True, repr=False)
class Results(Sequence[Record]):
    """Records, and what their study reports of them.

    Shown as the findings and the study's first table, with intervals; `rows()` has the same numbers to compute with,
    `plot()` a chart, `to_pandas()` every number of every record. It is a sequence of records, too."""

    records: list[Record] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Tracebacks of errors after the last run of a cohort was stored, which belong to no record. Why a run failed is in
    its record's `error`."""
    study: Study | None = field(default=None, compare=False)
    """The study that was run; None for records that were loaded, which are reported by the study of each."""

    def __getitem__(self, index: Any) -> Any:
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    @property
    def finding(self) -> Text:
        """What was found, a sentence per line; empty where the study says none of these records."""
        said = [one.sentence for section in self.sections.values() for one in section.findings]
        return Text("\n".join(said), "".join(f"<p>{escape(sentence)}</p>" for sentence in said))

    def table(self, name: str | None = None, *, study: str | None = None) -> Text:
        """Return a table of the study's report, by default the first, with intervals; see `tables`."""
        return _shown(self._table(name, study))

    def rows(self, name: str | None = None, *, study: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of a table as dicts; a score over seeds is an Interval (mean, low, high, n)."""
        return [dict(row) for row in self._table(name, study).rows]

    def plot(self, name: str | None = None, *, study: str | None = None) -> Any:
        """Return a chart of the study's report as an Altair chart, by default the first; see `charts`."""
        import altair

        section = self._section(study)
        if not section.charts:
            raise UserError(f"{section.study} draws no chart of these records.")
        charts = {chart.name: chart for chart in section.charts}
        spec = _chosen(charts, name, "chart").spec
        # Altair would find the class by validating against one after another, which takes seconds.
        kinds = {"layer": "Layer", "hconcat": "HConcat", "vconcat": "VConcat", "concat": "Concat"}
        kind = next((kind for key, kind in kinds.items() if key in spec), "")
        return getattr(altair, f"{kind}Chart").from_dict(spec, validate=False)

    @property
    def tables(self) -> dict[str, list[str]]:
        """The names of each study's tables."""
        return {name: [table.name for table in section.tables] for name, section in self.sections.items()}

    @property
    def charts(self) -> dict[str, list[str]]:
        """The names of each study's charts."""
        return {name: [chart.name for chart in section.charts] for name, section in self.sections.items()}

    @cached_property
    def sections(self) -> dict[str, Section]:
        """The report of each study that has finished runs here."""
        if self.study is not None:
            named = {self.study.name: (self.study, self.records)}
        else:
            names = dict.fromkeys(record.run.study for record in self.records)
            named = {
                name: (studies[name](), [record for record in self.records if record.run.study == name])
                for name in names
                if name in studies.names()
            }
        found = {name: _section(study, records) for name, (study, records) in named.items()}
        return {name: section for name, section in found.items() if section is not None}

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row per record: study, id, seed, status, the code's versions, then options, metrics
        and costs under dotted names; ordered by study, plug-ins and seed. Where a study has an option and a metric of
        one name, that is the metric's (`epochs`: how many it took), and the option is `options.epochs`; the first
        columns keep their names, and what is called like one of them is `options.seed`, `metrics.seed`."""
        import pandas

        ordered = sorted(self.records, key=lambda record: record.run.label)
        measured: dict[str, set[str]] = {}  # over all records of a study: one that failed has no metrics
        for record in ordered:
            measured.setdefault(record.run.study, set()).update(flat(record.metrics))
        return pandas.DataFrame([_row(record, measured[record.run.study]) for record in ordered])

    def __repr__(self) -> str:
        return "\n\n".join([self._counts(), *self._failures(), *(str(part) for part in self._parts())])

    def _repr_html_(self) -> str:
        said = [self._counts(), *self._failures()]
        return "".join(f"<p>{escape(text)}</p>" for text in said) + "".join(part.html for part in self._parts())

    def _counts(self) -> str:
        counts = Counter(f"{record.run.study} {record.status}" for record in self.records)
        return f"Results({', '.join(f'{count} {what}' for what, count in counts.items()) or 'empty'})"

    def _failures(self) -> list[str]:
        """Why runs failed, each reason once."""
        failed = [record for record in self.records if record.status == "failed"]
        last = Counter(((record.error or "").strip() or "no message").splitlines()[-1] for record in failed)
        return [f"failed{f' ({count} runs)' if count > 1 else ''}: {reason}" for reason, count in last.items()]

    def _parts(self) -> list[Text]:
        try:
            tables = [section.tables[0] for section in self.sections.values() if section.tables]
            return [part for part in (self.finding, *map(_shown, tables)) if part]
        except UserError as error:  # a session must be able to show what it holds, whatever it holds
            return [Text(str(error), f"<p>{escape(str(error))}</p>")]

    def _section(self, study: str | None) -> Section:
        if not self.sections:
            raise UserError("no run is done, so there is nothing to report: see .to_pandas() for what was stored.")
        if study is None and len(self.sections) > 1:
            raise UserError(f"there are records of {', '.join(self.sections)}: choose one with study=NAME.")
        return _chosen(self.sections, study, "study")

    def _table(self, name: str | None, study: str | None) -> Table:
        return _chosen({table.name: table for table in self._section(study).tables}, name, "table")


def _chosen(known: dict[str, Any], name: str | None, kind: str) -> Any:
    """Return the first, or the one of that name."""
    if name is not None and name not in known:
        raise UserError(f"no {kind} '{name}'.{nearest(name, known)} There are: {', '.join(known)}.")
    return known[name] if name is not None else next(iter(known.values()))


def _section(study: Study, records: Sequence[Record]) -> Section | None:
    """Return a study's report of its records; None where it has nothing to report."""
    settled = [record for record in records if study.shows_failures or record.status != "failed"]
    if not any(record.status == "done" or study.shows_failures for record in settled):
        return None
    section = Section(study.name)
    if problem := report_into(section, study, settled):
        raise UserError(f"{study.name} could not be reported: {problem}.")
    return section


def _shown(table: Table) -> Text:
    """Return a table as text and as HTML, both with intervals and of the columns that lead."""
    columns, note = table.lead or table.columns, table.lead_note or table.note
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(shown(table, row, column)))}</td>' for column in columns)}</tr>"
        for row in table.rows
    )
    html = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{escape(note)}</p>"
    return Text(render(table, WIDTH, whole=False), html)


def _row(record: Record, measured: Set[str]) -> dict[str, Any]:
    """`measured`: names that are metrics of its study."""
    run = record.run
    code = " ".join(f"{name}@{version[:8]}" for name, version in run.versions.items())
    head = {"study": run.study, "id": run.id, "seed": run.seed, "status": record.status, "code": code}
    head["device"] = run.numerics.device
    taken = head.keys() | measured
    options = {f"options.{key}" if key in taken else key: value for key, value in flat(run.options).items()}
    metrics = {f"metrics.{key}" if key in head else key: value for key, value in flat(record.metrics).items()}
    return head | options | metrics | flat(record.cost, "cost")
