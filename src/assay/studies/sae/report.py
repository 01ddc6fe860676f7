"""The study's tables and charts, from records and their saved weights alone: one row per level (studies.sae.curves),
and coders of one kind at several levels, as curves over active units, compared at equal numbers of them."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from assay.core.run import Record
from assay.core.study import Report
from assay.metrics.intervals import Interval, letters, paired_difference, share
from assay.metrics.sparsity import stability
from assay.report.charts import interval_lines
from assay.report.images import pictures, tiled
from assay.report.thinning import SETTINGS, evenly, of_all
from assay.report.tuned import Tuned
from assay.studies.sae.curves import TARGETS, WIDEST, Point, at_equal_l0, chosen, rate_shown
from assay.vectors.activations import CLEARLY

FORMATS = {
    "L0": ".1f", "FVU": ".3f", "FVU own": ".3f", "probe": ".4f", "1 unit": ".3f", "5 units": ".3f", "dead": ".1f",
    "lr": "g", "atoms": ".3f", "firing F1": ".3f", "stability": ".3f",
    "loss recovered": ".3f",
}  # fmt: skip
NOTE = (
    "± half the 95 % Student t interval over seeds; all on test rows. L0: active units of a row, by firing. FVU: "
    "fraction of variance unexplained by a ridge decoder fitted on training rows to the frozen code, the same way for "
    "every coder. dead: units that fire on no test row. lr: the rate most seeds count at; each seed's is the one with "
    "the least FVU on validation rows over the other seeds, a diverged seed being the worst. *: some seed's is at the "
    "edge of the rates tried. The rate with the least FVU may be the one with the densest code: rows of unequal L0 are "
    "not for comparing. n: seeds with a score; diverged: seeds without, at the rate the others chose."
)
OPTIONAL = {
    "FVU own": "FVU own: by the coder's own decoder.",
    "probe": "probe: logistic regression, its penalty chosen on validation rows.",
    "1 unit": "1 unit, 5 units: balanced accuracy of class against rest from so many units.",
    "5 units": "",
    "atoms": "atoms: one-to-one matched |cosine| with the true atoms.",
    "firing F1": "firing F1: of the matched units, against the atoms' firing.",
    "loss recovered": "loss recovered: of the cross entropy lost with the layer at its mean, by the ridge decoder, "
    f"where that is {CLEARLY:g} nats at least.",
    "stability": "stability: one-to-one matched |cosine| of the units of two seeds; with more than 1,024 units, of "
    "1,024 evenly spaced ones of the first seed with any of the second.",
}
"""Columns that are left out where no coder has them, and what they are."""
REFERENCE = "lse_infomax"
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


def report(records: Sequence[Record], out: Report) -> None:
    points = chosen(records)
    if not points:
        return
    rows = [_row(point) for point in points]
    empty = {key for key in OPTIONAL if all(row[key] is None for row in rows)}
    note = " ".join([NOTE, *(text for key, text in OPTIONAL.items() if text and key not in empty)])
    out.table("sae", [{k: v for k, v in row.items() if k not in empty} for row in rows], formats=FORMATS, note=note)
    settings = list(dict.fromkeys(point.where for point in points if point.is_trained)) or [points[0].where]
    drawn = set(evenly(settings, SETTINGS))
    for place, setting in enumerate(settings):
        here = [point for point in points if point.where == setting or not point.is_trained]
        here = [point for point in here if point.agrees_with(next(p for p in points if p.where == setting))]
        number = f"_{place + 1}" if len(settings) > 1 else ""
        _equal_l0(here, out, number)
        if setting in drawn:
            with out.about(" ".join(of_all(len(drawn), len(settings)))):
                for metric, title in CHARTS.items():
                    _pareto(here, out, metric, title, number)
                _features(here, out, number)


PAIRED = 10
"""Seeds whose codes are compared, each with each."""


def _row(point: Point) -> dict[str, Any]:
    cell = point.cell
    row: dict[str, Any] = {
        "coder": point.label,
        **point.setting,
        "lr": rate_shown(cell),
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
    """The mean over pairs of the first seeds. No interval: pairs share seeds."""
    from assay.studies.sae.fitting import WEIGHTS, weights

    kept = [record for record in cell.records if WEIGHTS in record.artifacts]
    some = kept[: 2 if int(cell.options["d_code"]) > MATCHED else PAIRED]
    directions = [weights(record)["directions"].float() for record in some]
    found = [stability(one, other, most=MATCHED) for one, other in combinations(directions, 2)]
    return fmean(found) if found else None


def _equal_l0(points: Sequence[Point], out: Report, number: str) -> None:
    """Curves at equal L0, their paired difference from the decoder-free coder, and letters."""
    rows = []
    for target in TARGETS:
        at = at_equal_l0(points, target)
        falling = {name: {seed: -value for seed, value in cell.values("fvu").items()} for name, cell in at.items()}
        ranks = letters(falling) if len(falling) > 1 else {}
        for name, cell in at.items():
            row: dict[str, Any] = {"L0": target, "coder": name, "lr": rate_shown(cell), "n": len(cell.seeds)}
            row["group"] = ranks.get(name)
            for column, metric in MEASURES.items():
                row[column] = cell.interval(metric)
                row[f"{column} - {REFERENCE}"] = _difference(at, name, metric)
            rows.append(row)
    note = (
        "Every rate is a curve over those levels of a coder that are not dominated (no more active units and less "
        "validation FVU), read seed by seed: linear in log L0 between two levels that are at most a factor of "
        f"{WIDEST:g} apart, where every seed reaches. lr: the rate with the least validation FVU at that L0 over the "
        "other seeds; *: some seed's is at the edge of the rates tried. Differences are paired over seeds; coders of "
        "one L0 that share a letter are not told apart by FVU (paired t, Holm); a is the best group."
    )
    if rows:
        empty = {key for key in rows[0] if all(row[key] is None for row in rows)}
        empty |= {"n"} if len({row["n"] for row in rows}) == 1 else set()
        kept = [{key: value for key, value in row.items() if key not in empty} for row in rows]
        formats = {f"{key}{tail}": FORMATS[key] for key in MEASURES for tail in ("", f" - {REFERENCE}")}
        out.table(f"equal_l0{number}", kept, formats={"L0": "g", **formats}, note=note)


def _difference(at: Mapping[str, Tuned], name: str, metric: str) -> Interval | None:
    if REFERENCE not in at or name == REFERENCE:
        return None
    values, reference = at[name].values(metric), at[REFERENCE].values(metric)
    return paired_difference(values, reference) if values.keys() & reference.keys() else None


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
    out.chart(
        f"{metric}_by_l0{number}",
        chart,
        caption=f"{title.capitalize()} against active units, each level at its rate in the table.{where}",
    )


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
