"""Error bars say which differences to believe.

Student t over seeds (1.96 is wrong at n = 5, where it should be 2.78), Wilson for counts, paired differences over
shared seeds, Holm for many comparisons at once, and letters for a table: two rows that share one are not told apart.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from random import Random
from statistics import fmean, stdev
from string import ascii_letters
from typing import Any, TypeVar

from assay.core.errors import UserError
from assay.core.on_use import Later
from assay.core.seeds import derive

special: Any = Later("scipy.special")
K = TypeVar("K", bound=Hashable)
EVERY_DRAW, DRAWS = 5, 4000
"""Seeds up to which every draw is enumerated, and the draws taken from more."""
UPPER, SIGNIFICANT = 0.975, 0.05
"""The upper end of every interval, whose lower end is as far from 0; and the p below which a difference counts."""
ROUNDING = 1e-12
"""Spread of differences, relative to the values, that is rounding."""


@dataclass(frozen=True)
class Interval:
    """A mean of n values and where it may lie; no bounds where n is too small to say."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def mapped(self, to: Callable[[float], float]) -> "Interval":
        """Return the interval of a rising function of the mean."""
        low, high = (None if bound is None else to(bound) for bound in (self.low, self.high))
        return Interval(to(self.mean), low, high, self.n)


def share(values: Sequence[float]) -> Interval:
    """Return `student_t` of values in [0, 1], such as accuracies, its bounds kept there. Where a value lies outside, a
    loss recovered of 1.02, the bound on that side is kept at the value."""
    found = student_t(values)
    if found.low is None or found.high is None:
        return found
    low, high = max(found.low, min(0.0, *values)), min(found.high, max(1.0, *values))
    return Interval(found.mean, low, high, found.n)


def student_t(values: Sequence[float]) -> Interval:
    """Return the 95 % interval mean ± t sd/sqrt(n) with n - 1 degrees of freedom; one value has no interval."""
    if not values:
        raise UserError("an interval needs at least one value; were all runs of this cell lost?")
    mean, n = fmean(values), len(values)
    if n == 1:
        return Interval(mean, None, None, n)
    half = float(special.stdtrit(n - 1, UPPER)) * _deviation(values, mean) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def _deviation(values: Sequence[float], mean: float) -> float:
    """Return the standard deviation, its squares summed exactly: `statistics.stdev` takes ten times as long."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def wilson(successes: int, n: int) -> Interval:
    """Return the score interval of a proportion (Wilson 1927): 5 of 5 is [.57, 1], not [1, 1]."""
    if not 0 <= successes <= n or n == 0:
        raise UserError(f"{successes} of {n} is not a proportion; count at least one run")
    z, share = float(special.ndtri(UPPER)), successes / n
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # At 0 of n and n of n the bound is exact; rounding would put the share one ulp outside.
    return Interval(share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)), n)


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Interval:
    """Return a - b over the seeds both have, so that what the seeds share (data, order) cancels."""
    differences = _differences(a, b)
    if not differences:
        raise UserError(f"no seed in common between {sorted(a)} and {sorted(b)}; run both with the same seeds")
    return student_t(differences)


def paired_p(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Return p of a two-sided paired t test over shared seeds; 1 if fewer than two seeds leave nothing to test.

    Differences that are one number but for rounding have no spread to test with: t would be infinite and p 0. Few seeds
    do not say that much. p is then that of n signs that agree by chance, 2^(1-n): .25 of three seeds, .06 of five."""
    differences = _differences(a, b)
    n = len(differences)
    if n < 2:
        return 1.0
    mean, spread = fmean(differences), stdev(differences)
    rounding = ROUNDING * max(abs(value) for seed in a.keys() & b.keys() for value in (a[seed], b[seed]))
    if spread <= rounding:
        return 2.0 ** (1 - n) if abs(mean) > rounding else 1.0
    return 2 * float(special.stdtr(n - 1, -abs(mean) * math.sqrt(n) / spread))


def bootstrap_difference(a: Mapping[int, float | None], b: Mapping[int, float | None]) -> tuple[Interval, float]:
    """Return the mean of a less that of b over the values that there are, with the percentile interval and p from
    drawing seeds anew: for outcomes that some seeds do not have, such as a score of those that learned at all. A draw
    takes each seed's two values together. p is never below 2^(1-n), what n signs that agree by chance have."""
    seeds = sorted(a.keys() & b.keys())
    pairs = [(a[seed], b[seed]) for seed in seeds]
    if (mean := _mean_difference(pairs)) is None:
        raise UserError(f"no value to compare among seeds {seeds}")
    rng = Random(derive(0, "bootstrap", len(pairs)))
    some = (rng.choices(pairs, k=len(pairs)) for _ in range(DRAWS))
    draws = product(pairs, repeat=len(pairs)) if len(pairs) <= EVERY_DRAW else some
    found = sorted(value for value in map(_mean_difference, draws) if value is not None)
    low, high = (found[round((len(found) - 1) * share)] for share in (1 - UPPER, UPPER))
    beyond = min(sum(value <= 0 for value in found), sum(value >= 0 for value in found))
    return Interval(mean, low, high, len(pairs)), min(1.0, max(2 * beyond / len(found), least_p(len(pairs))))


def least_p(seeds: int) -> float:
    """Return the smallest p that `bootstrap_difference` gives with so many seeds."""
    return 2.0 ** (1 - seeds)


def _mean_difference(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Return the difference of the means of the values on either side; None where a side has none."""
    sides = [[value for value in side if value is not None] for side in zip(*pairs, strict=True)]
    return fmean(sides[0]) - fmean(sides[1]) if all(sides) else None


def holm(p: Mapping[K, float]) -> dict[K, float]:
    """Return adjusted p (Holm 1979): the i-th smallest of m times m - i + 1, never below a smaller one, at most 1."""
    adjusted: dict[K, float] = {}
    running = 0.0
    for rank, key in enumerate(sorted(p, key=lambda key: p[key])):
        running = max(running, min(1.0, (len(p) - rank) * p[key]))
        adjusted[key] = running
    return {key: adjusted[key] for key in p}


def told_apart(
    scores: Mapping[str, Mapping[int, float]], p_of: Callable[[str, str], float] | None = None
) -> list[tuple[str, str]]:
    """Return the pairs of names whose paired difference is significant after Holm over all pairs."""
    test = p_of or (lambda one, other: paired_p(scores[one], scores[other]))
    p = holm({pair: test(*pair) for pair in combinations(scores, 2)})
    return [pair for pair, value in p.items() if value < SIGNIFICANT]


def letters(
    scores: Mapping[str, Mapping[int, float]], p_of: Callable[[str, str], float] | None = None
) -> dict[str, str]:
    """Return a compact letter display (Piepho 2004): two names share a letter unless their paired difference is
    significant after Holm over all pairs; the best mean has 'a'.

        x .90  a        x and y are not told apart, nor are y and z; x and z are
        y .85  ab
        z .80   b

    `p_of` gives the p value of two names where a paired t over what they share is not the test.
    """
    apart = told_apart(scores, p_of)
    ranked = sorted(scores, key=lambda name: fmean(scores[name].values()) if scores[name] else -math.inf, reverse=True)
    rank = {name: place for place, name in enumerate(ranked)}
    groups = sorted(_groups(set(scores), apart), key=lambda group: sorted(rank[name] for name in group))
    return {name: "".join(_letter(i) for i, group in enumerate(groups) if name in group) for name in scores}


def _differences(a: Mapping[int, float], b: Mapping[int, float]) -> list[float]:
    return [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]


def _groups(names: set[str], apart: Sequence[tuple[str, str]]) -> list[set[str]]:
    """Return the largest sets without a significant pair: split every set that has one, absorb subsets of others."""
    groups = [names]
    for a, b in apart:
        split = [part for group in groups for part in ((group - {a}, group - {b}) if {a, b} <= group else (group,))]
        unique = [group for i, group in enumerate(split) if group not in split[:i]]
        groups = [group for group in unique if not any(group < other for other in unique)]
    return groups


def _letter(index: int) -> str:
    return ascii_letters[index] if index < len(ascii_letters) else chr(0x100 + index - len(ascii_letters))
