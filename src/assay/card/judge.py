"""Compares a mixer with the field, question by question, and says in words what may be said.

Two mixers are told apart by a t test, Holm over the field. The standard deviation is pooled over all mixers of the
question, since two or five seeds of one say little about it, and is never below the sampling error of a score; where
the two that are compared vary more than that, as mixers do that learn with some of their seeds alone, their own counts.
Mixers with a diverged run, or a rate at the edge of its grid, are not compared.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from assay.card.battery import Answer, Bounds
from assay.card.protocol import STILL
from assay.core.on_use import Later
from assay.metrics.intervals import Interval, holm

special: Any = Later("scipy.special")
LEVEL = 0.05

Standing = Literal["above", "below", "level"]


@dataclass(frozen=True)
class Difference:
    """The mixer's score less another's, or a later card's less an earlier one's."""

    other: str
    """The other mixer, or the question of two cards."""
    interval: Interval
    """Not adjusted: how large the difference may be."""
    p: float
    """Adjusted over the field (Holm)."""

    @property
    def standing(self) -> Standing:
        if self.p >= LEVEL:
            return "level"
        return "above" if self.interval.mean > 0 else "below"


@dataclass(frozen=True)
class Line:
    """One question on the card."""

    answer: Answer
    bounds: Bounds
    interval: Interval
    deviation: float
    """Between seeds, pooled over all mixers that were compared, with so many degrees of `freedom`."""
    freedom: int
    differences: Mapping[str, Difference]
    verdict: str
    certified: bool
    """Whether it holds for every seed: all reached the goal, or none did and longer training changes nothing."""

    @property
    def above(self) -> str:
        """How many mixers of the field are told apart above it: `0 of 3`; empty where none can be compared."""
        better = [each for each in self.differences.values() if each.standing == "below"]
        return f"{len(better)} of {len(self.differences)}" if self.differences else ""

    @property
    def best(self) -> Difference | None:
        """The difference to the best of the field."""
        return min(self.differences.values(), key=lambda each: each.interval.mean, default=None)


def line(mine: Answer, field: Sequence[Answer], bounds: Bounds) -> Line:
    """Judge one question: `field` are the answers of the other mixers."""
    deviation, freedom = pooled([mine, *field])
    differences = _differences(mine, field, deviation, freedom)
    verdict, certified = _verdict(mine)
    interval = interval_of(mine, deviation, freedom)
    return Line(mine, bounds, interval, deviation, freedom, differences, verdict, certified)


def pooled(answers: Sequence[Answer]) -> tuple[float, int]:
    """Return the standard deviation between seeds, pooled over mixers, and its degrees of freedom."""
    squares = sum((value - each.mean) ** 2 for each in answers for value in each.scores.values())
    freedom = sum(len(each.scores) - 1 for each in answers)
    least = answers[0].question.resolution
    return (max(least, math.sqrt(squares / freedom)) if freedom else math.inf), freedom


def interval_of(answer: Answer, deviation: float, freedom: int) -> Interval:
    """Return the interval of a mean, a share, by the pooled deviation."""
    n = len(answer.scores)
    if not freedom:
        return Interval(answer.mean, None, None, n)
    half = _quantile(freedom) * deviation / math.sqrt(n)
    return Interval(answer.mean, max(0.0, answer.mean - half), min(1.0, answer.mean + half), n)


def _differences(mine: Answer, field: Sequence[Answer], deviation: float, freedom: int) -> dict[str, Difference]:
    if not freedom or not mine.comparable:
        return {}
    found = {
        other.mixer: difference_of(mine.scores, other.scores, deviation, freedom) for other in field if other.comparable
    }
    adjusted = holm({name: p for name, (_, p) in found.items()})
    return {name: Difference(name, interval, adjusted[name]) for name, (interval, _) in found.items()}


def difference_of(
    mine: Mapping[Any, float], other: Mapping[Any, float], deviation: float, freedom: int
) -> tuple[Interval, float]:
    """Return the difference of two means with its interval, and the p of a t test: with the pooled deviation, or with
    that of the two alone where it is larger."""
    squares = sum((x - fmean(each.values())) ** 2 for each in (mine, other) for x in each.values())
    own_freedom = len(mine) + len(other) - 2
    if own_freedom and (own := math.sqrt(squares / own_freedom)) > deviation:
        deviation, freedom = own, own_freedom
    error = deviation * math.sqrt(1 / len(mine) + 1 / len(other))
    gap, half = fmean(mine.values()) - fmean(other.values()), _quantile(freedom) * error
    interval = Interval(gap, gap - half, gap + half, min(len(mine), len(other)))
    return interval, 2 * float(special.stdtr(freedom, -abs(gap) / error))


def _verdict(mine: Answer) -> tuple[str, bool]:
    """Say with how many seeds the goal was reached; that it was reached with none only where the rate lies inside its
    grid, no run diverged, and twice the training changed nothing."""
    question, seeds = mine.question, len(mine.scores)
    told = f"{question.does} with {mine.reached_by} of {seeds} seeds ({question.setting})"
    if mine.reached_by:
        return told, mine.reached
    if mine.diverged:
        return f"{question.name}: {mine.diverged} runs diverged at the best rate: says nothing yet", False
    if mine.at_edge:
        return f"{question.name}: the best rate, {mine.rate:g}, is at the edge of those tried: says nothing yet", False
    gains = [mine.longer[seed] - score for seed, score in mine.scores.items() if seed in mine.longer]
    if len(gains) < seeds or max(gains) > STILL or max(mine.longer.values()) > question.goal - STILL:
        gain = f"by up to {max(gains):+.2f}" if gains else "by an unknown amount"
        return f"{question.name}: twice the training moves the score {gain}: says nothing yet", False
    return f"{told}, nor with twice the training", True


def _quantile(freedom: int) -> float:
    return float(special.stdtrit(freedom, 1 - LEVEL / 2))


def in_words(lines: Sequence[Line]) -> list[str]:
    """Return the verdicts as sentences: what it does, what it does not, and beside whom."""
    found = []
    for each in lines:
        beside = {
            standing: [name for name, difference in each.differences.items() if difference.standing == standing]
            for standing in ("above", "below")
        }
        told = [
            f"{word} {', '.join(names)}"
            for word, names in (("better than", beside["above"]), ("worse than", beside["below"]))
            if names
        ]
        level = "" if told or not each.differences else f"not told apart from {', '.join(each.differences)}"
        found.append("; ".join(part for part in (each.verdict, *told, level) if part))
    return found
