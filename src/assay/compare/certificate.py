"""A certificate says whether a number is that of a converged training: its recipe, longer training, its seeds.

    recipe      the best recipe lies inside those tried                                   ok | grid edge | diverged
    training    against half of it, in shares of the way from a guess to the goal, paired over seeds:
                mean gain + t(.95, n-1) s / sqrt(n) <= .05, or the goal reached           ok | still learning | unstable
    seeds       enough for that test                                                      ok | few seeds

A sentence about what something can or cannot do needs all three. It is data: a report shows the first word that is not
`ok`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from assay.core.on_use import Later

special: Any = Later("scipy.special")
STILL = 0.05
"""Share of the way from a guess to the goal by which half of the training may still change the number."""
ONE_SIDED = 0.95
FEWEST, MOST = 3, 10
"""Seeds that the test of longer training needs, and those up to which a noisy number gets more."""
NOISY = 0.03
"""Deviation of the gains, in shares of the way, from which on five seeds pass half of the time when nothing changes."""
Recipe = Literal["ok", "grid edge", "diverged", ""]
Training = Literal["ok", "still learning", "unstable", ""]
Seeds = Literal["ok", "few seeds", ""]


@dataclass(frozen=True)
class Certificate:
    """What stands under a number; an empty word: not asked."""

    recipe: Recipe = ""
    training: Training = ""
    seeds: Seeds = ""
    gain: float | None = None
    """What longer training gained on average, as a share of the way from a guess to the goal."""
    bound: float | None = None
    """The upper end of that, one-sided, 95 %."""

    @property
    def word(self) -> str:
        """The first word that is not ok; `certified` where all are."""
        return next((each for each in (self.recipe, self.seeds, self.training) if each not in ("", "ok")), "certified")

    @property
    def holds(self) -> bool:
        return self.word == "certified"


def edge(best: float, tried: Sequence[float]) -> bool:
    """Whether the best recipe is the lowest or the highest of those tried; one alone is both."""
    return best in (min(tried), max(tried))


def trained(
    half: Mapping[Any, float], whole: Mapping[Any, float], *, guess: float, goal: float, reached: float | None = None
) -> Certificate:
    """Compare scores by seed after half of the training and after all of it. `goal` is the best possible score, or what
    counts as such; `reached`, where given, is the score from which on nothing is left to gain. Scores may be losses:
    the way from `guess` to `goal` says which direction is better."""
    way = goal - guess
    assert way, "a guess is as good as the goal: nothing can be learned"
    if reached is not None and whole and all((score - reached) / way >= 0 for score in whole.values()):
        return Certificate(training="ok", seeds="ok" if len(whole) >= FEWEST else "few seeds")
    gains = [(whole[seed] - half[seed]) / way for seed in whole if seed in half]
    n = len(gains)
    if n < FEWEST:
        return Certificate(seeds="few seeds", gain=fmean(gains) if gains else None)
    mean = fmean(gains)
    spread = math.sqrt(math.fsum((gain - mean) ** 2 for gain in gains) / (n - 1))
    reach = float(special.stdtrit(n - 1, ONE_SIDED)) * spread / math.sqrt(n)
    word: Training = "ok" if mean + reach <= STILL else "still learning"
    if mean + reach < -STILL:  # it fell, and not by chance
        word = "unstable"
    return Certificate(training=word, seeds="ok", gain=mean, bound=mean + reach)


def more_seeds(certificate: Certificate, spread: float, have: int) -> bool:
    """Whether more seeds may decide what noise leaves open."""
    return certificate.training == "still learning" and spread > NOISY and have < MOST
