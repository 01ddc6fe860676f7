"""Who differs from whom: Welch's t test between the means of seeds, Holm over the comparisons of a row.

    t = (a - b) / sqrt(sa^2/n + sb^2/m)        degrees of freedom by Welch and Satterthwaite

No variance is pooled over arms: how far seeds lie apart differs between them by far more than chance (a mixer that
learns with half of its seeds beside one that always does). From three seeds on false alarms stay below .05 a row; with
two nobody can be told from anybody, and no p is below 1 (tests/compare has both by simulation).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from assay.core.on_use import Later
from assay.metrics.intervals import UPPER, Interval, holm

special: Any = Later("scipy.special")
LEVEL = 0.05
FEWEST = 3
"""Seeds of either side from which on a difference is tested."""
BY_SEED = Mapping[Any, float]
"""Scores by seed."""
Word = Literal["better", "worse", "no difference shown", "few seeds"]
MARKS: Mapping[Word, str] = {"better": "+", "worse": "-", "no difference shown": "", "few seeds": "?"}


@dataclass(frozen=True)
class Difference:
    """A score less another's."""

    interval: Interval
    """95 %, not adjusted for other comparisons."""
    p: float
    """Adjusted, once it stands among others."""
    error: float
    """Standard error of the difference."""
    freedom: float
    lower: bool = False
    """Whether less is better."""

    @property
    def gain(self) -> float:
        """By how much the first is better."""
        return -self.interval.mean if self.lower else self.interval.mean

    @property
    def word(self) -> Word:
        if self.interval.n < FEWEST:
            return "few seeds"
        if self.p >= LEVEL:
            return "no difference shown"
        return "better" if self.gain > 0 else "worse"

    @property
    def mark(self) -> str:
        return MARKS[self.word]

    def detectable(self, comparisons: int = 1) -> float:
        """The smallest difference that so many seeds could have shown, as Holm's first of so many comparisons."""
        return float(special.stdtrit(self.freedom, 1 - LEVEL / comparisons / 2)) * self.error


def differs(
    a: BY_SEED, b: BY_SEED, *, lower: bool = False, sampling: float = 0.0, documents: tuple[float, float] = (0.0, 1.0)
) -> Difference:
    """Compare two means over seeds. `sampling` is the standard error of one score by what it is taken from (sequences,
    questions): no side's deviation is below it, for five equal scores are not known without error. `documents` is a
    standard error of the difference over documents that both sides share, with its degrees of freedom: it is added."""
    gap, n, m = fmean(a.values()) - fmean(b.values()), len(a), len(b)
    fewest = min(n, m)
    if fewest < 2:
        return Difference(Interval(gap, None, None, fewest), 1.0, math.inf, 1.0, lower)
    parts = [(max(_variance(side), sampling**2) / len(side), len(side) - 1.0) for side in (a, b)]
    parts = [(part, freedom) for part, freedom in (*parts, (documents[0] ** 2, documents[1])) if part > 0]
    if not parts:  # both sides are constants: n + m scores in an order that chance gives in 2 of so many ways
        p = 2 / math.comb(n + m, n) if gap else 1.0
        return Difference(Interval(gap, gap, gap, fewest), p if fewest >= FEWEST else 1.0, 0.0, n + m - 2.0, lower)
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / own for part, own in parts)
    error = math.sqrt(variance)
    half = float(special.stdtrit(freedom, UPPER)) * error
    p = 2 * float(special.stdtr(freedom, -abs(gap) / error)) if fewest >= FEWEST else 1.0
    return Difference(Interval(gap, gap - half, gap + half, fewest), p, error, freedom, lower)


def judged(
    mine: BY_SEED, others: Mapping[str, BY_SEED], *, lower: bool = False, sampling: float = 0.0
) -> dict[str, Difference]:
    """Compare one with each of the others, Holm over all of them."""
    return adjusted({name: differs(mine, other, lower=lower, sampling=sampling) for name, other in others.items()})


def adjusted(differences: Mapping[Any, Difference]) -> dict[Any, Difference]:
    """Return the same with p adjusted (Holm) over all of them."""
    p = holm({name: each.p for name, each in differences.items()})
    return {name: replace(each, p=p[name]) for name, each in differences.items()}


def places(differences: Iterable[Difference]) -> tuple[int, int]:
    """The first and the last place that the one compared may have among the others, itself counted."""
    words = [each.word for each in differences]
    return 1 + words.count("worse"), 1 + len(words) - words.count("better")


def _variance(side: BY_SEED) -> float:
    mean = fmean(side.values())
    return math.fsum((value - mean) ** 2 for value in side.values()) / (len(side) - 1)
