"""Draws tables and charts from rows: a study's report is columns and charts as data.

table(out, "icl", found, [Column("accuracy", "accuracy", ".4f"), Column("k-params", lambda row: ...)], note=NOTE)
lines(out, "accuracy_by_width", found, lambda row: [(8, row.values("accuracy"))], x_title="width", caption="...")
for suffix, own in per_setting(found, out): ...
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from assay.core.study import Report
from assay.metrics.intervals import Interval, share, student_t
from assay.report.charts import interval_bars, interval_lines
from assay.report.rows import Row, by_setting, setup_of
from assay.report.section import CEILING, GROUP
from assay.report.text import is_symmetric
from assay.report.thinning import SETTINGS, evenly, of_all

Points = Iterable[tuple[float, Mapping[int, float]]]
"""Pairs of x and, by seed, y."""


SPREAD = "± half the 95 % Student t interval over seeds"


@dataclass(frozen=True)
class Column:
    """One column of a table: its title, and its value in a row."""

    title: str
    value: str | Callable[[Row], Any]
    """A metric, shown with its interval over seeds, or a function of the row."""
    format: str = ""
    ceiling: Callable[[Row], float | None] | None = None
    """The best score possible, shown beside the score."""
    group: Callable[[Row], str | None] | None = None
    """Letters, shown beside the score: rows that share one are not told apart."""
    share: bool = False
    """A metric between 0 and 1: its interval stays there."""
    always: bool = False
    """A key of the files even where no row has a value."""
    note: str = ""
    """The column's meaning, printed below the table if the column is shown."""
    lead: bool = False
    """Shown first; where a table has such columns, the others are shown on demand."""

    def of(self, row: Row) -> dict[str, Any]:
        metric = self.value
        value = row.interval(metric, bounded=self.share) if isinstance(metric, str) else metric(row)
        beside = {CEILING: self.ceiling, GROUP: self.group}
        return {self.title: value} | {f"{self.title}{suffix}": of(row) for suffix, of in beside.items() if of}


def table(
    out: Report,
    name: str,
    found: Sequence[Row],
    columns: Sequence[Column],
    *,
    note: str = "",
    extra: Sequence[Mapping[str, Any]] = (),
    unsaid: Sequence[str] = (),
    spread: str = SPREAD,
) -> None:
    """Report a line per row: its names, its setting and the columns; then the `extra` lines, such as untrained
    references. Columns without any value are left out. What all rows have in common stands below, as their setup,
    but for the options that are `unsaid`. The note begins with what ± says, the `spread`, where a column has one.
    Where columns `lead`, they come first with what tells the rows apart; the others are shown on demand."""
    cells = [{key: value for column in columns for key, value in column.of(row).items()} for row in found]
    made = [{**row.names, **row.setting, **own} for row, own in zip(found, cells, strict=True)]
    keep = {column.title for column in columns if column.always}
    shown = filled([*made, *extra], keep=keep)
    if not shown:
        return
    formats = {column.title: column.format for column in columns if column.format}
    lead = _lead(shown, columns)

    def noted(there: Collection[str]) -> str:
        """The note for some columns: their meaning, then the setup of all rows."""
        parts = [spread_of(shown, there, spread), note]
        valued = {key for line in shown for key in there if line[key] is not None}
        parts += [column.note for column in columns if column.title in valued]
        return "\n".join(filter(None, [" ".join(filter(None, parts)), setup_of(found, unsaid)]))

    out.table(name, shown, formats=formats, lead=lead, note=noted(shown[0]), lead_note=noted(lead) if lead else "")


def spread_of(lines: Sequence[Mapping[str, Any]], columns: Iterable[str], said: str = SPREAD) -> str:
    """Say what the intervals in these columns are; nothing where no cell has one, as in a table of one seed."""
    held = [value for line in lines for key in columns if isinstance(value := line[key], Interval)]
    bounds = [(one.mean - one.low, one.high - one.mean) for one in held if one.low is not None and one.high is not None]
    if not said or not bounds:
        return ""
    cut = not all(is_symmetric(below, above) for below, above in bounds)
    return f"{said}{', [low, high] where it is not symmetric' * cut}."


def _lead(lines: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> tuple[str, ...]:
    """List the columns shown first: those that lead, after names and settings in which lines differ, and the first
    name; none where no column leads."""
    if not any(column.lead for column in columns):
        return ()
    leading = {column.title for column in columns if column.lead}
    measured = {f"{column.title}{suffix}" for column in columns for suffix in ("", CEILING, GROUP)}
    names = [key for key in lines[0] if key not in measured]
    telling = [key for key in names if len({str(line[key]) for line in lines}) > 1] or names[:1]
    return tuple(key for key in lines[0] if key in leading or key in telling)


def filled(found: Sequence[Mapping[str, Any]], *, keep: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Give all lines of a table the same keys, without the columns that have no value."""
    keep = set(keep)
    keys = dict.fromkeys(key for line in found for key in line)
    there = [key for key in keys if key in keep or any(line.get(key) is not None for line in found)]
    return [{key: line.get(key) for key in there} for line in found]


def lines(
    out: Report,
    name: str,
    found: Sequence[Row],
    points: Callable[[Row], Points],
    *,
    caption: str,
    series: Callable[[Row], str] = lambda row: row.series,
    own_x: Callable[[Row], Mapping[int, float]] | None = None,
    bounded: bool = False,
    extra: Sequence[Mapping[str, Any]] = (),
    **looks: Any,
) -> None:
    """Chart a line per series with its interval over seeds as a band and every seed as a dot; nothing without points.
    `own_x` gives x by seed where x is itself measured: dots are drawn there, and a seed without one has no dot.
    `bounded` scores lie between 0 and 1, and so do their intervals. `extra` lines ({"series", "x", "y"}) have no seeds:
    references, published points."""
    interval = share if bounded else student_t
    there = [
        (row, x, by_seed, own_x(row) if own_x else dict.fromkeys(by_seed, x))
        for row in found
        for x, by_seed in points(row)
        if by_seed
    ]
    # A function: intervals of points that are thinned away are never computed.
    drawn: list[Mapping[str, Any]] = [
        {"series": series(row), "x": x, "y": partial(interval, list(by_seed.values()))} for row, x, by_seed, _ in there
    ]
    dots = [
        {"series": series(row), "x": at[seed], "y": y, "seed": seed, "run": row.run_ids.get(seed)}
        for row, _, by_seed, at in there
        for seed, y in by_seed.items()
        if seed in at
    ]
    if drawn or extra:
        chart = interval_lines([*drawn, *extra], x="x", y="y", series="series", dots=dots, **looks)
        out.chart(name, chart, caption=caption)


def bars(out: Report, name: str, found: Sequence[Row], metric: str, *, caption: str, **looks: Any) -> None:
    """Chart a bar per row with its interval, every seed as a dot; nothing where no row has the metric."""
    there = [row for row in found if row.values(metric)]
    drawn = [{"label": row.label, "y": row.interval(metric)} for row in there]
    dots = [
        {"label": row.label, "y": y, "seed": seed, "run": row.run_ids.get(seed)}
        for row in there
        for seed, y in row.values(metric).items()
    ]
    if drawn:
        out.chart(name, interval_bars(drawn, label="label", value="y", dots=dots, **looks), caption=caption)


def numbered(found: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """Group rows by setting, each with the suffix of its tables' and charts' names: `_1`, `_2`; "" for a single
    setting."""
    settings = list(by_setting(found).values())
    return [(f"_{number}" if len(settings) > 1 else "", own) for number, own in enumerate(settings, start=1)]


def per_setting(found: Iterable[Row], out: Report) -> Iterator[tuple[str, list[Row]]]:
    """Yield the suffix of the charts' names and the rows of each setting that is drawn. Captions of charts made
    meanwhile begin with the setting."""
    settings = numbered(found)
    drawn = evenly(settings, SETTINGS)
    for suffix, own in drawn:
        with out.about(" ".join([*own[0].where.split(), *of_all(len(drawn), len(settings))])):
            yield suffix, own
