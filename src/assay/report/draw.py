"""Tables and charts from rows: a study's report is columns and charts as data.

table(out, "icl", found, [Column("accuracy", "accuracy", ".4f"), Column("k-params", lambda row: ...)], note=NOTE)
lines(out, "accuracy_by_step", found, lambda row: curve(row, "accuracy"), x_title="training step", caption="...")
for suffix, own in per_setting(found, out): ...
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from assay.core.study import Report
from assay.metrics.intervals import share, student_t
from assay.report.charts import interval_bars, interval_lines
from assay.report.rows import Row, by_setting
from assay.report.thinning import SETTINGS, evenly, of_all

Points = Iterable[tuple[float, Mapping[int, float]]]
"""x and, by seed, y."""


@dataclass(frozen=True)
class Column:
    """One column of a table: its title, and what it shows of a row."""

    title: str
    value: str | Callable[[Row], Any]
    """A metric, shown with its interval over seeds, or a function of the row."""
    format: str = ""
    ceiling: Callable[[Row], float | None] | None = None
    """The best score possible, shown beside the score."""
    always: bool = False
    """Shown even where no row has a value."""

    def of(self, row: Row) -> dict[str, Any]:
        found = {self.title: row.interval(self.value) if isinstance(self.value, str) else self.value(row)}
        return found | {f"{self.title}_ceiling": self.ceiling(row)} if self.ceiling else found


def table(
    out: Report,
    name: str,
    found: Sequence[Row],
    columns: Sequence[Column],
    *,
    note: str = "",
    extra: Sequence[Mapping[str, Any]] = (),
) -> None:
    """A line per row: its names, its setting and the columns; then the `extra` lines, such as untrained references.
    Columns that no line has a value for are left out."""
    made = [{**row.names, **row.setting, **_cells(row, columns)} for row in found]
    keep = {column.title for column in columns if column.always}
    shown = filled([*made, *extra], keep=keep)
    formats = {column.title: column.format for column in columns if column.format}
    if shown:
        out.table(name, shown, formats=formats, note=note)


def _cells(row: Row, columns: Sequence[Column]) -> dict[str, Any]:
    return {key: value for column in columns for key, value in column.of(row).items()}


def filled(found: Sequence[Mapping[str, Any]], *, keep: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The lines of a table with one set of keys, without the columns that no line has a value for."""
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
    bounded: bool = False,
    extra: Sequence[Mapping[str, Any]] = (),
    **looks: Any,
) -> None:
    """A line per series with its interval over seeds as a band and every seed as a dot; nothing where nothing was
    measured. `bounded` scores lie between 0 and 1, and so do their intervals. `extra` lines ({"series", "x", "y"})
    have no seeds: references, published points."""
    interval = share if bounded else student_t
    there = [(series(row), x, by_seed) for row in found for x, by_seed in points(row) if by_seed]
    # A function: intervals of points that are thinned away are never computed.
    drawn: list[Mapping[str, Any]] = [
        {"series": label, "x": x, "y": partial(interval, list(by_seed.values()))} for label, x, by_seed in there
    ]
    dots = [{"series": s, "x": x, "y": y, "seed": seed} for s, x, by_seed in there for seed, y in by_seed.items()]
    if drawn or extra:
        chart = interval_lines([*drawn, *extra], x="x", y="y", series="series", dots=dots, **looks)
        out.chart(name, chart, caption=caption)


def bars(out: Report, name: str, found: Sequence[Row], metric: str, *, caption: str, **looks: Any) -> None:
    """A bar per row with its interval, every seed as a dot; nothing where no row has the metric."""
    there = [row for row in found if row.values(metric)]
    drawn = [{"label": row.label, "y": row.interval(metric)} for row in there]
    dots = [{"label": row.label, "y": y, "seed": seed} for row in there for seed, y in row.values(metric).items()]
    if drawn:
        out.chart(name, interval_bars(drawn, label="label", value="y", dots=dots, **looks), caption=caption)


def per_setting(found: Iterable[Row], out: Report) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each setting that is drawn, and the suffix that tells its charts' names apart ("" where there is
    but one). Captions of charts made meanwhile begin with the setting."""
    settings = list(enumerate(by_setting(found).items(), start=1))
    drawn = evenly(settings, SETTINGS)
    for number, (where, own) in drawn:
        with out.about(" ".join([*where.split(), *of_all(len(drawn), len(settings))])):
            yield (f"_{number}" if len(settings) > 1 else ""), own
