"""Compares a mixer with the field, question by question, and says in words what may be said.

Two mixers are told apart by a t test, Holm over the field. The standard deviation is pooled over all mixers of the
question, since two or five seeds of one say little about it, and is never below the sampling error of a score; where
the two that are compared vary more than that, as mixers do that learn with some of their seeds alone, their own counts.
Mixers with a diverged run, or a rate at the edge of its grid, are not compared.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from assay.card.battery import Answer, Bounds
from assay.card.protocol import STILL, TOLERANCE
from assay.core.on_use import Later
from assay.metrics.intervals import Interval, holm

special: Any = Later("scipy.special")
LEVEL = 0.05

Standing = Literal["above", "below", "level"]


ENOUGH = 4
"""Degrees of freedom that a deviation of its own needs."""
NAMED = 4
"""Most mixers that a sentence names; the others are counted."""
FEW = 3
"""With fewer to compare with, `none` is better would sound like more than it is."""
SEEDS = 100
"""What more seeds than this would tell is not worth saying."""


@dataclass(frozen=True)
class Difference:
    """The score less another's, or a later card's less an earlier one's."""

    other: str
    """The other mixer or method, or the question of two cards."""
    interval: Interval
    """Not adjusted: how large the difference may be."""
    p: float
    """Adjusted over the field (Holm)."""
    deviation: float
    """Of the test: between seeds, or of documents."""
    lower: bool = False
    """Whether a smaller score is better."""

    @property
    def standing(self) -> Standing:
        if self.p >= LEVEL:
            return "level"
        return "above" if (self.interval.mean > 0) is not self.lower else "below"

    @property
    def behind(self) -> float:
        """By how much the score is worse than the other's."""
        return self.interval.mean if self.lower else -self.interval.mean


class Compared(ABC):
    """A line of a card, of whatever kind: its place among those that it is compared with, by its differences."""

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
        return max(self.differences.values(), key=lambda each: each.behind, default=None)

    def beside(self) -> list[str]:
        """Say who is told apart and who is not, the best first: `better than a, b`, `not told apart from c`."""
        best_first = sorted(self.differences.values(), key=lambda each: -each.behind)
        standings: dict[str, Standing] = {"better than": "above", "worse than": "below", "not told apart from": "level"}
        found = {word: [one.other for one in best_first if one.standing == kind] for word, kind in standings.items()}
        return [f"{word} {named(names)}" for word, names in found.items() if names]


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
    certified: bool
    """Whether it holds for every seed: all reached the goal, or none did and longer training changes nothing."""

    @property
    def name(self) -> str:
        return self.answer.question.name

    @property
    def seeds_to_tell(self) -> int | None:
        """About how many seeds of each would tell it from the best of the field; None where it is told already, or
        where a difference like the one seen would need more than SEEDS."""
        if self.best is None or self.best.standing != "level" or not self.best.interval.mean:
            return None
        level = LEVEL / len(self.differences)  # as Holm's first
        reach = float(special.ndtri(1 - level / 2) + special.ndtri(0.8))  # 80 % power
        needed = math.ceil(2 * (reach * self.best.deviation / self.best.interval.mean) ** 2)
        return max(needed, len(self.answer.scores) + 1) if needed <= SEEDS else None


def line(mine: Answer, field: Sequence[Answer], bounds: Bounds) -> Line:
    """Judge one question: `field` are the answers of the other mixers."""
    deviation, freedom = pooled([mine, *field])
    differences = _differences(mine, field, deviation, freedom)
    verdict, certified = _verdict(mine)
    interval = interval_of(mine, deviation, freedom)
    return Line(mine, bounds, interval, deviation, freedom, differences, verdict, certified)


def pooled(answers: Sequence[Answer]) -> tuple[float, int]:
    """Return the standard deviation between seeds, pooled over mixers, and its degrees of freedom. Rows that diverged
    say nothing; those that solved the question vary less than others can, and are left out where enough others are."""
    there = [each for each in answers if not each.diverged] or answers
    unsolved = [each for each in there if not each.reached]
    (deviation, freedom), (wider, of_unsolved) = _deviation(there), _deviation(unsolved)
    if of_unsolved >= ENOUGH and wider > deviation:
        deviation, freedom = wider, of_unsolved
    return (max(answers[0].question.resolution, deviation), freedom) if freedom else (math.inf, 0)


def _deviation(answers: Sequence[Answer]) -> tuple[float, int]:
    squares = sum((value - each.mean) ** 2 for each in answers for value in each.scores.values())
    freedom = sum(len(each.scores) - 1 for each in answers)
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom


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


def _differences(mine: Answer, field: Sequence[Answer], deviation: float, freedom: int) -> dict[str, Difference]:
    if not freedom or not mine.comparable:
        return {}
    found = {
        other.mixer: difference_of(mine.scores, other.scores, deviation, freedom) for other in field if other.comparable
    }
    adjusted = holm({name: p for name, (_, p, _) in found.items()})
    lower = mine.question.lower
    return {
        name: Difference(name, interval, adjusted[name], used, lower) for name, (interval, _, used) in found.items()
    }


def difference_of(
    mine: Mapping[Any, float], other: Mapping[Any, float], deviation: float, freedom: int
) -> tuple[Interval, float, float]:
    """Return the difference of two means with its interval, the p of a t test and the deviation it used: the pooled
    one, or that of the two alone where it is told to be larger."""
    squares = sum((x - fmean(each.values())) ** 2 for each in (mine, other) for x in each.values())
    own_freedom = len(mine) + len(other) - 2
    own = math.sqrt(squares / own_freedom) if own_freedom else 0.0
    if _wider(own, own_freedom, deviation, freedom):
        deviation, freedom = own, own_freedom
    error = deviation * math.sqrt(1 / len(mine) + 1 / len(other))
    gap, half = fmean(mine.values()) - fmean(other.values()), _quantile(freedom) * error
    interval = Interval(gap, gap - half, gap + half, min(len(mine), len(other)))
    return interval, 2 * float(special.stdtr(freedom, -abs(gap) / error)), deviation


def _wider(own: float, of_own: int, pooled: float, freedom: int) -> bool:
    """Return whether an F test tells a deviation above the pooled one: chance alone makes every third pair larger."""
    return own > pooled and float(special.fdtrc(of_own, freedom, (own / pooled) ** 2)) < LEVEL


def _verdict(mine: Answer) -> tuple[str, bool]:
    """Say with how many seeds the goal was reached; that it was reached with none only where the rate lies inside its
    grid, no run diverged, and twice the training changed nothing."""
    question, seeds = mine.question, len(mine.scores)
    if mine.failed:
        return f"{question.name}: its runs failed, {mine.failed}; `assay show` has the whole error", False
    if question.goal is None:
        return _measured(mine)
    told = f"{question.does} with {mine.reached_by} of {seeds} seeds ({question.setting})"
    if mine.reached_by:
        return told, mine.reached
    if mine.diverged:
        return f"{question.name}: {mine.diverged} runs diverged at the best rate: says nothing yet", False
    if mine.at_edge:
        return f"{question.name}: the best rate, {mine.rate:g}, is at the edge of those tried: says nothing yet", False
    if mine.stopped:
        return f"{question.name}: learned what it was trained on, and not this: says nothing of longer training", False
    if mine.held_back:
        return (
            f"{question.name}: {mine.held_back} of {seeds} seeds, also with twice the training, do not learn the "
            "smallest size, and so were never trained on the one that is scored: says nothing of that"
        ), False
    gains = [mine.longer[seed] - score for seed, score in mine.scores.items() if seed in mine.longer]
    if len(gains) < seeds or max(gains) > STILL or max(mine.longer.values()) > question.goal - STILL:
        gain = f"by up to {max(gains):+.2f}" if gains else "by an unknown amount"
        return f"{question.name}: twice the training moves the score {gain}: says nothing yet", False
    return f"{told}, nor with twice the training", True


def _measured(mine: Answer) -> tuple[str, bool]:
    """Say a number that has no goal; longer training would improve it, so it says nothing of what a mixer cannot do."""
    question = mine.question
    if not mine.comparable:
        why = "some runs diverged" if mine.diverged else f"the best rate, {mine.rate:g}, is at the edge of those tried"
        return f"{question.name}: {why}: says nothing yet", False
    return f"{mine.mean:.2f} {question.does} ({question.setting})", False


def _quantile(freedom: int) -> float:
    return float(special.stdtrit(freedom, 1 - LEVEL / 2))


def headline(lines: Sequence[Compared], better: str, at: str) -> str:
    """Say in one sentence, without its period, how many of the field are told better, line by line: `headline(lines,
    "mixers told better than it", "in")`."""
    found = {
        each.name: (sum(one.standing == "below" for one in each.differences.values()), len(each.differences))
        for each in lines
        if each.differences
    }
    if not found:
        return "In short: nothing of it can be compared"
    none = [name for name, (count, of) in found.items() if not count and of >= FEW]
    some = [f"{count} of {of} {at} {name}" for name, (count, of) in found.items() if name not in none]
    parts = [f"none {at} {', '.join(none)}"] if none else []
    return f"In short, {better}: {'; '.join([*parts, *filter(None, [', '.join(some)])])}"


def in_words(lines: Sequence[Line]) -> list[str]:
    """Return the verdicts as sentences: what it does, what it does not, and beside whom."""
    found = []
    for each in lines:
        told = each.beside()
        if (seeds := each.seeds_to_tell) and each.best:
            more = seeds - len(each.answer.scores)
            told.append(
                f"undecided: about {more} more seed{'s'[: more > 1]} of each would tell it from {each.best.other}"
            )
        if told and each.answer.question.goal is not None and not each.certified:
            told[0] = f"at equal training {told[0]}"
        found.append("; ".join((each.verdict, *told)))
    return found


def matching_of(lines: Sequence[Line]) -> list[str]:
    """Say in which questions the models have as many parameters per layer as the field's."""
    of = {matched: [each.answer.question.name for each in lines if each.answer.matched is matched]
          for matched in (True, False, None)}  # fmt: skip
    told = [
        f"within {TOLERANCE:.0%} of the field's ({', '.join(of[True])})" if of[True] else "",
        f"not matched: the mixer alone is larger ({', '.join(of[False])})" if of[False] else "",
        f"not matched: the mixer alone is the layer ({', '.join(of[None])})" if of[None] else "",
    ]
    return [f"  parameters per layer: {'; '.join(each for each in told if each)}"]


def named(names: Sequence[str]) -> str:
    """Name a few: `a, b, c, d and 3 more`."""
    more = len(names) - NAMED
    return ", ".join(names) if more < 2 else f"{', '.join(names[:NAMED])} and {more} more"
