"""Says in a sentence what rows show: who scores highest, by how much, and what their seeds do not tell apart.

    In these runs (150 steps, 3 seeds) SelfAttn scores highest on lookup (R2), 0.95 ±0.12 of 1.00, and is told apart
    from every other encoder: the next, StaticMLP, has 0.02 ±0.02.

A sentence is about these runs, never about what something can or cannot do: that needs a certificate
(report.certificate). Two rows are told apart where their paired difference over seeds is significant after Holm over
all pairs, as for the letters of a table; fewer than LEAST seeds tell nothing apart.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from assay.core.grouping import grouped
from assay.metrics.intervals import Interval, letters, paired_difference, share, student_t, told_apart
from assay.report.rows import Row, seeds_of
from assay.report.text import number, with_interval

LEAST = 3
"""Fewest seeds that tell anything apart: the t of two seeds, 12.7, is passed by luck of the draw alone."""
NAMED = 3
"""Most rows that a sentence names one by one."""
DECIMALS, MOST_DECIMALS = re.compile(r"\.(\d)f"), 6


@dataclass(frozen=True)
class Measure:
    """A score by which rows are compared."""

    name: str
    """The score in a sentence: `lookup by content (RetrieveR2_trained)`."""
    value: str | Callable[[Row], Mapping[int, float]]
    """A metric, or a function that gives the score by seed."""
    format: str = ".2f"
    lower: bool = False
    """Whether the lowest score is the best."""
    share: bool = False
    """Whether it lies between 0 and 1, and so does its interval."""
    ceiling: Callable[[Row], float | None] | None = None
    floor: Callable[[Row], float | None] | None = None
    """What the best has to beat before anything is ranked: what noise scores, with a margin."""

    def of(self, row: Row) -> Mapping[int, float]:
        return row.values(self.value) if isinstance(self.value, str) else self.value(row)

    def interval(self, row: Row) -> Interval:
        return (share if self.share else student_t)(list(self.of(row).values()))


@dataclass(frozen=True)
class Contest:
    """Rows that differ in what is compared and in nothing else, by one score."""

    rivals: Sequence[Row]
    measure: Measure

    @cached_property
    def scores(self) -> dict[str, Mapping[int, float]]:
        """Scores by series and seed, larger is better; the best first."""
        sign = -1 if self.measure.lower else 1
        found = {row.series: {seed: sign * v for seed, v in self.measure.of(row).items()} for row in self.rivals}
        scored = {name: own for name, own in found.items() if own}
        return dict(sorted(scored.items(), key=lambda pair: -fmean(pair[1].values())))

    @cached_property
    def ranked(self) -> list[Row]:
        """The rows that have a score, the best first."""
        rows = {row.series: row for row in self.rivals}
        return [rows[name] for name in self.scores]

    @cached_property
    def seeds(self) -> int:
        """The most seeds that two rows share; of a single row, its own."""
        held = [set(own) for own in self.scores.values()]
        return max((len(a & b) for place, a in enumerate(held) for b in held[:place]), default=max(map(len, held)))

    @cached_property
    def apart(self) -> set[frozenset[str]]:
        """The pairs of rows that the seeds tell apart."""
        return {frozenset(pair) for pair in told_apart(self.scores)} if self.seeds >= LEAST else set()

    @cached_property
    def format(self) -> str:
        """The measure's format, with as many decimals as show by how much the best is ahead of the next, if the seeds
        tell them apart: `0.00 ±0.00 below` would say nothing."""
        form, (_, *others) = self.measure.format, self.ranked
        found = DECIMALS.fullmatch(form)
        if found is None or not others or others[0] not in self.beaten:
            return form
        first, second = (fmean(self.scores[row.series].values()) for row in self.ranked[:2])
        shown = -math.floor(math.log10(first - second)) if first > second else 0
        return f".{min(max(int(found[1]), shown), MOST_DECIMALS)}f"

    @property
    def above_floor(self) -> bool:
        best = self.ranked[0]
        floor = self.measure.floor(best) if self.measure.floor else None
        mean = fmean(self.measure.of(best).values())
        return floor is None or (mean < floor if self.measure.lower else mean > floor)

    @property
    def beaten(self) -> list[Row]:
        """The rows that the best one is told apart from."""
        best = self.ranked[0].series
        return [row for row in self.ranked[1:] if frozenset((best, row.series)) in self.apart]


def groups(rivals: Sequence[Row], measure: Measure) -> dict[str, str]:
    """Letters of rows by series: those that share one are not told apart. None where there is nothing to tell apart, or
    fewer than LEAST seeds to do it."""
    found = Contest(rivals, measure)
    compared = len(found.scores) > 1 and found.seeds >= LEAST and found.above_floor
    return letters(found.scores) if compared else {}


def compared(rivals: Sequence[Row], measure: Measure, *, of: str, runs: str = "") -> str:
    """Say which row scores best and which it is told apart from; empty where no row has the score. `of` names what is
    compared, such as `encoder`; `runs` says what kind of runs these are: `300 steps`."""
    found = Contest(rivals, measure)
    if not found.scores:
        return ""
    head = f"In these runs ({', '.join(filter(None, [runs, seeds_of(found.ranked)]))}) "
    return head + _ranking(found, of) + _caveats(found.ranked) + "."


def _ranking(found: Contest, of: str) -> str:
    measure, (best, *others) = found.measure, found.ranked
    most = "lowest (best)" if measure.lower else "highest"
    score = _score(found, best)
    if not others:
        return f"{best.label} scores {score} on {measure.name}"
    if not found.above_floor:
        return f"no {of} scores far above chance on {measure.name}: at best {score} ({best.label})"
    if found.seeds < LEAST:
        means = {name: fmean(own.values()) for name, own in found.scores.items()}
        leaders = [row for row in found.ranked if means[row.series] == means[best.series]]
        seen = f"{_listed(leaders)} scored {most} on {measure.name}, {score}, {_worst(found)}"
        few = {0: "no shared seed tells", 1: "one seed tells"}.get(found.seeds, f"{found.seeds} seeds tell")
        return f"{seen}; {few} nothing apart"
    top = f"{best.label} scores {most} on {measure.name}, {score}"
    beaten, level = found.beaten, [row for row in others if row not in found.beaten]
    if not level and len(others) == 1:
        return f"{top}, and is told apart from {others[0].label}, which is {_behind(found)}"
    if not level:
        return f"{top}, and is told apart from every other {of}: the next, {others[0].label}, is {_behind(found)}"
    if beaten:
        return f"{top}; it is told apart from {_listed(beaten)}, not from {_listed(level)}"
    if found.apart:
        return f"{top}, but is told apart from none; {len(found.apart)} other pairs are ({_worst(found)})"
    return f"{top}, {_worst(found)}, but no two {of}s are told apart"


def _score(found: Contest, row: Row) -> str:
    measure = found.measure
    best = measure.ceiling(row) if measure.ceiling else None
    score = with_interval(measure.interval(row), found.format)
    return score if best is None else f"{score} of {number(best, measure.format)}"


def _worst(found: Contest) -> str:
    last, measure = found.ranked[-1], found.measure
    score = with_interval(measure.interval(last), measure.format)
    return f"{last.label} {'highest' if measure.lower else 'lowest'}, {score}"


def _behind(found: Contest) -> str:
    """How far the second row is behind the first, paired over seeds."""
    first, second = (found.scores[row.series] for row in found.ranked[:2])
    away = "above" if found.measure.lower else "below"
    own = with_interval(found.measure.interval(found.ranked[1]), found.format)
    return f"{with_interval(paired_difference(first, second), found.format)} {away}, at {own}"


def _caveats(ranked: Sequence[Row]) -> str:
    """What qualifies the scores: rates at an edge of those tried, or only one tried, and seeds that diverged and have
    no score."""
    edge = [row for row in ranked if row.tried and row.at_the_edge]
    lost = [row for row in ranked if row.diverged]
    said = []
    rates = {rate for row in ranked for rate in row.tried}
    if all(len(row.tried) == 1 for row in ranked) and rates != {None}:  # what is fitted at once has no rate
        said.append(f"one {ranked[0].tune.rpartition('.')[2]} was tried")
    if edge:
        rate = edge[0].tune.rpartition(".")[2]
        whose = f"every {rate}" if len(edge) == len(ranked) else f"the {rate} of {_listed(edge)}"
        said.append(f"{whose} lies at the edge of those tried, so better scores may lie beyond")
    if lost:
        said.append(f"seeds of {_listed(lost)} diverged and have no score")
    return "".join(f"; {each}" for each in said)


def across(settings: Mapping[str, Sequence[Row]], measure: Measure, *, of: str, over: str, runs: str = "") -> str:
    """Count over several settings which row scores best, and where it is told apart from every other; for one setting,
    what `compared` says of it. `over` says what the settings are, such as `numbers of active units`."""
    contests = [found for rivals in settings.values() if (found := Contest(rivals, measure)).scores]
    if len(contests) < 2:
        return compared(contests[0].rivals, measure, of=of, runs=runs) if contests else ""
    wins = grouped(contests, lambda found: found.ranked[0].label)
    most = "lowest" if measure.lower else "highest"
    ranked = sorted(wins.items(), key=lambda pair: -len(pair[1]))
    several = [f"{label} in {len(own)} ({_clear(own)})" for label, own in ranked[:NAMED]]
    if others := sum(len(own) for _, own in ranked[NAMED:]):
        several.append(f"others in {others}")
    rows = [row for found in contests for row in found.ranked]
    by_label = {row.label: row for row in rows}
    head = f"In these runs ({', '.join(filter(None, [runs, seeds_of(rows)]))}), over {len(contests)} {over}, the "
    return f"{head}{most} {measure.name} has {', '.join(several)}{_caveats(list(by_label.values()))}."


def _clear(own: Sequence[Contest]) -> str:
    """In how many contests the best is told apart from every other row."""
    clear = sum(len(found.beaten) == len(found.ranked) - 1 > 0 for found in own)
    return f"told apart from every other in {clear}" if clear else "never told apart from every other"


def listed(names: Sequence[str]) -> str:
    """Name up to NAMED things: `a`, `a and b`, `a, b and 5 others`."""
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} others"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _listed(found: Sequence[Row]) -> str:
    return listed([row.label for row in found])
