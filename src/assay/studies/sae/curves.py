"""Coders at their levels, and the curves that levels make over active units (L0), compared at equal numbers of them.

A level (a point) takes each seed at the learning rate that left the other seeds the least unexplained variance on
validation rows (report.tuned); a seed that diverged there is counted, and has no score. That choice is blind to L0: of
a penalised coder the least trained rate has the densest code, and so the least error. At equal L0 each rate is a curve
of its own, and the rate is chosen there:

    rate   level   L0, validation FVU          at L0 32, on the curve of the rate
    3e-4   3, 10   100 .10, 60 .22             does not reach it
    1e-3   3, 10   60 .20, 30 .35              .34     chosen, though 3e-4 has less error at either level
    3e-3   3, 10   50 .30, 25 .50              .43
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Any

from assay.core.errors import UserError
from assay.core.plugin import to_json
from assay.core.run import Record, canonical
from assay.report.cells import Cell, cells, varying
from assay.report.tuned import Tuned, leave_one_out
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import SparseCoder

TARGETS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
WIDEST = 4.0
"""Levels whose L0 are further apart than by this factor have nothing between them that could be known."""
MISSED = 0.02
"""A level whose L0 is off by so little is there: TopK with k = 8 has 7.99 where some rows have fewer units above 0."""

Tried = Mapping[float | None, Mapping[int, Record]]
"""Records by rate and seed."""


@dataclass(frozen=True)
class Point:
    """A coder at one level, each seed at the rate that the others chose."""

    cell: Tuned
    setting: Mapping[str, Any]
    tried: Tried
    """What it was chosen from."""

    @cached_property
    def coder(self) -> SparseCoder | None:
        try:
            return sparse_coders.load(self.cell.options["coder"])
        except UserError:  # a foreign coder whose file this command was not given
            return None

    @cached_property
    def label(self) -> str:
        return self.coder.label if self.coder else str(self.cell.options["coder"]["name"])

    @cached_property
    def family(self) -> str:
        """The coder without its level: what a curve is called."""
        if self.coder is None or self.coder.level_option is None:
            return self.label
        plain = type(self.coder)()
        spec = {**self.coder.spec(), self.coder.level_option: to_json(getattr(plain, self.coder.level_option))}
        return str(sparse_coders.load(spec).label)

    @cached_property
    def where(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.setting.items())

    @property
    def is_trained(self) -> bool:
        return self.cell.options["recipe"] is not None

    def agrees_with(self, other: "Point") -> bool:
        """What is fitted at once has no recipe, and stands beside every one."""
        return all(value in (None, other.setting[key]) for key, value in self.setting.items())

    @cached_property
    def l0(self) -> float:
        """Mean over seeds; beyond all others where every seed diverged."""
        return fmean(self.cell.values("l0").values() or [math.inf])


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
            points.append(Point(tuned, pairs[0][1], tried))
    seen = dict.fromkeys((point.where, point.family) for point in points)
    curves = {curve: place for place, curve in enumerate(seen)}
    return sorted(points, key=lambda p: (curves[p.where, p.family], p.l0))


def _worth(record: Record) -> float:
    value = record.metrics.get("validation_fvu")
    return -float(value) if isinstance(value, int | float) else -math.inf


def rate_shown(cell: Tuned) -> str | None:
    """The rate most seeds count at, with a star where any seed's is at the edge of those tried."""
    return None if cell.rate is None else f"{cell.rate:g}{'*' if cell.at_the_edge else ''}"


def at_equal_l0(points: Sequence[Point], target: float) -> dict[str, Tuned]:
    """By family of several levels that reaches the target: its curve there."""
    families: dict[str, list[Tried]] = {}
    for point in points:
        families.setdefault(point.family, []).append(point.tried)
    curves = {name: levels for name, levels in families.items() if len(levels) > 1}
    return {name: found for name, levels in curves.items() if (found := at_l0(levels, target)) is not None}


def at_l0(levels: Sequence[Tried], target: float) -> Tuned | None:
    """A coder at a number of active units: the curves of its rates are read there seed by seed, and each seed counts at
    the rate that has the least validation FVU there over the other seeds. A rate is read if every seed of the coder
    reaches the target with it; None where none is, and where no validation rows tell several rates apart."""
    rates = sorted({rate for level in levels for rate in level}, key=lambda rate: rate or 0)
    seeds = {seed for level in levels for by_seed in level.values() for seed in by_seed}
    read: dict[float | None, dict[int, Record]] = {}
    for rate in rates:
        curves = {seed: [level[rate][seed] for level in levels if seed in level.get(rate, {})] for seed in seeds}
        found = {seed: record for seed, curve in curves.items() if (record := between(curve, target)) is not None}
        if found.keys() == seeds:
            read[rate] = found
    unknown = any(_worth(record) == -math.inf for found in read.values() for record in found.values())
    if not read or (unknown and len(rates) > 1):
        return None
    return Tuned(tuple(leave_one_out(read, _worth).values()), tuple(rates))


def between(levels: Sequence[Record], target: float) -> Record | None:
    """What a record of the target's L0 would have measured, by the curve through the levels of one rate and seed:
    linear in log L0 between the two levels around it that no other dominates, if they are close enough to tell."""
    curve = envelope(levels)
    for low, high in pairwise(curve):
        start, end = low.metrics["l0"], high.metrics["l0"]
        if start <= target <= end and end / start <= WIDEST * (1 + MISSED):
            weight = math.log(target / start) / math.log(end / start)
            shared = {name: (low.metrics[name], high.metrics.get(name)) for name in low.metrics}
            metrics = {name: a + weight * (b - a) for name, (a, b) in shared.items() if _numbers(a, b)}
            return replace(low, metrics=metrics)
    near = [record for record in curve if abs(record.metrics["l0"] / target - 1) <= MISSED]
    return min(near, key=lambda record: abs(record.metrics["l0"] - target), default=None)


def envelope(levels: Sequence[Record]) -> list[Record]:
    """The finished levels that are not dominated, by L0: none has less FVU, on validation rows where there are any, at
    as few active units or fewer."""
    found = [record for record in levels if record.status == "done" and record.metrics["l0"] > 0]
    error = "validation_fvu" if all("validation_fvu" in record.metrics for record in found) else "fvu"
    kept: list[Record] = []
    for record in sorted(found, key=lambda record: (record.metrics["l0"], record.metrics[error])):
        if not kept or record.metrics[error] < kept[-1].metrics[error]:
            kept.append(record)
    return kept


def _numbers(*values: object) -> bool:
    return all(isinstance(value, int | float) for value in values)
