"""Tables of coders on data whose atoms are planted, read where the rows truly have as many active atoms.

    coder     lr     read            atoms found   twice as long   best L0   best found
    topk      0.01   a level         0.94          +0.01 ±0.02     8.0       0.95
    relu_l1   0.01   between levels  0.81          +0.02 ±0.01     16.9      0.96

Far above the true L0 any frame of enough vectors reconstructs, and a code that is not trained to its end is denser and
leaves less unexplained. So a coder is read at the true L0, at the rate with the least validation FVU there
(studies.sae.curves), and beside that at its best level and rate, which only the truth can choose: each seed counts at
the level and rate at which the other seeds found most atoms. Doubled training says whether the number is final.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from assay.core.grouping import grouped
from assay.core.run import Record
from assay.core.study import Report
from assay.metrics.intervals import Interval, paired_difference
from assay.report.draw import Column, filled, spread_of, table
from assay.report.rows import Row
from assay.report.tuning import leave_one_out
from assay.studies.sae.curves import MISSED, at_l0, beside_every_recipe, chosen, is_trained, l0, rate_shown
from assay.studies.sae.findings import less

EPOCHS = "recipe.epochs"
FOUND = "atoms_found"
FLOOR = "random_relu"
AT_TRUE_L0 = (
    "A row is a coder at the true L0, the mean number of atoms in a test row: a level of it, or between two levels, "
    "linear in log L0, at the rate with the least validation FVU there over the other seeds; *: some seed's rate, or "
    "the best level, is at the edge of those that could be read there. Blank: no rate reaches the true L0 with every "
    "seed. atoms found: share of the true atoms whose unit, matched one to one, has |cosine| above .9. best: the level "
    "and rate at which the other seeds found most atoms, which only the truth can choose."
)
CONCEPTS = (
    "On test rows; each level at its rate in the first table. absorbed: "
    "share of the rows with a child in which the parent's unit is silent and another carries the parent's direction "
    "(Chanin et al. 2024); 0 for the true atoms. parent F1: of the parent's unit, against the parent's firing: without "
    "it there is nothing to absorb. TPP 2: accuracy that a concept's probe loses when the 2 units blamed for it are "
    "switched off, less what the other probes lose; at most .5. SCR 2: share of a spurious attribute's damage to a "
    "probe that is undone by switching off 2 units; 1 is all (SAEBench). metrics/absorption.py and metrics/erasure.py "
    "have the definitions."
)
UNITS = (
    "k-sparse probing (Gurnee et al. 2023): for each class or planted concept against the rest, the k units whose "
    "means differ the most on training rows, a logistic probe on those alone, and its balanced accuracy on test rows; "
    f"the mean over classes. .5 is chance. - {FLOOR}: paired over seeds with untrained random features of as many "
    "units, which a probe of all units may prefer to any trained code."
)
FORMATS = {"true L0": ".1f", **dict.fromkeys(("atoms found", "firing F1", "twice as long", "best found"), ".3f")}
CONCEPT_COLUMNS = (
    Column("L0", "l0", ".1f"),
    Column("absorbed", "absorption", ".3f", share=True),
    Column("parent F1", "concept_f1", ".3f", share=True),
    Column("TPP 2", "tpp_2", ".3f"),
    Column("SCR 2", "scr_2", ".3f"),
)
TITLES = {"probe_1_units": "1 unit", "probe_5_units": "5 units"}


@dataclass(frozen=True)
class Found:
    """One coder on planted data."""

    there: Row | None
    """At the true L0; None where no rate reaches it with every seed."""
    best: Row
    """At the level and rate with most atoms found, by the other seeds."""
    longer: Interval | None = None
    """The paired change of the atoms found at the true L0 when training is doubled, where those runs are given."""
    is_level: bool = False
    """Whether a level has the true L0; otherwise it lies between two."""
    level_at_edge: bool = False
    """Whether the best level is the sparsest or the densest that was tried; not of a coder that is fitted at once."""


def planted(records: Sequence[Record]) -> dict[tuple[str, str], Found]:
    """Reads every coder at the true L0 and at its best level, by setting and label."""
    rows = [row for row in beside_every_recipe(chosen(records)) if row.values("true_l0")]
    curves = grouped(rows, lambda row: (row.where, row.label))
    found = {key: _found(levels) for key, levels in curves.items()}
    settings = {where: levels[0].setting for (where, _), levels in curves.items()}
    twice = {where: _twice(setting, settings) for where, setting in settings.items()}
    return {
        (where, label): replace(own, longer=_change(own.there, None if longer is None else found.get((longer, label))))
        for (where, label), own in found.items()
        for longer in [twice[where]]
    }


def _found(levels: Sequence[Row]) -> Found:
    best, target = best_level(levels), fmean(levels[0].values("true_l0").values())
    row = at_l0(levels, target)
    there = None if row is None else replace(row, names=levels[0].names, setting=levels[0].setting)
    at_rate = [level.tried.get(there.tuned_value, {}).values() for level in levels] if there else []
    active = [fmean(record.metrics.get("l0", 0.0) for record in own) for own in at_rate if own]
    names = [level.names["coder"] for level in sorted(levels, key=l0)]
    return Found(
        there,
        best,
        is_level=any(abs(one / target - 1) <= MISSED for one in active),
        level_at_edge=is_trained(best) and best.names["coder"] in (names[0], names[-1]),
    )


def best_level(levels: Sequence[Row], metric: str = FOUND) -> Row:
    """Takes each seed at the level and rate at which the metric was largest over the other seeds."""
    tried = {(place, rate): by_seed for place, level in enumerate(levels) for rate, by_seed in _by_rate(level).items()}
    records = leave_one_out(tried, lambda record: float(record.metrics.get(metric, 0.0)))
    places = {id(record): place for (place, _), by_seed in tried.items() for record in by_seed.values()}
    counted = [places[id(record)] for record in records.values()]
    level = levels[max(set(counted), key=counted.count)]
    rates: dict[Any, dict[int, Record]] = {}
    for row in levels:
        for rate, by_seed in row.tried.items():
            rates.setdefault(rate, {}).update(by_seed)
    return replace(level, records=tuple(records.values()), tune="lr", tried=rates)


def _by_rate(level: Row) -> dict[float, Mapping[int, Record]]:
    """The runs of a level by rate; a coder fitted at once has none, which counts as rate 0."""
    tried = level.tried or {None: {record.run.seed: record for record in level.records}}
    return {float(rate or 0): by_seed for rate, by_seed in tried.items()}


def _twice(setting: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The name of the setting that differs in nothing but twice the epochs."""
    epochs = setting.get(EPOCHS)
    wanted = None if epochs is None else {**setting, EPOCHS: 2 * epochs}
    return next((where for where, other in settings.items() if dict(other) == wanted), None)


def _change(there: Row | None, longer: Found | None) -> Interval | None:
    if there is None or longer is None or longer.there is None:
        return None
    one, two = there.values(FOUND), longer.there.values(FOUND)
    return paired_difference(two, one) if one.keys() & two.keys() else None


def planted_tables(records: Sequence[Record], rows: Sequence[Row], out: Report) -> None:
    """Reports what coders made of planted atoms and concepts, and what few units tell; nothing where there is none."""
    lines = [_line(label, own) for (_, label), own in planted(records).items()]
    if lines:
        shown = filled(lines, keep=["atoms found"])
        out.table("true_l0", shown, formats=FORMATS, note=f"{spread_of(shown, shown[0])} {AT_TRUE_L0}".strip())
    table(out, "concepts", [row for row in rows if row.values("absorption")], CONCEPT_COLUMNS, note=CONCEPTS)
    floors = {row.where: row for row in rows if row.label == FLOOR and row.values("probe_1_units")}
    told = [row for row in rows if row.where in floors and row.values("probe_1_units")]
    table(out, "few_units", told, _few_units(floors), note=UNITS)


def _line(label: str, own: Found) -> dict[str, Any]:
    there, best = own.there, own.best
    return {
        "coder": label,
        **best.setting,
        "true L0": fmean(best.values("true_l0").values()),
        "lr": there and rate_shown(there),
        "read": there and ("a level" if own.is_level else "between levels"),
        "atoms found": there and there.interval(FOUND, bounded=True),
        "firing F1": there and there.interval("firing_f1", bounded=True),
        "twice as long": own.longer,
        "best L0": f"{l0(best):.1f}{'*' * own.level_at_edge}",
        "best lr": rate_shown(best),
        "best found": best.interval(FOUND, bounded=True),
    }


def _few_units(floors: Mapping[str, Row]) -> tuple[Column, ...]:
    """The accuracies from one and from five units, each with its paired difference from the untrained features."""
    measures = [
        (
            Column(title, metric, ".3f", share=True),
            less(f"{title} - {FLOOR}", metric, ".3f", lambda row: floors[row.where], lead=False),
        )
        for metric, title in TITLES.items()
    ]
    return (Column("L0", "l0", ".1f"), *(column for pair in measures for column in pair))
