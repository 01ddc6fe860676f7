"""Says which coder leaves least unexplained at equally many active units, and what few units tell."""

import math
from collections.abc import Callable, Mapping, Sequence

from assay.core.grouping import grouped
from assay.core.study import Report
from assay.metrics.intervals import Interval, paired_difference
from assay.report.draw import Column
from assay.report.rows import Row
from assay.report.sentences import Measure, across, compared
from assay.studies.sae.curves import l0, level_option

FVU = Measure("variance unexplained (FVU)", "fvu", ".3f", lower=True)
PROBE = Measure("probe accuracy", "probe_accuracy", ".4f", share=True)
FOUND = Measure("planted atoms found at the true L0", "atoms_found", ".3f", share=True)


def say(reached: Sequence[Sequence[Row]], planted: Sequence[Row], levels: Sequence[Row], out: Report) -> None:
    """Say what curves show at equal L0 (`reached`, a list for each setting), and what was found of planted atoms; where
    no two curves meet, what there was to see."""
    if planted and (sentence := compared(planted, FOUND, of="coder", runs="each coder at the true L0")):
        out.finding(sentence)
    contests = {
        f"{place} {target:g}": rivals
        for place, own in enumerate(reached)
        for target, rivals in grouped(own, lambda row: row.setting["L0"]).items()
        if len(rivals) > 1
    }
    targets = sorted({rivals[0].setting["L0"] for rivals in contests.values()})
    if not contests:
        out.finding(_alone(levels))
        return
    span = f"{targets[0]:g} to {targets[-1]:g}" if len(targets) > 1 else f"{targets[0]:g}"
    there = {row.label for rivals in contests.values() for row in rivals}
    choosable = grouped([row for row in levels if level_option(row)], lambda row: row.label)
    absent = {label: rows for label, rows in choosable.items() if label not in there}
    beside = f" In no comparison, for want of a level near these: {_ranges(absent)}." if absent else ""
    for measure, chart in ((FVU, "fvu_by_l0"), (PROBE, "probe_accuracy_by_l0")):
        runs = f"each coder at {span} active units"
        if sentence := across(contests, measure, of="coder", over="comparisons", runs=runs):
            out.finding(f"{sentence}{beside}", chart=chart if len(reached) == 1 else f"{chart}_1")


def less(
    title: str, metric: str, form: str, reference: Callable[[Row], Row | None], *, always: bool = False, lead: bool
) -> Column:
    """A column of the paired difference from a reference of each row; blank beside the reference itself."""

    def difference(row: Row) -> Interval | None:
        other = reference(row)
        own, their = row.values(metric), other.values(metric) if other and other.label != row.label else {}
        return paired_difference(own, their) if own.keys() & their.keys() else None

    return Column(title, difference, form, always=always, lead=lead)


def _alone(levels: Sequence[Row]) -> str:
    """What can be said of coders that nothing is compared with at their number of active units."""
    if len(levels) == 1:
        return compared(levels, FVU, of="coder", runs=epochs(levels))
    curves = grouped(levels, lambda row: row.label)
    counts = f"{len(levels)} coders" if len(curves) == len(levels) else f"{len(levels)} levels"
    several = all(len(own) > 1 for own in curves.values()) and len(curves) > 1
    advice = "Give each coder several levels to make its curve."
    advice = f"Choose levels that meet: {_ranges(curves)}." if several else advice
    return (
        f"No two coders are read at one number of active units (L0), so these {counts} are not compared: a denser code "
        f"leaves less unexplained whatever the coder. {advice}"
    )


def _ranges(curves: Mapping[str, Sequence[Row]]) -> str:
    """The L0 that coders have: `topk 2 to 8, logsae 11.4`."""
    said = []
    for label, own in curves.items():
        counts = sorted(l0(row) for row in own)
        ends = dict.fromkeys(f"{count:.3g}" for count in (counts[0], counts[-1]) if math.isfinite(count))
        said.append(f"{label} {' to '.join(ends) or 'diverged'}")
    return ", ".join(said)


def epochs(found: Sequence[Row]) -> str:
    """How long the rows were trained: `40 epochs`; empty where that differs, or nothing was trained."""
    held = {recipe.get("epochs") for row in found if (recipe := row.options.get("recipe"))}
    return f"{held.pop():g} epochs" if len(held) == 1 and None not in held else ""
