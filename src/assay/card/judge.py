"""The judge compares a mixer with the field, question by question; card.verdict says what may be said of it alone.

Two mixers are told apart by a t test, Holm over the field. The standard deviation is pooled over all mixers of the
question, since two or five seeds of one say little about it, and is never below the sampling error of a score; where
the two that are compared vary more than that, as mixers do that learn with some of their seeds alone, their own counts;
where one of the two does, by Welch's test.
Where a question has no goal, such as a language model's loss, a seed's own text is harder or easier for every mixer, by
as much as the seeds of a mixer differ otherwise, or more: differences are paired by seed there. Mixers with a diverged
run, a rate at the edge of its grid, or one that another outdid in fewer steps, are not compared.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, NamedTuple

from assay.card.battery import Answer, Bounds
from assay.card.verdict import beside_a_guess, parts_of, verdict_of
from assay.core.on_use import Later
from assay.metrics.intervals import Interval, holm
from assay.report.certificate import Part, whole

special: Any = Later("scipy.special")
LEVEL = 0.05

Standing = Literal["above", "below", "level"]
Deviation = tuple[float, int]
"""A standard deviation and its degrees of freedom."""


ENOUGH = 4
"""Degrees of freedom that a deviation of its own needs."""
SEEDS = 100
"""What more seeds than this would tell is not worth saying."""


@dataclass(frozen=True)
class Difference:
    """The score less another's, or a later card's less an earlier one's."""

    other: str
    """The other mixer or method, or the question of two cards."""
    interval: Interval
    """Not adjusted: how large the difference may be. As the scores are, so of a loss + is worse; see `gain`."""
    p: float
    """Adjusted over the field (Holm)."""
    deviation: float
    """Of the test: between seeds, or of documents."""
    lower: bool = False
    """Whether a smaller score is better."""
    freedom: float = 1e9
    """Of the deviation; that of documents needs no t test."""

    @property
    def standing(self) -> Standing:
        if self.p >= LEVEL:
            return "level"
        return "above" if (self.interval.mean > 0) is not self.lower else "below"

    @property
    def gain(self) -> Interval:
        """By how much the score is better than the other's, whatever its direction: + is better."""
        if not self.lower:
            return self.interval
        low, high = (None if end is None else 0.0 - end for end in (self.interval.high, self.interval.low))
        return replace(self.interval, mean=0.0 - self.interval.mean, low=low, high=high)  # 0, and never -0


class Compared(ABC):
    """A line of a card, of whatever kind, has a place among those that it is compared with, by its differences."""

    differences: Mapping[str, Difference]

    @property
    @abstractmethod
    def name(self) -> str:
        """The question, or the budget."""

    @property
    def rank(self) -> str:
        """The places it may have among those it can be compared with, itself counted: `3-7 of 19`."""
        if not self.differences:
            return ""
        standings = [each.standing for each in self.differences.values()]
        first, last = 1 + standings.count("below"), 1 + len(standings) - standings.count("above")
        return f"{first if first == last else f'{first}-{last}'} of {1 + len(standings)}"

    @property
    def best(self) -> Difference | None:
        """The difference to the best of the field."""
        return min(self.differences.values(), key=lambda each: each.gain.mean, default=None)


@dataclass(frozen=True)
class Line(Compared):
    """One question on the card."""

    answer: Answer
    bounds: Bounds
    interval: Interval
    deviation: float
    """Between seeds, pooled over all mixers that were compared, with so many degrees of `freedom`."""
    freedom: int
    differences: Mapping[str, Difference]
    verdict: str
    parts: tuple[Part, ...]
    """Its certificate."""
    paired: Deviation | None = None
    """Where differences are paired by seed: between seeds without what a seed adds to the scores of all."""

    @property
    def name(self) -> str:
        return self.answer.question.name

    @property
    def certified(self) -> bool:
        """Whether it holds for every seed: all reached the goal, or none did and longer training changes nothing."""
        return whole(self.parts)

    def undecided(self) -> str:
        """Say about how many seeds would tell it from the best of the field: of it alone where that is enough, with the
        field's as they are, otherwise of both, and of both where seeds are paired. Nothing where it is told already, or
        where a difference like the one seen would need more than SEEDS."""
        best, have = self.best, len(self.answer.scores)
        if best is None or best.standing != "level" or not best.interval.mean:
            return ""
        level = LEVEL / len(self.differences)  # as Holm's first
        theirs = best.interval.n  # the field never has more seeds than the mixer that is asked

        def enough(count: int, others: int) -> bool:
            """Whether so many seeds tell a difference like the one seen, with a power of 80 %."""
            reach = _quantile(best.freedom * (count - 1) / (have - 1), level) + float(special.ndtri(0.8))
            return (reach * best.deviation) ** 2 * (1 / count + 1 / others) <= best.interval.mean**2

        tried = range(have + 1, SEEDS + 2)
        alone = next((count for count in tried if enough(count, theirs)), SEEDS + 1)
        both = next((count for count in tried if enough(count, count)), SEEDS + 1)
        # Whatever trains less.
        of, count = ("it", alone) if alone <= 2 * both and not self.paired else ("both", both)
        if count > SEEDS:
            return ""
        more = f"about {count - have} more seed{'s'[: count - have > 1]} of {of} would tell it from {best.other}"
        flag = f"--seeds {count}" if of == "it" else f"name both, and --seeds {count}"
        return f"undecided: {more} ({flag})"


def line(mine: Answer, field: Sequence[Answer], bounds: Bounds) -> Line:
    """Judge one question: `field` are the answers of the other mixers."""
    paired = pooled([mine, *field], paired=True) if by_seed([mine, *field]) else None
    deviation, freedom = pooled([mine, *field])
    differences = _differences(mine, field, *paired or (deviation, freedom), paired=bool(paired))
    if paired:  # a seed's text is one draw for all mixers, so they say less of how far seeds lie apart
        freedom = _of_shared_seeds([mine, *field], freedom)
    interval = interval_of(mine, deviation, freedom)
    verdict = "; ".join(filter(None, (verdict_of(mine), beside_a_guess(mine, interval, bounds))))
    return Line(mine, bounds, interval, deviation, freedom, differences, verdict, parts_of(mine), paired)


def pooled(answers: Sequence[Answer], *, paired: bool = False) -> tuple[float, int]:
    """Return the standard deviation between seeds, pooled over mixers, and its degrees of freedom. Rows that diverged
    say nothing; those that solved the question vary less than others can, and are left out where enough others are. It
    is never below the sampling error of a score; `paired`, it is without what a seed adds to the scores of all, which
    is most of that error too."""
    there = [each for each in answers if not each.diverged] or answers
    if paired:
        deviation, freedom = _paired_deviation(there)
        return (deviation, freedom) if freedom and deviation else (math.inf, 0)
    unsolved = [each for each in there if not each.reached]
    (deviation, freedom), (wider, of_unsolved) = _deviation(there), _deviation(unsolved)
    if of_unsolved >= ENOUGH and wider > deviation:
        deviation, freedom = wider, of_unsolved
    return (max(answers[0].question.resolution, deviation), freedom) if freedom else (math.inf, 0)


def _deviation(answers: Sequence[Answer]) -> tuple[float, int]:
    squares = sum((value - each.mean) ** 2 for each in answers for value in each.scores.values())
    return _root(squares, sum(len(each.scores) - 1 for each in answers))


def _layout(answers: Sequence[Answer]) -> list[list[float]]:
    """Return the scores of the seeds that all answers have, a row per answer."""
    seeds = sorted(set.intersection(*(set(each.scores) for each in answers)))
    return [[each.scores[seed] for seed in seeds] for each in answers]


def _paired_deviation(answers: Sequence[Answer]) -> tuple[float, int]:
    """Return what is left of the deviation once the mean of every seed is taken off (a two-way layout)."""
    rows = _layout(answers)
    if len(rows) < 2 or not rows[0]:
        return 0.0, 0
    seeds = [fmean(column) for column in zip(*rows, strict=True)]
    mean = fmean(seeds)
    squares = sum(
        (value - fmean(row) - seed + mean) ** 2 for row in rows for value, seed in zip(row, seeds, strict=True)
    )
    return _root(squares, (len(rows) - 1) * (len(seeds) - 1))


def _of_shared_seeds(answers: Sequence[Answer], freedom: int) -> int:
    """Return the degrees of freedom (Satterthwaite) of the deviation between seeds where a part of it is one draw per
    seed that all mixers share: between those of the seeds alone and those of as many seeds of each mixer."""
    there = [each for each in answers if not each.diverged]
    rows = _layout(there)
    between = len(rows[0]) - 1
    seeds = [fmean(column) for column in zip(*rows, strict=True)]
    shared = len(rows) * sum((seed - fmean(seeds)) ** 2 for seed in seeds) / between
    rest, of_rest = _paired_deviation(there)
    own = (len(rows) - 1) * rest**2
    spread = shared**2 / between + own**2 / of_rest
    return max(between, min(freedom, int((shared + own) ** 2 / spread))) if spread else freedom


def interval_of(answer: Answer, deviation: float, freedom: int) -> Interval:
    """Return the interval of a mean, a share, by the pooled deviation."""
    n = len(answer.scores)
    if not freedom:
        return Interval(answer.mean, None, None, n)
    own, of_own = _deviation([answer])
    if _wider(own, of_own, deviation, freedom):  # its seeds disagree more than others'
        deviation, freedom = own, of_own
    half = _quantile(freedom) * deviation / math.sqrt(n)
    most = math.inf if answer.question.lower else 1.0
    return Interval(answer.mean, max(0.0, answer.mean - half), min(most, answer.mean + half), n)


def _differences(
    mine: Answer, field: Sequence[Answer], deviation: float, freedom: int, *, paired: bool
) -> dict[str, Difference]:
    if not freedom or not mine.comparable:
        return {}
    found = {
        other.mixer: difference_of(mine.scores, other.scores, deviation, freedom, paired=paired)
        for other in field
        if other.comparable
    }
    adjusted = holm({name: each.p for name, each in found.items()})
    return {name: told_of(name, each, adjusted[name], lower=mine.question.lower) for name, each in found.items()}


def by_seed(answers: Sequence[Answer]) -> bool:
    """Return whether differences are paired: the question has no goal, and the seeds that all answers have are enough
    for a deviation."""
    there = [each for each in answers if not each.diverged]
    if len(there) < 2 or there[0].question.goal is not None:
        return False
    deviation, freedom = _paired_deviation(there)
    return deviation > 0 and freedom >= ENOUGH


class Tested(NamedTuple):
    """A difference of two means by a t test."""

    interval: Interval
    p: float
    deviation: float
    """Of a score, as far as the test is concerned."""
    freedom: float


def told_of(other: str, tested: Tested, adjusted: float, *, lower: bool) -> Difference:
    """Return a difference as it is told, with the p that is adjusted for all comparisons."""
    return Difference(other, tested.interval, adjusted, tested.deviation, lower, tested.freedom)


def difference_of(
    mine: Mapping[Any, float], other: Mapping[Any, float], deviation: float, freedom: int, *, paired: bool = False
) -> Tested:
    """Test the difference of two means. The deviation is the pooled one; where one of the two is told to vary more, it
    has its own (Welch), and where only the two together are, both have theirs. `paired`, it is of the seeds that both
    have."""
    if paired:  # two scores of a seed differ from their own means by half of this, in opposite directions
        seeds = mine.keys() & other.keys()
        mine, other = {seed: mine[seed] for seed in seeds}, {seed: other[seed] for seed in seeds}
    gap = fmean(mine.values()) - fmean(other.values())
    squares = [sum((x - fmean(each.values())) ** 2 for x in each.values()) for each in (mine, other)]
    both = _root(sum(squares), len(mine) + len(other) - 2)
    if paired:
        both = _root(sum((mine[seed] - other[seed] - gap) ** 2 for seed in mine) / 2, len(mine) - 1)
    of_all: Deviation = deviation, freedom
    alone = [_root(its, len(each) - 1) for its, each in zip(squares, (mine, other), strict=True)]
    apart = [not paired and _wider(*own, *of_all) for own in alone]
    shared = both if _wider(*both, *of_all) else of_all
    if any(apart):
        sides = [own if wider else of_all for own, wider in zip(alone, apart, strict=True)]
    else:
        sides = [shared, shared]
    parts = [side**2 / len(scores) for (side, _), scores in zip(sides, (mine, other), strict=True)]
    degrees: float = shared[1]
    if any(apart):
        degrees = sum(parts) ** 2 / sum(part**2 / own for part, (_, own) in zip(parts, sides, strict=True))
    error = math.sqrt(sum(parts))
    half = _quantile(degrees) * error
    interval = Interval(gap, gap - half, gap + half, min(len(mine), len(other)))
    p = 2 * float(special.stdtr(degrees, -abs(gap) / error))
    return Tested(interval, p, error / math.sqrt(1 / len(mine) + 1 / len(other)), degrees)


def _root(squares: float, freedom: int) -> Deviation:
    """Return the deviation, and its degrees of freedom; 0 without one."""
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom


def _wider(own: float, of_own: int, pooled: float, freedom: int) -> bool:
    """Return whether an F test tells a deviation above the pooled one: chance alone makes every third pair larger."""
    return of_own > 0 and own > pooled and float(special.fdtrc(of_own, freedom, (own / pooled) ** 2)) < LEVEL


def _quantile(freedom: float, level: float = LEVEL) -> float:
    return float(special.stdtrit(freedom, 1 - level / 2))
