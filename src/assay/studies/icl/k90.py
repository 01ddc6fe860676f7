"""A model's capacity: the number of pairs it still recalls (K90), and the bits they carry.

    pairs       4     8     16    32    64
    accuracy   1.00  .99   .97   .94   .70        the fit falls through .9 one sixth of the way from 32 to 64,
                                                  in log2 pairs: K90 = 32 * 2^(1/6) = 35.9

The fit is the closest curve that never rises, so that one lucky size counts for little. Nothing is extrapolated: a
curve that ends above the level says K90 >= the largest size, one that starts below it says K90 < the smallest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal

from assay.core.errors import UserError
from assay.metrics.intervals import student_t

LEARNED = 0.98
"""Accuracy at the smallest size from which on a model has left the plateau of guessing."""


@dataclass(frozen=True)
class Crossing:
    """The size at which a curve falls through a level; `above` or `below`: past the last or first size, `value`."""

    value: float
    censored: Literal["no", "above", "below"] = "no"

    def __str__(self) -> str:
        sign = {"no": "", "above": ">= ", "below": "< "}[self.censored]
        return f"{sign}{self.value:.{0 if self.value >= 10 else 1}f}".removesuffix(".0")


@dataclass(frozen=True)
class Capacity:
    """A crossing pooled over seeds. A bound may be censored too: it then lies beyond the sizes that were tried.

    57 [41, 80]    181 [120, >= 256)    5.2 (< 4, 9.1]    >= 256 (every seed)    57 (one seed: no interval)
    """

    point: Crossing
    low: Crossing | None
    high: Crossing | None
    seeds: tuple[Crossing, ...]
    """The crossing of each seed, in the order given."""

    def __str__(self) -> str:
        if self.low is None or self.high is None or (self.point.censored != "no" and self.low == self.high):
            return str(self.point)
        left = "[" if self.low.censored == "no" else "("
        right = "]" if self.high.censored == "no" else ")"
        return f"{self.point} {left}{self.low}, {self.high}{right}"


def decreasing(values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """The non-increasing curve nearest in (weighted) squares: neighbours that rise are pooled into their mean."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many values
    for value, weight in zip(values, weights if weights is not None else [1.0] * len(values), strict=True):
        mean, total, count = value, weight, 1
        while pools and pools[-1][0] < mean:
            before, its_weight, its_count = pools.pop()
            mean = (before * its_weight + mean * total) / (its_weight + total)
            total, count = its_weight + total, its_count + count
        pools.append((mean, total, count))
    return [mean for mean, _, count in pools for _ in range(count)]


def crossing(sizes: Sequence[int], accuracies: Sequence[float], level: float = 0.9) -> Crossing:
    """The size at which the decreasing fit leaves the level, on a straight line in log2 of the size."""
    _check(sizes, accuracies)
    fit = decreasing(accuracies)
    held = sum(value >= level for value in fit)
    if held == 0:
        return Crossing(float(sizes[0]), "below")
    if held == len(fit):
        return Crossing(float(sizes[-1]), "above")
    share = (fit[held - 1] - level) / (fit[held - 1] - fit[held])
    return Crossing(sizes[held - 1] * (sizes[held] / sizes[held - 1]) ** share)


def capacity_interval(sizes: Sequence[int], curves: Sequence[Sequence[float]], level: float = 0.9) -> Capacity:
    """The crossing of the mean curve, with Student's interval for log2 of the seeds' own crossings.

    A mean curve need not cross at the mean of the crossings, so the point is not the interval's middle.
    """
    if not curves:
        raise UserError("a capacity needs the curve of at least one seed; were all runs of this cell lost?")
    seeds = tuple(crossing(sizes, curve, level) for curve in curves)
    point = crossing(sizes, [fmean(column) for column in zip(*curves, strict=True)], level)
    low, high = _bounds(sizes, point, seeds)
    return Capacity(point, low, high, seeds)


def recalled_bits(accuracy: float, pairs: int, vocab: int) -> float:
    """Bound from below the bits about a sequence's values in its answers: Fano's inequality for each query.

        pairs * (log2 M - h(e) - e log2(M - 1)),    M = vocab / 2 values,  e = 1 - accuracy,  h(e) = entropy of a coin

    It is exact where all wrong values are equally likely, and low where some are likelier or some queries easier. The
    values of one sequence are distinct, which would lower this by 0.4 % at 256 pairs of 8192 tokens; that is ignored.
    """
    values, error = vocab - vocab // 2, 1 - accuracy
    if values < 2 or not 0 <= accuracy <= 1:
        raise UserError(f"accuracy={accuracy}, vocab={vocab}: give an accuracy in [0, 1] and at least 3 tokens.")
    lost = _entropy(accuracy) + _entropy(error) + error * math.log2(values - 1)
    return pairs * max(0.0, math.log2(values) - lost)  # at chance, rounding may leave a last bit below 0


def answered_bits(loss: float, pairs: int, vocab: int) -> float:
    """Bound from below the bits about a sequence's values in its answers, by the cross entropy of those (in nats):

        pairs * (log2 M - loss / ln 2),    M = vocab / 2 values

    Tighter than Fano's bound, since a model may know how sure it is. At most log2 K of the log2 M bits per value are
    about which of the K values belongs to the key; the rest says which values there are at all.
    """
    return pairs * max(0.0, math.log2(vocab - vocab // 2) - loss / math.log(2))


def beyond_the_set(bits: float, pairs: int, vocab: int) -> float:
    """The part of these bits that says which value belongs to which key: not what one has who knows the K values of a
    sequence and guesses among them, K (log2 M - log2 K).

        256 pairs of 4096 values: 3072 bits by lookup, 1024 by the set alone  ->  2048 beyond it
    """
    return max(0.0, bits - pairs * (math.log2(vocab - vocab // 2) - math.log2(pairs)))


def best_recalled_bits(sizes: Sequence[int], accuracies: Sequence[float], vocab: int, *, beyond: bool = False) -> float:
    """The most bits recalled at any size, or beyond the set; past its capacity a model may recall more in sum, each
    pair worse."""
    _check(sizes, accuracies)
    found = [(recalled_bits(accuracy, size, vocab), size) for size, accuracy in zip(sizes, accuracies, strict=True)]
    return max(beyond_the_set(bits, size, vocab) if beyond else bits for bits, size in found)


def _bounds(
    sizes: Sequence[int], point: Crossing, seeds: Sequence[Crossing]
) -> tuple[Crossing | None, Crossing | None]:
    """Student's bounds, each open where it rests on a censored crossing or leaves the sizes that were tried.

    Crossings censored above enter as the largest size. That is no more than they are, so the lower bound still holds
    (it is one for the mean of the smaller of K90 and that size); the upper one would be invented. Likewise below.
    """
    if len(seeds) == 1:
        return None, None
    if len(set(seeds)) == 1:
        return seeds[0], seeds[0]
    interval = student_t([math.log2(seed.value) for seed in seeds])
    assert interval.low is not None and interval.high is not None
    low, high = (_within(sizes, bound) for bound in (interval.low, interval.high))
    kinds = {point.censored, *(seed.censored for seed in seeds)}
    if "above" in kinds:
        high = Crossing(float(sizes[-1]), "above")
    if "below" in kinds:
        low = Crossing(float(sizes[0]), "below")
    return low, high


def _within(sizes: Sequence[int], exponent: float) -> Crossing:
    if exponent >= math.log2(sizes[-1]):
        return Crossing(float(sizes[-1]), "above")
    if exponent < math.log2(sizes[0]):
        return Crossing(float(sizes[0]), "below")
    return Crossing(2**exponent)


def _entropy(share: float) -> float:
    return -share * math.log2(share) if share else 0.0


def _check(sizes: Sequence[int], accuracies: Sequence[float]) -> None:
    if not sizes or len(sizes) != len(accuracies):
        raise UserError(f"{len(sizes)} sizes and {len(accuracies)} accuracies: give one accuracy per size.")
    if sizes[0] <= 0 or any(after <= before for before, after in pairwise(sizes)):
        raise UserError(f"sizes {list(sizes)} must be positive and rise from one to the next.")
