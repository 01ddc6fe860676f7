"""Do the synthetic questions predict a language model? Rank correlations over the mixers whose records ship.

For every question but the language model: Spearman's rho of the mean score with how well text is predicted (the sign
is such that 1 is perfect), a permutation p, Holm over the questions, a percentile interval over mixers drawn with
replacement, and the range of rho as one family of mixers after the other is left out. Mixers are no sample of all
mixers, and relatives are alike: the last two say how much of a rho hangs on a few.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.card.protocol import FAMILIES
from assay.metrics.intervals import Interval, holm
from assay.metrics.ranks import spearman

DRAWS = 2000
LEAST = 6
"""Fewest mixers over which a correlation is given."""


@dataclass(frozen=True)
class Validity:
    """How one question's scores rank with those of the language model."""

    question: str
    rho: Interval
    p: float
    """Of a permutation test, Holm over the questions."""
    without: tuple[float, float]
    """The least and the largest rho as one family is left out."""


def validities(scores: Mapping[str, Mapping[str, float]], target: Mapping[str, float]) -> list[Validity]:
    """Return the correlations; `scores` by question and mixer, larger being better, as of `target`."""
    found = {}
    for question, own in scores.items():
        names = sorted(own.keys() & target.keys())
        if len(names) >= LEAST:
            found[question] = _validity(question, [(name, own[name], target[name]) for name in names])
    adjusted = holm({question: p for question, (_, p, _) in found.items()})
    return [Validity(question, rho, adjusted[question], without) for question, (rho, _, without) in found.items()]


Point = tuple[str, float, float]


def _validity(question: str, points: Sequence[Point]) -> tuple[Interval, float, tuple[float, float]]:
    rng = random.Random(question)
    rho = _rho(points)
    xs, ys = [x for _, x, _ in points], [y for _, _, y in points]
    beyond = sum(abs(spearman(xs, rng.sample(ys, len(ys)))) >= abs(rho) - 1e-12 for _ in range(DRAWS))
    drawn = sorted(_rho(rng.choices(points, k=len(points))) for _ in range(DRAWS))
    low, high = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]
    rest = [[point for point in points if _family(point[0]) != family] for family in FAMILIES]
    apart = [_rho(left) for left in rest if LEAST <= len(left) < len(points)] or [rho]
    return Interval(rho, low, high, len(points)), (beyond + 1) / (DRAWS + 1), (min(apart), max(apart))


def _rho(points: Sequence[Point]) -> float:
    return spearman([x for _, x, _ in points], [y for _, _, y in points])


def _family(mixer: str) -> str:
    """Return the family of a mixer of the field, whatever its options; others are `other`."""
    name = mixer.partition(":")[0]
    families = {word.partition(":")[0]: family for family, words in FAMILIES.items() for word in words}
    return families.get(name, "other")
