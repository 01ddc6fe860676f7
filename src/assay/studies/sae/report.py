"""The study's tables and charts: columns and charts as data, drawn from rows.

A row is a coder at one level (studies.sae.curves). The levels of a coder make a curve over active units, and curves are
compared where they have equally many."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean

import numpy as np

from assay.core.grouping import grouped
from assay.core.run import Record
from assay.core.study import Report
from assay.data.splice import CLEARLY
from assay.metrics import sparsity
from assay.report.draw import Column, Points, lines, numbered, per_setting, table
from assay.report.images import pictures, tiled
from assay.report.rows import Row, by_setting
from assay.report.sentences import groups
from assay.studies.sae.curves import TARGETS, WIDEST, at_equal_l0, beside_every_recipe, chosen, l0, rate_shown
from assay.studies.sae.findings import FVU, less, say
from assay.studies.sae.planted import planted, planted_tables
from assay.studies.sae.weights import WEIGHTS, weights

NOTE = (
    "All on test rows, the same for every seed: what other rows would change is in no interval. "
    "L0: active units of a row, by firing. FVU: "
    "fraction of variance unexplained by a ridge decoder fitted on training rows to the frozen code, the same way for "
    "every coder. lr: the rate most seeds count at; each seed's is the one with "
    "the least FVU on validation rows over the other seeds, a diverged seed being the worst. *: some seed's is at the "
    "edge of the rates tried. The rate with the least FVU may be the one with the densest code: rows of unequal L0 are "
    "not for comparing."
)
EQUAL = (
    "Every rate is a curve over those levels of a coder that are not dominated (no more active units and less "
    "validation FVU), read seed by seed: linear in log L0 between two levels that are at most a factor of "
    f"{WIDEST:g} apart, where every seed reaches. lr: the rate with the least validation FVU at that L0 over the "
    "other seeds; *: some seed's is at the edge of the rates tried. Differences are paired over seeds; coders of "
    "one L0 that share a letter are not told apart by FVU (paired t, Holm); a is the best group."
)
MATCHED = 1024
"""Most units that are matched: the time grows with their cube."""
PAIRED = 10
"""Most seeds that are compared, each with each."""
IMAGES = ("digits", "mnist")
MOST_GRIDS, SHOWN_UNITS = 6, 64


def _stability(row: Row) -> float | None:
    """Averages the matched |cosine| of two seeds' units over pairs of the first seeds. There is no interval, since
    pairs share seeds."""
    kept = [record for record in row.finished if WEIGHTS in record.artifacts]
    some = kept[: 2 if int(row.options["d_code"]) > MATCHED else PAIRED]
    directions = [weights(record)["directions"].float() for record in some]
    found = [sparsity.stability(one, other, most=MATCHED) for one, other in combinations(directions, 2)]
    return fmean(found) if found else None


COLUMNS = (
    Column("lr", rate_shown, "g", always=True, lead=True),
    Column("n", lambda row: len(row.finished), always=True, note="n: seeds with a score."),
    Column("diverged", lambda row: row.diverged, always=True,
           note="diverged: seeds without a score, at the rate the others chose."),
    Column("L0", "l0", ".1f", always=True, lead=True),
    Column("FVU", "fvu", ".3f", always=True, lead=True),
    Column("FVU own", "fvu_own", ".3f", lead=True,
           note="FVU own: by the coder's own decoder; FVU: by a ridge decoder."),
    Column("probe", "probe_accuracy", ".4f", share=True, lead=True,
           note="probe: logistic regression, its penalty chosen on validation rows."),
    Column("1 unit", "probe_1_units", ".3f", share=True,
           note="1 unit, 5 units: balanced accuracy of class or planted concept against rest from so many units."),
    Column("5 units", "probe_5_units", ".3f", share=True),
    Column("dead", "dead", ".1f", always=True, lead=True, note="dead: units that fire on no test row."),
    Column("atoms", "atom_cosine", ".3f", share=True, note="atoms: one-to-one matched |cosine| with the true atoms."),
    Column("atoms found", "atoms_found", ".3f", share=True, lead=True,
           note="atoms found: share of them with |cosine| above .9."),
    Column("firing F1", "firing_f1", ".3f", share=True,
           note="firing F1: of the matched units, against the atoms' firing."),
    Column("loss recovered own", "loss_recovered_from_mean_own", ".3f", lead=True,
           note="loss recovered own: by the coder's own decoder."),
    Column("loss recovered", "loss_recovered_from_mean", ".3f", lead=True,
           note="loss recovered: of the cross entropy lost with the layer at its mean, by the ridge decoder, "
           f"where that is {CLEARLY:g} nats at least; above 1 the model predicts this text better from the "
           "reconstruction than from its own activations."),
    Column("KL own", "kl_own", ".3f",
           note="KL own, KL: of the next token's distribution with the reconstruction from the model's own, in nats, "
           "by the coder's own decoder and by the ridge decoder."),
    Column("KL", "kl", ".3f"),
    Column("stability", _stability, ".3f",
           note="stability: one-to-one matched |cosine| of the units of two seeds; with more than 1,024 units, of "
           "1,024 evenly spaced ones of the first seed with any of the second."),
    Column("params", lambda row: row.first.get("params"), always=True),
)  # fmt: skip
COMPARED = ("FVU", "probe", "atoms", "atoms found", "firing F1", "loss recovered")
MEASURES = [
    replace(column, note="", always=False, lead=column.title in ("FVU", "probe"))
    for column in COLUMNS
    if column.title in COMPARED
]
"""The columns that curves are compared by at equal L0."""
REFERENCE = "lse_infomax"
CHARTS = {
    "fvu": "fraction of variance unexplained", "probe_accuracy": "probe accuracy",
    "firing_f1": "F1 of firing", "loss_recovered_from_mean": "loss recovered",
}  # fmt: skip


def report(records: Sequence[Record], out: Report) -> None:
    found = chosen(records)
    compared = beside_every_recipe(found)
    curves = {
        suffix: [row for target in TARGETS for row in at_equal_l0(own, target).values()]
        for suffix, own in numbered(compared)
    }
    atoms = [own.there for own in planted(records).values() if own.there is not None]
    say(list(curves.values()), atoms, found, out)
    lost = any(row.diverged for row in found)
    columns = [replace(column, lead=column.lead or (lost and column.title == "diverged")) for column in COLUMNS]
    table(out, "sae", found, columns, note=NOTE)
    for suffix, reached in curves.items():
        _equal_l0(reached, out, f"equal_l0{suffix}")
    planted_tables(records, compared, out)
    for suffix, own in per_setting(compared, out):
        curve = _curves(own)
        for metric, title in CHARTS.items():
            lines(
                out, f"{metric}_by_l0{suffix}", own, _level(metric), series=curve, own_x=_active,
                bounded=True, log_x=True, x_title="active units (L0)", y_title=title,
                caption=f"{title.capitalize()} against active units, each level at its rate in the table and at the "
                "mean L0 of its seeds; a dot is a seed at its own.",
            )  # fmt: skip
        _features(own, out, f"features{suffix}")


def _equal_l0(reached: Sequence[Row], out: Report, name: str) -> None:
    """A table of curves at equal L0, with their paired differences from the decoder-free coder, and letters."""
    reference = {row.where: row for row in reached if row.label == REFERENCE}
    ranks = {series: group for own in by_setting(reached).values() for series, group in groups(own, FVU).items()}
    uneven = len({row.n for row in reached}) > 1

    def compared(measure: Column) -> tuple[Column, Column]:
        title, is_fvu = f"{measure.title} - {REFERENCE}", measure.title == "FVU"
        own = replace(measure, group=lambda row: ranks.get(row.series)) if is_fvu else measure
        return own, less(title, str(measure.value), measure.format, lambda row: reference.get(row.where), lead=is_fvu)

    columns = (
        Column("L0", lambda row: row.setting["L0"], "g", lead=True),
        Column("coder", lambda row: row.label, lead=True),
        Column("lr", rate_shown, lead=True),
        Column("n", lambda row: row.n if uneven else None),
        *(column for measure in MEASURES for column in compared(measure)),
    )
    table(out, name, reached, columns, note=EQUAL)


def _curves(own: Sequence[Row]) -> Callable[[Row], str]:
    """Return the name of a row's curve: its coder, with the rate where a level has several. Those are rows of their own
    without validation rows to choose by, and one line through them would run up and down."""
    levels = Counter((row.label, row.names["coder"]) for row in own)
    several = {label for (label, _), count in levels.items() if count > 1}
    return lambda row: f"{row.label} lr={row.tuned_value:g}" if row.label in several else row.label


def _level(metric: str) -> Callable[[Row], Points]:
    """The metric at the row's mean L0, rounded to three digits for the axis ticks."""
    return lambda row: [(float(f"{l0(row):.3g}"), row.values(metric))] if l0(row) > 0 else []


def _active(row: Row) -> dict[int, float]:
    """The L0 of each seed where it is positive, for a logarithmic axis."""
    return {seed: active for seed, active in row.values("l0").items() if active > 0}


def _features(found: Sequence[Row], out: Report, name: str) -> None:
    """Draws each curve's units where the data are images: those of its middle level and first seed."""
    grids: list[tuple[str, np.ndarray]] = []
    shown = [row for row in found if row.finished and row.options["data"]["name"] in IMAGES]
    kept = [row for row in shown if WEIGHTS in row.finished[0].artifacts]
    for levels in list(grouped(kept, lambda row: row.label).values())[:MOST_GRIDS]:
        row = levels[len(levels) // 2]
        directions = weights(row.finished[0])["directions"].float().numpy()[:SHOWN_UNITS]
        side = round(directions.shape[1] ** 0.5)
        grids.append((row.names["coder"], tiled(directions.reshape(-1, side, side), 8)))
    if grids:
        caption = "What units stand for: rows of the decoder, or of the encoder where there is none; each on its scale."
        out.chart(name, pictures(grids, columns=3, size=200), caption=caption)
