"""A section holds one study's tables and charts, collected before anything is printed or written."""

import csv
import io
import math
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.core.errors import UserError
from assay.core.run import Record, finite
from assay.core.study import Study
from assay.core.words import named
from assay.metrics.intervals import Interval
from assay.report.style import Looks, house_spec, notes

CEILING, GROUP = "_ceiling", "_group"
"""Suffixes of keys that are shown beside the score they are named after."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that begin a formula in a spreadsheet; the last four are wide forms of the first."""
NUMBER = re.compile(r"[+-](\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|-", re.ASCII | re.IGNORECASE)
Value = str | int | float | Interval | None


@dataclass(frozen=True)
class Table:
    """Rows with one set of keys."""

    name: str
    rows: tuple[Mapping[str, Value], ...]
    formats: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    lead: tuple[str, ...] = ()
    """The columns that are shown first, the others on demand; empty: all."""
    lead_note: str = ""
    """The note where only those are shown; empty: the whole note."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if set(row) != set(self.keys):
                odd = ", ".join(sorted(set(row) ^ set(self.keys)))
                raise ValueError(f"table '{self.name}': its rows need one set of keys, and not all have: {odd}")
            for key, value in row.items():
                if not isinstance(value, Value):
                    raise TypeError(f"table '{self.name}', column '{key}': a {type(value).__name__} is no table value")
        columns = self.columns
        object.__setattr__(self, "lead", tuple(column for column in columns if column in self.lead))

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.rows[0]) if self.rows else ()

    @property
    def every_column(self) -> tuple[str, ...]:
        """The keys without ceilings and letters, which are shown beside their score."""
        beside = {f"{key}{suffix}" for key in self.keys for suffix in (CEILING, GROUP)}
        return tuple(key for key in self.keys if key not in beside)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns in which some row has something to show."""
        every = self.every_column
        return tuple(key for key in every if any(_there(row[key]) for row in self.rows)) or every

    def json_rows(self) -> list[dict[str, Any]]:
        """Convert rows to JSON values by column; an interval is {"mean", "low", "high", "n"}."""
        plain = [{k: asdict(v) if isinstance(v, Interval) else v for k, v in row.items()} for row in self.rows]
        return [finite(row)[0] for row in plain]

    def csv(self) -> str:
        """Write CSV: a column X of intervals becomes X, X_low, X_high, X_n. Text that a spreadsheet would run as a
        formula begins with an apostrophe, which spreadsheets read as "this is text"; numbers stay numbers."""
        spread = {key for row in self.rows for key, value in row.items() if isinstance(value, Interval)}
        suffixes = {key: ("", "_low", "_high", "_n") if key in spread else ("",) for key in self.keys}
        header = [f"{key}{suffix}" for key in self.keys for suffix in suffixes[key]]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([_text(name) for name in header])
        for row in self.rows:
            writer.writerow([item for key in self.keys for item in _csv(row[key], spread=key in spread)])
        return text.getvalue()


@dataclass(frozen=True)
class Finding:
    """One sentence about what was found, and the name of the chart that shows it, if one does."""

    sentence: str
    chart: str = ""


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite spec in the house style."""

    name: str
    spec: dict[str, Any]
    caption: str = ""


class Section:
    """The `Report` a study writes to (assay.core.study)."""

    def __init__(self, study: str = "") -> None:
        self.study = study
        self.findings: list[Finding] = []
        self.tables: list[Table] = []
        self.charts: list[Chart] = []
        self.looks = Looks()
        self.documents: dict[str, str | Callable[[], str]] = {}
        self.files: list[tuple[Path, bytes]] = []
        self._setting = ""

    @contextmanager
    def about(self, setting: str) -> Iterator[None]:
        before, self._setting = self._setting, setting
        try:
            yield
        finally:
            self._setting = before

    def finding(self, sentence: str, *, chart: str = "") -> None:
        self.findings.append(Finding(sentence, chart))

    def table(
        self,
        name: str,
        rows: Sequence[Mapping[str, Value]],
        *,
        formats: Mapping[str, str] | None = None,
        lead: Sequence[str] = (),
        note: str = "",
        lead_note: str = "",
    ) -> None:
        _check_name(name, [table.name for table in self.tables])
        held = tuple(dict(row) for row in rows)
        self.tables.append(Table(name, held, formats or {}, note, tuple(lead), lead_note))

    def chart(self, name: str, chart: Any, *, caption: str = "") -> None:
        _check_name(name, [chart.name for chart in self.charts])
        spec = self.looks.wear(house_spec(chart))
        told = ": ".join(part for part in (self._setting, caption) if part)
        self.charts.append(Chart(name, spec, " ".join(filter(None, [told, *notes(spec)]))))

    def document(self, name: str, text: str | Callable[[], str]) -> None:
        _check_name(name, list(self.documents))
        self.documents[name] = text

    def file(self, path: Path, data: bytes) -> None:
        self.files.append((path, data))


def _check_name(name: str, taken: Sequence[str]) -> None:
    """Raise for a name that is taken, or that cannot be a file name."""
    if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise ValueError(f"'{name}' names a file: use letters, digits, '_', '-' and '.'")
    if name in taken:
        raise ValueError(f"'{name}' is there already: its file would be overwritten")


def _there(value: Value) -> bool:
    """Return whether there is something to show: neither nothing nor a number that is not finite."""
    mean = value.mean if isinstance(value, Interval) else value
    return mean is not None and not (isinstance(mean, float) and not math.isfinite(mean))


def _csv(value: Value, *, spread: bool) -> list[Any]:
    items: list[Any] = [value, None, None, None] if spread else [value]
    if isinstance(value, Interval):
        items = [value.mean, value.low, value.high, value.n]
    return [None if isinstance(item, float) and not math.isfinite(item) else _text(item) for item in items]


def _text(item: Any) -> Any:
    """Quote text that looks like a formula; `-0.5`, `+1e3` and a lone dash do not."""
    if not isinstance(item, str) or not item.lstrip(" \0").startswith(FORMULA):
        return item
    return item if NUMBER.fullmatch(item) else f"'{item}"


def report_into(section: Section, study: Study, records: Sequence[Record]) -> str | None:
    """Let a study report its records; return why it could not, or None. Records of an edited or foreign store whose
    options or metrics have another shape are left out with a warning. A study's own UserError is raised."""
    try:
        study.report(records, section)
        return None
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - a study's report may raise anything
        problem = _described(error)

    def report(some: Sequence[Record]) -> Section:
        made = Section(section.study)
        study.report(some, made)
        return made

    if (made := _without_odd(report, records)) is None:
        return problem
    vars(section).update(vars(made))
    return None


def _without_odd(report: Callable[[Sequence[Record]], Section], records: Sequence[Record]) -> Section | None:
    """Report the records that can be read, where not all can; a warning names the others. None: they cannot be told
    apart, or nothing is left."""
    odd = _odd(report, records)
    names = [record.run.id for record in odd]
    left = [record for record in records if record.run.id not in names]
    if not odd or not left or _problem(report, left) is not None:
        return None
    warnings.warn(
        f"{odd[0].run.study} is reported without {named(names)}, which cannot be read: {_problem(report, odd[:1])}",
        stacklevel=3,
    )
    return report(left)


def _problem(report: Callable[[Sequence[Record]], object], records: Sequence[Record]) -> str | None:
    """Return why these records cannot be reported. None: they can, or the study raises a UserError of its own."""
    try:
        report(records)
    except UserError:
        return None
    except Exception as error:  # noqa: BLE001 - a study's report may raise anything
        return _described(error)
    return None


def _described(error: Exception) -> str:
    """The error in one line, with the place where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def _odd(report: Callable[[Sequence[Record]], object], records: Sequence[Record]) -> list[Record]:
    """Find the records that cannot be reported even alone, by bisection: a store may have many records, and few odd
    ones."""
    if len(records) == 1:
        return list(records)
    middle = len(records) // 2
    parts = [part for part in (records[:middle], records[middle:]) if _problem(report, part) is not None]
    return [record for part in parts for record in _odd(report, part)]
