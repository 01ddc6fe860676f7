"""The sweep's tables and charts, from records alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from assay.core.run import Record
from assay.core.study import Report
from assay.metrics.intervals import Interval, share, wilson
from assay.report.cells import Cell, cells, varying
from assay.report.charts import interval_lines

GOOD = 0.95
FORMATS = {"val acc": ".4f", "best val acc": ".4f", "full table": ".4f", "epochs to 100 %": ".0f", "params": ".0f"}
NOTE = (
    "± half the 95 % Student t interval over seeds. val acc: of the last epoch, on pairs not trained on. Training "
    "stops where it is 1, and so favours it: full table counts all P^2 pairs. perfect: seeds that got there within the "
    "epochs allowed, with the Wilson interval of their share. epochs to 100 %: of the seeds that got there. effective "
    "rank: exp of the entropy of the squared eigenvalues of a remainder's form, averaged over remainders.\n"
    "Four units are enough for any P (constructive_model): what is missing above that is learning, not room."
)


@dataclass(frozen=True)
class Point:
    """A width in one setting."""

    cell: Cell
    setting: Mapping[str, Any]

    @property
    def width(self) -> int:
        return int(self.cell.options["d_hidden"])

    @property
    def series(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.setting.items()) or f"P={self.cell.options['P']}"

    @property
    def perfect(self) -> int:
        return sum(value == 1 for value in self.cell.values("perfect").values())

    @property
    def share_perfect(self) -> Interval:
        return wilson(self.perfect, len(self.cell.seeds))


def report(records: Sequence[Record], out: Report) -> None:
    found = cells(records)
    columns = varying(found, ignore=("d_hidden",))
    points = [Point(cell, {key: values[i] for key, values in columns.items()}) for i, cell in enumerate(found)]
    series = list(dict.fromkeys(point.series for point in points))
    points.sort(key=lambda point: (series.index(point.series), point.width))
    out.table("modular_sweep", [_row(point) for point in points], formats=FORMATS, note=NOTE)
    out.table(
        "smallest_width",
        [_thresholds([point for point in points if point.series == name]) for name in series],
        note=f"the smallest width tried of which it is true; mean: val acc of {GOOD:g} or more on average over seeds.",
    )
    _chart(points, out, "val_acc", "validation accuracy", bounded=True)
    _perfect(points, out)
    _chart(points, out, "epochs_to_perfect", "epochs to 100 %", caption=" Of the seeds that got there.")
    _chart(points, out, "effective_rank", "effective rank")


def _row(point: Point) -> dict[str, Any]:
    cell = point.cell
    n = len(cell.seeds)
    return {
        **point.setting,
        "d_hidden": point.width,
        "val acc": cell.interval("val_acc"),
        "best val acc": cell.interval("best_val_acc"),
        "full table": cell.interval("full_acc"),
        "perfect": f"{point.perfect}/{n}",
        "share perfect": point.share_perfect if n > 1 else None,
        "epochs to 100 %": cell.interval("epochs_to_perfect"),
        "effective rank": cell.interval("effective_rank"),
        "params": cell.records[0].metrics["params"],
    }


def _thresholds(points: Sequence[Point]) -> dict[str, Any]:
    claims = {
        f"mean >= {GOOD:g}": [p.width for p in points if fmean(p.cell.values("val_acc").values()) >= GOOD],
        "some seed perfect": [p.width for p in points if p.perfect],
        "every seed perfect": [p.width for p in points if p.perfect == len(p.cell.seeds)],
    }
    return {"setting": points[0].series} | {claim: min(widths, default=None) for claim, widths in claims.items()}


def _chart(
    points: Sequence[Point], out: Report, metric: str, title: str, *, bounded: bool = False, caption: str = ""
) -> None:
    """A metric against width, where it was measured."""
    lines, dots = [], []
    for point in points:
        values = point.cell.values(metric)
        if values:
            interval = share(list(values.values())) if bounded else point.cell.interval(metric)
            lines.append({"series": point.series, "d": point.width, "y": interval})
            dots += [{"series": point.series, "d": point.width, "y": v, "seed": seed} for seed, v in values.items()]
    if lines:
        chart = interval_lines(lines, x="d", y="y", series="series", dots=dots, x_title="hidden width", y_title=title)
        out.chart(f"{metric}_by_width", chart, caption=f"{title.capitalize()} against the hidden width.{caption}")


def _perfect(points: Sequence[Point], out: Report) -> None:
    lines = [{"series": point.series, "d": point.width, "y": point.share_perfect} for point in points]
    chart = interval_lines(lines, x="d", y="y", series="series", x_title="hidden width", y_title="P(perfect)")
    caption = "Share of seeds that answer every validation pair within the epochs allowed, with its Wilson interval."
    out.chart("perfect_by_width", chart, caption=caption)
