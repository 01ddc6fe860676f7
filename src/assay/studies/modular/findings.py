"""Says from which width on models of a sweep generalise, in these runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from assay.core.study import Report
from assay.metrics.intervals import wilson
from assay.report.rows import Row, seeds_of
from assay.report.text import number

MOST = 3
"""Most settings that have a sentence each."""


def say(settings: Sequence[Sequence[Row]], thresholds: Sequence[Mapping[str, Any]], out: Report) -> None:
    """Say a sentence for each setting, and how many more there are."""
    for own, found in list(zip(settings, thresholds, strict=True))[:MOST]:
        out.finding(_sentence(own, found), chart="perfect_by_width")
    if len(settings) > MOST:
        out.finding(f"{len(settings) - MOST} more settings are in the table of smallest widths.")


def _sentence(own: Sequence[Row], found: Mapping[str, Any]) -> str:
    options, widths = own[0].options, [row.options["d_hidden"] for row in own]
    where = found["setting"] if "P=" in found["setting"] else f"P={options['P']}, {found['setting']}"
    every, some = found["every seed perfect"], found["some seed perfect"]
    head = f"In these runs ({where}, at most {options['epochs']} epochs, {seeds_of(own)})"
    if every is not None:
        n = min(row.n for row in own if row.options["d_hidden"] >= every)
        sure = f" ({n}/{n} [{number(wilson(n, n).low)}, 1.00])" if n > 1 else ""
        seen = f"every seed of width {every} and wider{sure} answers every validation pair"
    elif some is not None:
        seen = (
            f"some seed of width {some} and of every wider one answers every validation pair, but not every seed does"
        )
    else:
        seen = f"no width from {min(widths)} to {max(widths)} answers every validation pair from there on"
    mean = next(value for key, value in found.items() if key.startswith("mean >="))
    good = next(key.removeprefix("mean >= ") for key in found if key.startswith("mean >="))
    reached = "no width reaches" if mean is None else f"width {mean} and wider reach"
    half = f"; half of the runs do from width {found['half perfect']} on" if some is not None and own[0].n > 1 else ""
    return f"{head} {seen}{half}; {reached} a mean validation accuracy of {good}{_lost(own)}."


def _lost(own: Sequence[Row]) -> str:
    lost = sum(row.diverged for row in own)
    return f"; {lost} run{'s' * (lost > 1)} diverged and count as not there" if lost else ""
