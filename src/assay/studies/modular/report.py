"""The sweep's tables and charts, from records and their weights alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean
from typing import Any

from assay.core.run import Record
from assay.core.study import Report
from assay.metrics.intervals import Interval, share, student_t, wilson
from assay.report.cells import Cell, cells, varying
from assay.report.charts import interval_lines
from assay.report.thinning import SETTINGS, evenly, of_all
from assay.studies.modular.figures import capacity, maps, survival
from assay.studies.modular.measures import GOOD
from assay.studies.modular.references import pairs_of, references
from assay.studies.modular.thresholds import from_here_on, half_pass

PARTS = (8, 4, 2, 1)
"""Of the epochs allowed: perfect within an eighth of them, a quarter, ..."""
FORMATS = {
    "val acc": ".4f", "best val acc": ".4f", "test acc": ".4f", "full table": ".4f", "epochs to 100 %": ".0f",
    "params": ".0f",
}  # fmt: skip
ACCURACIES = ("val acc", "test acc", "full table")
NOTE = (
    "± half the 95 % Student t interval over seeds. val acc: of the last epoch, on pairs not trained on. Training "
    "stops where it is 1, and so favours it: test acc is of pairs that nothing was chosen by, full table of all P^2 "
    "pairs. perfect: seeds that got there within the epochs allowed, with the Wilson interval of their share; a seed "
    "that diverged did not. epochs to 100 %: of the seeds that got there. effective rank: exp of the entropy of the "
    "squared eigenvalues of a remainder's form, averaged over remainders.\n"
    "Four units are enough for any P (constructive_model): what is missing above that is learning, not room."
)

SMALLEST = (
    "The smallest width tried from which on every wider one passes too; - where the widest does not. mean: val acc of "
    f"{GOOD:g} or more on average over seeds. half: the width at which half of the runs have that val acc, or are "
    "perfect, by a logistic fit in log width to all runs, with its 95 % interval over resampled seeds, which few seeds "
    "make too narrow, and which has no breadth where all step between the same two widths; < and >: outside the widths "
    "tried. pairs: to train, validate and test on. All of this rests on "
    "those that validate, which each seed draws anew."
)
REFERENCES = (
    "One answer for all: that which fewest training pairs have, and so most of the others; the training pairs by "
    "heart, and that answer for the rest; four units by hand. Scored on the same pairs as the models, seed by seed."
)


@dataclass(frozen=True)
class Point:
    """A width in one setting; its seeds include those that diverged."""

    cell: Cell
    setting: Mapping[str, Any]

    @property
    def width(self) -> int:
        return int(self.cell.options["d_hidden"])

    @cached_property
    def series(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.setting.items()) or f"P={self.cell.options['P']}"

    @property
    def perfect(self) -> int:
        return self.perfect_within(self.cell.options["epochs"])

    @property
    def diverged(self) -> int:
        return sum(record.status == "diverged" for record in self.cell.records)

    def perfect_within(self, epochs: int) -> int:
        """Seeds that answered every validation pair by then."""
        return sum(epoch <= epochs for epoch in self.cell.values("epochs_to_perfect").values())

    def passed(self, *, perfect: bool) -> dict[int, bool]:
        """By seed: perfect, or a validation accuracy that is high. One that diverged did not get there."""
        metric, least = ("epochs_to_perfect", 0.0) if perfect else ("val_acc", GOOD)
        done = {record.run.seed for record in self.cell.records if record.status == "done"}
        values = self.cell.values(metric)
        return {seed: seed in done and values.get(seed, -1.0) >= least for seed in self.cell.seeds}

    def share_perfect(self, epochs: int) -> Interval:
        return wilson(self.perfect_within(epochs), len(self.cell.seeds))


def report(records: Sequence[Record], out: Report) -> None:
    found = cells(records, diverged=True)
    columns = varying(found, ignore=("d_hidden",))
    points = [Point(cell, {key: values[i] for key, values in columns.items()}) for i, cell in enumerate(found)]
    by_series: dict[str, list[Point]] = {}
    for point in points:
        by_series.setdefault(point.series, []).append(point)
    by_series = {name: sorted(own, key=lambda point: point.width) for name, own in by_series.items()}
    points = [point for own in by_series.values() for point in own]
    rows = [_row(point) for point in points]
    out.table("modular_sweep", _without_empty(rows, "test acc", "diverged"), formats=FORMATS, note=NOTE)
    floors = [row for name, own in by_series.items() for row in _references(name, own)]
    out.table(
        "references", _without_empty(floors, "test acc"), formats=dict.fromkeys(ACCURACIES, ".4f"), note=REFERENCES
    )
    smallest = [_thresholds(own) for own in by_series.values()]
    out.table("smallest_width", smallest, note=SMALLEST)
    _chart(points, out, "val_acc", "validation accuracy", bounded=True)
    _perfect(by_series, out)
    capacity({name: [p.cell for p in own] for name, own in by_series.items()}, out, good=GOOD)
    _chart(points, out, "effective_rank", "effective rank")
    several = len(by_series) > 1
    drawn = evenly(list(enumerate(by_series.items(), start=1)), SETTINGS)
    for place, (name, own) in drawn:
        suffix = f"_{place}" if several else ""
        with out.about(" ".join([name, *of_all(len(drawn), len(by_series))]) if several else ""):
            survival([p.cell for p in own], out, suffix=suffix)
            maps([p.cell for p in own], out, suffix=suffix)


def _row(point: Point) -> dict[str, Any]:
    cell = point.cell
    n = len(cell.seeds)
    return {
        **point.setting,
        "d_hidden": point.width,
        "val acc": cell.interval("val_acc"),
        "best val acc": cell.interval("best_val_acc"),
        "test acc": cell.interval("test_acc"),
        "full table": cell.interval("full_acc"),
        "perfect": f"{point.perfect}/{n}",
        "share perfect": wilson(point.perfect, n) if n > 1 else None,
        "diverged": point.diverged or None,
        "epochs to 100 %": cell.interval("epochs_to_perfect"),
        "effective rank": cell.interval("effective_rank"),
        "params": 5 * cell.options["P"] * point.width,
    }


def _without_empty(rows: Sequence[Mapping[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """Rows without those of the columns that no row has."""
    empty = [column for column in columns if all(row[column] is None for row in rows)]
    return [{key: value for key, value in row.items() if key not in empty} for row in rows]


def _references(name: str, points: Sequence[Point]) -> list[dict[str, Any]]:
    seeds = sorted({seed for point in points for seed in point.cell.seeds})
    return [{"setting": name, **row} for row in references(points[0].cell.options, seeds)]


def _thresholds(points: Sequence[Point]) -> dict[str, Any]:
    """From which width on models generalise, and the pairs that this was seen on."""
    train, val, test = pairs_of(points[0].cell.options)
    good, perfect = ({p.width: p.passed(perfect=which) for p in points} for which in (False, True))
    return {
        "setting": points[0].series,
        "pairs": f"{train}/{val}/{test}",
        "seeds": max(len(point.cell.seeds) for point in points),
        f"mean >= {GOOD:g}": from_here_on({p.width: fmean(p.cell.values("val_acc").values()) >= GOOD for p in points}),
        f"half >= {GOOD:g}": str(half_pass(good)),
        "some seed perfect": from_here_on({width: any(runs.values()) for width, runs in perfect.items()}),
        "half perfect": str(half_pass(perfect)),
        "every seed perfect": from_here_on({width: all(runs.values()) for width, runs in perfect.items()}),
    }


def _chart(points: Sequence[Point], out: Report, metric: str, title: str, *, bounded: bool = False) -> None:
    """A metric against width, where it was measured."""
    lines, dots = [], []
    for point in points:
        values = point.cell.values(metric)
        if values:
            interval = partial(share if bounded else student_t, list(values.values()))
            lines.append({"series": point.series, "d": point.width, "y": interval})
            dots += [{"series": point.series, "d": point.width, "y": v, "seed": seed} for seed, v in values.items()]
    if lines:
        chart = interval_lines(lines, x="d", y="y", series="series", dots=dots, x_title="hidden width", y_title=title)
        out.chart(f"{metric}_by_width", chart, caption=f"{title.capitalize()} against the hidden width.")


def _perfect(by_series: Mapping[str, Sequence[Point]], out: Report) -> None:
    """P(perfect within E epochs | d): a chart per E, since intervals of few seeds are wide and would hide each other;
    of several settings, a line for each at all epochs allowed."""
    allowed = {points[0].cell.options["epochs"] for points in by_series.values()}
    budget, parts = max(allowed), PARTS if len(by_series) == 1 else (1,)
    for epochs in sorted({max(1, budget // part) for part in parts}, reverse=True):
        limit = f"{epochs} epochs" if len(allowed) == 1 else "the epochs allowed"
        lines = [
            {"series": name, "d": point.width, "y": point.share_perfect(epochs)}
            for name, points in by_series.items()
            for point in points
        ]
        chart = interval_lines(
            lines, x="d", y="y", series="series", references={"every seed": 1.0}, x_title="hidden width",
            y_title="P(perfect)", title=f"perfect within {limit}",
        )  # fmt: skip
        caption = f"Share of seeds that answer every validation pair within {limit}, with its Wilson interval."
        out.chart("perfect_by_width" if epochs == budget else f"perfect_within_{epochs}", chart, caption=caption)
