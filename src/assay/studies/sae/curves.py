"""Pools coders by level of sparsity, and compares the curves of their levels at equal numbers of active units (L0).

A row is a coder at one level. It takes each seed at the learning rate that left the other seeds the least unexplained
variance on validation rows (report.tuning); a seed that diverged there is counted, and has no score. That choice is
blind to L0: of a penalised coder the least trained rate has the densest code, and so the least error. At equal L0 each
rate is a curve of its own, and the rate is chosen there:

    rate   level   L0, validation FVU          at L0 32, on the curve of the rate
    3e-4   3, 10   100 .10, 60 .22             does not reach it
    1e-3   3, 10   60 .20, 30 .35              .34     chosen, though 3e-4 has less error at either level
    3e-3   3, 10   50 .30, 25 .50              .43
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from assay.core.errors import UserError
from assay.core.grouping import grouped
from assay.core.plugin import to_json
from assay.core.run import Record, canonical
from assay.report.rows import Row, rows, varying
from assay.report.tuning import Tried, leave_one_out
from assay.sparse_coders import sparse_coders

TARGETS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
WIDEST = 4.0
"""The largest ratio of two levels' L0 between which a curve is interpolated."""
MISSED = 0.02
"""The relative error at which an L0 still counts as the target: TopK with k = 8 may have 7.99 active units."""


def chosen(records: Sequence[Record]) -> list[Row]:
    """Pools records into a row per coder, level and setting, each seed at the rate that the other seeds chose by
    validation FVU. Rows of one curve stand together, by L0: their label is the curve's, and their name under `coder`
    has the level too.

    Without validation rows there is nothing to choose by, and every rate is a row of its own."""
    found = rows(
        records,
        names={"coder": lambda record: _label(record.run.options["coder"])},
        tune="lr",
        score=validation,
        ignore=["coder"],
    )
    # Coders fitted at once may differ in what no setting shows (width, version): the last one is kept.
    once = {(canonical(row.options["coder"]), row.where): row for row in _of_trained(found)}
    levels = [replace(level, label=curve_of(level)) for row in once.values() for level in _by_rate(row)]
    curves = {curve: place for place, curve in enumerate(dict.fromkeys((row.where, row.label) for row in levels))}
    return sorted(levels, key=lambda row: (curves[row.where, row.label], l0(row)))


def validation(record: Record) -> float:
    """The negative FVU on validation rows, so that larger is better; minus infinity where it is not known. By the
    coder's own decoder where that is recorded: of streams, whose coders are meant to be used as they are."""
    value = record.metrics.get("validation_fvu_own", record.metrics.get("validation_fvu"))
    return -float(value) if isinstance(value, int | float) else -math.inf


def l0(row: Row) -> float:
    """The mean L0 over seeds; infinite, to sort last, where every seed diverged."""
    return fmean(row.values("l0").values() or [math.inf])


def is_trained(row: Row) -> bool:
    """Return whether the coder is trained step by step; one that is fitted at once has neither a rate nor a recipe."""
    return row.options["recipe"] is not None


def rate_shown(row: Row) -> str | None:
    """The rate of most seeds, with a star where any seed's is at the edge of those tried."""
    return None if row.tuned_value is None else f"{row.tuned_value:g}{'*' if row.at_the_edge else ''}"


def beside_every_recipe(found: Sequence[Row]) -> list[Row]:
    """Repeats the coders fitted at once in every setting of trained coders that they do not contradict: they have no
    recipe, and are compared with all."""
    settings = {row.where: row.setting for row in [row for row in found if is_trained(row)] or found}

    def belongs(row: Row, where: str, setting: Mapping[str, Any]) -> bool:
        agrees = all(value in (None, setting[key]) for key, value in row.setting.items())
        return row.where == where or (not is_trained(row) and agrees)

    return [replace(row, setting=own) for where, own in settings.items() for row in found if belongs(row, where, own)]


def _label(spec: Mapping[str, Any]) -> str:
    """Labels the coder by its options, or by its name alone where this command was not given its file."""
    try:
        return str(sparse_coders.load(spec).label)
    except UserError:
        return str(spec["name"])


def level_option(row: Row) -> str | None:
    """Return the option of the row's coder that sets how many units are active; None without one, and where this
    command was not given the coder's file."""
    try:
        return type(sparse_coders.load(row.options["coder"])).level_option
    except UserError:
        return None


def curve_of(row: Row) -> str:
    """Names the coder without its level."""
    spec, level = row.options["coder"], level_option(row)
    if level is None:
        return row.label
    return _label({**spec, level: to_json(getattr(type(sparse_coders.load(spec))(), level))})


def _of_trained(found: Sequence[Row]) -> list[Row]:
    """Keeps only those settings in which trained coders differ."""
    trained = [row for row in found if is_trained(row)]
    if not trained:
        return list(found)
    columns = varying(trained, ignore=("coder", "lr"))

    def setting(row: Row) -> dict[str, Any]:
        # A version is that of the training code, which does not concern coders fitted at once.
        absent = () if is_trained(row) else ("version",)
        return {key: None if key in absent else row.setting[key] for key in columns}

    return [replace(row, setting=setting(row)) for row in found]


def _by_rate(row: Row) -> list[Row]:
    """Splits a row into one per rate where there are no validation rows to choose by."""
    if any(validation(record) != -math.inf for by_seed in row.tried.values() for record in by_seed.values()):
        return [row]
    by_rate = {rate: dict(sorted(by_seed.items())) for rate, by_seed in row.tried.items()}
    return [replace(row, records=tuple(own.values()), tried={rate: own}) for rate, own in by_rate.items()]


def at_equal_l0(found: Sequence[Row], target: float) -> dict[str, Row]:
    """Reads each curve at the target, if it reaches there, by the curve's label. A single level is read where it has
    that many units, of a coder that has an option for them: PCA's units are always active."""
    curves = grouped(found, lambda row: row.label)
    some = {label: levels for label, levels in curves.items() if len(levels) > 1 or level_option(levels[0])}
    read = {label: at_l0(levels, target) for label, levels in some.items()}
    return {label: row for label, row in read.items() if row is not None}


def at_l0(levels: Sequence[Row], target: float) -> Row | None:
    """Reads a coder at a number of active units: the curves of its rates seed by seed, and each seed counts at the rate
    that has the least validation FVU there over the other seeds. A rate is read if every seed of the coder reaches the
    target with it; None where none is, and where no validation rows tell several rates apart."""
    rates = sorted({rate for level in levels for rate in level.tried}, key=lambda rate: rate or 0)
    seeds = {seed for level in levels for by_seed in level.tried.values() for seed in by_seed}
    read: dict[Any, dict[int, Record]] = {}
    for rate in rates:
        there = [level.tried.get(rate, {}) for level in levels]
        curves = {seed: [by_seed[seed] for by_seed in there if seed in by_seed] for seed in seeds}
        found = {seed: record for seed, curve in curves.items() if (record := between(curve, target)) is not None}
        if found.keys() == seeds:
            read[rate] = found
    unknown = any(validation(record) == -math.inf for found in read.values() for record in found.values())
    if not read or (unknown and len(rates) > 1):
        return None
    tried: Tried = {rate: read.get(rate, {}) for rate in rates}
    counted = tuple(leave_one_out(read, validation).values())
    return Row(counted, label=levels[0].label, setting={"L0": target}, tune="lr", tried=tried)


def between(levels: Sequence[Record], target: float) -> Record | None:
    """Interpolates the record that a level of the target's L0 would have, through the levels of one rate and seed:
    linear in log L0 between the two levels around it that no other dominates, if they are close enough to tell."""
    curve = envelope(levels)
    for low, high in pairwise(curve):
        start, end = low.metrics["l0"], high.metrics["l0"]
        if start <= target <= end and end / start <= WIDEST * (1 + MISSED):
            weight = math.log(target / start) / math.log(end / start)
            pairs = {name: (value, high.metrics.get(name)) for name, value in low.metrics.items()}
            shared = {name: pair for name, pair in pairs.items() if all(isinstance(v, int | float) for v in pair)}
            metrics = {name: a + weight * (b - a) for name, (a, b) in shared.items()}
            return replace(low, metrics=metrics | {"l0": target})
    near = [record for record in curve if abs(record.metrics["l0"] / target - 1) <= MISSED]
    return min(near, key=lambda record: abs(record.metrics["l0"] - target), default=None)


def envelope(levels: Sequence[Record]) -> list[Record]:
    """The finished levels that are not dominated, by L0: none has less FVU, on validation rows where there are any, at
    as few active units or fewer."""
    found = [record for record in levels if record.status == "done" and record.metrics["l0"] > 0]
    names = ("validation_fvu_own", "validation_fvu", "fvu")
    error = next(name for name in names if name == "fvu" or all(name in record.metrics for record in found))
    kept: list[Record] = []
    for record in sorted(found, key=lambda record: (record.metrics["l0"], record.metrics[error])):
        if not kept or record.metrics[error] < kept[-1].metrics[error]:
            kept.append(record)
    return kept
