"""The study's tables and charts, from records and their saved weights alone.

Each seed of a coder counts at the learning rate that left the other seeds the least unexplained variance on validation
rows (report.tuned); a seed that diverged there is counted, and has no score. Coders of one kind at several levels are a
curve over active units; where two curves overlap they are compared at equal numbers of them, seed by seed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from statistics import fmean
from typing import Any

import numpy as np

from assay.core.errors import UserError
from assay.core.plugin import to_json
from assay.core.run import Record, canonical
from assay.core.study import Report
from assay.metrics.intervals import Interval, letters, paired_difference, share, student_t
from assay.metrics.sparsity import stability
from assay.report.cells import Cell, cells, varying
from assay.report.charts import interval_lines
from assay.report.images import pictures, tiled
from assay.report.tuned import Tuned, leave_one_out
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import SparseCoder, TrainedCoder

FORMATS = {
    "L0": ".1f", "FVU": ".3f", "FVU own": ".3f", "probe": ".4f", "1 unit": ".3f", "5 units": ".3f", "dead": ".1f",
    "lr": "g", "atoms": ".3f", "firing F1": ".3f", "stability": ".3f",
    "loss recovered": ".3f",
}  # fmt: skip
NOTE = (
    "± half the 95 % Student t interval over seeds; all on test rows. L0: active units of a row, by firing. FVU: "
    "fraction of variance unexplained by a ridge decoder fitted on training rows to the frozen code, the same way for "
    "every coder. dead: units that fire on no test row. lr: the rate most seeds count at; each seed's is the one with "
    "the least FVU on validation rows over the other seeds, a diverged seed being the worst. * marks the edge of the "
    "rates tried. n: seeds with a score; diverged: seeds without, at the rate the others chose."
)
OPTIONAL = {
    "FVU own": "FVU own: by the coder's own decoder.",
    "probe": "probe: logistic regression, its penalty chosen on validation rows.",
    "1 unit": "1 unit, 5 units: balanced accuracy of class against rest from so many units.",
    "5 units": "",
    "atoms": "atoms: one-to-one matched |cosine| with the true atoms.",
    "firing F1": "firing F1: of the matched units, against the atoms' firing.",
    "loss recovered": "loss recovered: of the cross entropy lost with the layer at its mean, by the ridge decoder.",
    "stability": "stability: one-to-one matched |cosine| of the units of two seeds; with more than 1,024 units, of "
    "1,024 evenly spaced ones of the first seed with any of the second.",
}
"""Columns that are left out where no coder has them, and what they are."""
REFERENCE = "lse_infomax"
TARGETS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
MEASURES = {
    "FVU": "fvu", "probe": "probe_accuracy", "atoms": "atom_cosine", "firing F1": "firing_f1",
    "loss recovered": "loss_recovered_from_mean",
}  # fmt: skip
"""What curves are compared by at equal L0."""
MATCHED = 1024
"""Units that are matched, at most: the time of a matching grows with their cube."""
IMAGES = ("digits", "mnist")
MOST_GRIDS, SHOWN_UNITS = 6, 64
CHARTS = {
    "fvu": "fraction of variance unexplained",
    "probe_accuracy": "probe accuracy",
    "firing_f1": "F1 of firing",
    "loss_recovered_from_mean": "loss recovered",
}


@dataclass(frozen=True)
class Point:
    """A coder at one level, each seed at the rate that the others chose."""

    cell: Tuned
    setting: Mapping[str, Any]
    at_edge: bool

    @cached_property
    def coder(self) -> SparseCoder | None:
        try:
            return sparse_coders.load(self.cell.options["coder"])
        except UserError:  # a foreign coder whose file this command was not given
            return None

    @property
    def label(self) -> str:
        return self.coder.label if self.coder else str(self.cell.options["coder"]["name"])

    @property
    def family(self) -> str:
        """The coder without its level: what a curve is called."""
        if self.coder is None or self.coder.level_option is None:
            return self.label
        plain = type(self.coder)()
        spec = {**self.coder.spec(), self.coder.level_option: to_json(getattr(plain, self.coder.level_option))}
        return str(sparse_coders.load(spec).label)

    @property
    def where(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.setting.items())

    @property
    def is_trained(self) -> bool:
        return self.cell.options["recipe"] is not None

    def agrees_with(self, other: "Point") -> bool:
        """What is fitted at once has no recipe, and stands beside every one."""
        return all(value in (None, other.setting[key]) for key, value in self.setting.items())

    @property
    def l0(self) -> float:
        """Mean over seeds; beyond all others where every seed diverged."""
        return fmean(self.cell.values("l0").values() or [math.inf])


def report(records: Sequence[Record], out: Report) -> None:
    points = chosen(records)
    if not points:
        return
    rows = [_row(point) for point in points]
    empty = {key for key in OPTIONAL if all(row[key] is None for row in rows)}
    note = " ".join([NOTE, *(text for key, text in OPTIONAL.items() if text and key not in empty)])
    out.table("sae", [{k: v for k, v in row.items() if k not in empty} for row in rows], formats=FORMATS, note=note)
    settings = list(dict.fromkeys(point.where for point in points if point.is_trained)) or [points[0].where]
    for place, setting in enumerate(settings):
        here = [point for point in points if point.where == setting or not point.is_trained]
        here = [point for point in here if point.agrees_with(next(p for p in points if p.where == setting))]
        number = f"_{place + 1}" if len(settings) > 1 else ""
        _equal_l0(here, out, number)
        for metric, title in CHARTS.items():
            _pareto(here, out, metric, title, number)
        _features(here, out, number)


def chosen(records: Sequence[Record]) -> list[Point]:
    """One point per coder and setting, each seed at the rate that the other seeds chose by validation FVU. Without
    validation rows there is nothing to choose by, and every rate is a point of its own."""
    found = cells(records, diverged=True)
    trained = [cell for cell in found if cell.options["recipe"] is not None]
    columns = list(varying(trained or found, ignore=("coder", "lr")))
    groups: dict[str, list[tuple[Cell, dict[str, Any]]]] = {}
    everywhere = varying(found, ignore=("coder", "lr"))
    for place, cell in enumerate(found):
        setting = {column: everywhere[column][place] for column in columns}
        if cell.options["recipe"] is None and trained:
            setting |= {column: None for column in columns if column == "version"}  # that of other code
        groups.setdefault(canonical({"coder": cell.options["coder"], "setting": str(setting)}), []).append(
            (cell, setting)
        )
    points = []
    for group in groups.values():
        choosable = any(cell.values("validation_fvu") for cell, _ in group)
        for pairs in [group] if choosable else [[pair] for pair in group]:
            tried = {cell.options["lr"]: {r.run.seed: r for r in cell.records} for cell, _ in pairs}
            tuned = Tuned(tuple(leave_one_out(tried, _worth).values()), tuple(tried))
            points.append(Point(tuned, pairs[0][1], tuned.at_the_edge))
    curves = list(dict.fromkeys((point.where, point.family) for point in points))
    return sorted(points, key=lambda p: (curves.index((p.where, p.family)), p.l0))


def _worth(record: Record) -> float:
    value = record.metrics.get("validation_fvu")
    return -float(value) if isinstance(value, int | float) else -math.inf


def _row(point: Point) -> dict[str, Any]:
    cell = point.cell
    trained = isinstance(point.coder, TrainedCoder)
    rate = f"{cell.rate:g}{'*' if point.at_edge else ''}" if trained else None
    row: dict[str, Any] = {
        "coder": point.label,
        **point.setting,
        "lr": rate,
        "n": len(cell.records),
        "diverged": cell.diverged,
    }
    for column, metric in (
        ("L0", "l0"), ("FVU", "fvu"), ("FVU own", "fvu_own"), ("probe", "probe_accuracy"), ("1 unit", "probe_1_units"),
        ("5 units", "probe_5_units"), ("dead", "dead"), ("atoms", "atom_cosine"), ("firing F1", "firing_f1"),
        ("loss recovered", "loss_recovered_from_mean"),
    ):  # fmt: skip
        row[column] = cell.interval(metric)
    row["stability"] = _stability(cell)
    row["params"] = cell.records[0].metrics["params"] if cell.records else None
    return row


def _stability(cell: Tuned) -> float | None:
    """The mean over pairs of seeds. No interval: pairs share seeds."""
    from assay.studies.sae.fitting import WEIGHTS, weights

    kept = [record for record in cell.records if WEIGHTS in record.artifacts]
    pairs = list(combinations(kept, 2))
    if int(cell.options["d_code"]) > MATCHED:
        pairs = pairs[:1]
    found = [stability(*(weights(record)["directions"].float() for record in pair), most=MATCHED) for pair in pairs]
    return fmean(found) if found else None


def at_l0(points: Sequence[Point], target: float, metric: str) -> dict[int, float]:
    """A curve's metric at a number of active units, seed by seed: linear in log L0 between the two levels around it;
    a seed whose levels do not reach around has none. An end that is missed by 2 % or less is met: TopK with k = 8 has
    an L0 of 7.99 where some rows have fewer units above 0."""
    found = {}
    for seed in sorted({seed for point in points for seed in point.cell.seeds}):
        levels = [(point.cell.values("l0").get(seed), point.cell.values(metric).get(seed)) for point in points]
        curve = sorted((x, y) for x, y in levels if x and y is not None)
        ends = [y for x, y in (curve[:1] + curve[-1:]) if abs(x / target - 1) <= 0.02] if curve else []
        if ends:
            found[seed] = ends[0]
            continue
        for (x0, y0), (x1, y1) in pairwise(curve):
            if x0 <= target <= x1 and x1 > x0:
                weight = math.log(target / x0) / math.log(x1 / x0)
                found[seed] = y0 + weight * (y1 - y0)
                break
    return found


def at_equal_l0(points: Sequence[Point], target: float) -> dict[str, dict[str, dict[int, float]]]:
    """By measure, by family of several levels that reach around the target: the value of each seed."""
    families = {point.family: [p for p in points if p.family == point.family] for point in points}
    curves = {name: levels for name, levels in families.items() if len(levels) > 1}
    return {
        column: {name: values for name, curve in curves.items() if (values := at_l0(curve, target, metric))}
        for column, metric in MEASURES.items()
    }


def _equal_l0(points: Sequence[Point], out: Report, number: str) -> None:
    """Curves at equal L0, their paired difference from the decoder-free coder, and letters."""
    rows = []
    for target in TARGETS:
        at = at_equal_l0(points, target)
        falling = {n: {seed: -value for seed, value in values.items()} for n, values in at["FVU"].items()}
        ranks = letters(falling) if len(falling) > 1 else {}
        for name in at["FVU"]:
            row: dict[str, Any] = {"L0": target, "coder": name, "group": ranks.get(name)}
            for column, found in at.items():
                mine = found.get(name, {})
                row[column] = student_t(list(mine.values())) if mine else None
                row[f"{column} - {REFERENCE}"] = _difference(mine, found.get(REFERENCE, {}), name)
            rows.append(row)
    note = (
        "Interpolated in log L0 between a coder's two nearest levels, seed by seed. Differences are paired over seeds; "
        "coders of one L0 that share a letter are not told apart by FVU (paired t, Holm); a is the best group."
    )
    if rows:
        empty = {key for key in rows[0] if all(row[key] is None for row in rows)}
        kept = [{key: value for key, value in row.items() if key not in empty} for row in rows]
        formats = {f"{key}{tail}": FORMATS[key] for key in MEASURES for tail in ("", f" - {REFERENCE}")}
        out.table(f"equal_l0{number}", kept, formats={"L0": "g", **formats}, note=note)


def _difference(values: Mapping[int, float], reference: Mapping[int, float], name: str) -> Interval | None:
    shared = values.keys() & reference.keys()
    return paired_difference(dict(values), dict(reference)) if shared and name != REFERENCE else None


def _pareto(points: Sequence[Point], out: Report, metric: str, title: str, number: str) -> None:
    lines, dots = [], []
    for point in points:
        values, active = point.cell.values(metric), point.cell.values("l0")
        if not values or point.l0 <= 0:
            continue
        # Three digits: where few things were measured, the axis has a tick for each.
        lines.append({"series": point.family, "x": float(f"{point.l0:.3g}"), "y": share(list(values.values()))})
        seen = [(seed, active[seed], value) for seed, value in values.items() if active[seed] > 0]
        dots += [{"series": point.family, "x": x, "y": y, "seed": seed} for seed, x, y in seen]
    if not lines:
        return
    where = f" {points[0].where}" if number else ""
    chart = interval_lines(
        lines, x="x", y="y", series="series", dots=dots, log_x=True, x_title="active units (L0)", y_title=title
    )
    out.chart(f"{metric}_by_l0{number}", chart, caption=f"{title.capitalize()} against active units.{where}")


def _features(points: Sequence[Point], out: Report, number: str) -> None:
    """What units stand for, as images where inputs are: the middle level of each kind, first seed."""
    from assay.studies.sae.fitting import WEIGHTS, weights

    grids: list[tuple[str, np.ndarray]] = []
    for family in dict.fromkeys(point.family for point in points):
        levels = [p for p in points if p.family == family and p.cell.records]
        levels = [p for p in levels if WEIGHTS in p.cell.records[0].artifacts]
        if levels and len(grids) < MOST_GRIDS:
            point = levels[len(levels) // 2]
            directions = weights(point.cell.records[0])["directions"].float().numpy()[:SHOWN_UNITS]
            side = round(directions.shape[1] ** 0.5)
            if side * side == directions.shape[1] and point.cell.options["data"]["name"] in IMAGES:
                grids.append((point.label, tiled(directions.reshape(-1, side, side), 8)))
    if grids:
        caption = "What units stand for: rows of the decoder, or of the encoder where there is none; each on its scale."
        out.chart(f"features{number}", pictures(grids, columns=3, size=200), caption=caption)
