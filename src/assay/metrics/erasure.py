"""A concept is erased by switching off the few units that probes blame for it (Karvonen et al. 2024, arXiv 2411.18895).

Linear probes read concepts from the inputs x. A unit's share in a probe w is its effect,

    effect_i = (mean of a_i with the concept - mean without) (W_i . w)

and the n units with the largest effect are set to 0: x' = x - sum_i a_i W_i, so that what a code does not explain
stays. W is the ridge decoder that every code is judged by. The probes are then read on x':

    TPP   targeted probe perturbation: accuracy lost by a concept's own probe, less that lost by the others' probes
    SCR   spurious correlation removal: a probe of one attribute (cat or dog) is trained where another (indoors or
          outdoors) always agrees with it, and the other's units are switched off: (accuracy - biased) / (clean -
          biased), where clean is a probe of rows in which the two are independent. Over pairs of attributes, the sum
          of what was gained over the sum of what there was to gain

Accuracies are balanced, as by SAEBench's balanced rows: TPP is .5 at most, SCR 1 where the bias is gone. As published,
TPP counts only units that are more active with the concept, and SCR takes effects of either sign. Few units tell coders
apart: with many, what is left of x reads nothing whichever units they were, and random features come near the truth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.metrics.sparsity import Code, Directions, Rows, even, newton

PerRow = Float[Tensor, "fits n"]
Probes = Float[Tensor, "fits width"]
Effects = Float[Tensor, "fits units"]
STEPS = 10
"""Newton steps of a probe: with the ridge of `newton` they converge."""


@dataclass(frozen=True)
class Coded:
    """Rows, their code, and the concepts each has."""

    x: Rows
    code: Code
    has: Bool[Tensor, "n concepts"]

    def first(self, rows: int) -> "Coded":
        return Coded(self.x[:rows], self.code[:rows], self.has[:rows])


def targeted_perturbation(train: Coded, test: Coded, W: Directions, counts: Sequence[int]) -> dict[int, float]:
    """Return TPP by the number of units that are switched off."""
    labels = train.has.mT.double()
    share = even(labels)
    probes = _probes(train.x, labels, share)
    effects = _differences(train.code, labels, share).clamp_min(0) * (probes[:, :-1] @ W.double().mT)
    judged = test.has.mT.double()
    weigh = even(judged)
    whole = _accuracy(probes, test.x, judged, weigh)
    own = torch.eye(len(labels), dtype=torch.bool, device=labels.device)

    def score(count: int) -> float:
        lost = torch.stack(
            [whole - _accuracy(probes, erased, judged, weigh) for erased in _erased(test, W, effects, count)]
        )
        return float(lost[own].mean() - lost[~own].mean())

    return {count: score(count) for count in counts}


def spurious_removal(train: Coded, test: Coded, W: Directions, counts: Sequence[int]) -> dict[int, float]:
    """Return SCR by the number of units that are switched off. Concepts in pairs are attributes: a row with one of the
    two has that value; each attribute is made spurious for the one before. Empty where the biased probes are as good as
    the clean ones, so that there is nothing to gain, or there are fewer than four concepts."""
    attributes = range(train.has.shape[1] // 2)
    pairs = [(k, (k + 1) % len(attributes)) for k in attributes] if len(attributes) > 1 else []
    tried = [_debiased(_valued(train, *pair), _valued(test, *pair), W, counts) for pair in pairs]
    there = [(room, gains) for room, gains in tried if gains]
    whole = sum(room for room, _ in there)
    if whole <= 0:
        return {}
    return {count: sum(gains[place] for _, gains in there) / whole for place, count in enumerate(counts)}


def _valued(rows: Coded, kept: int, spurious: int) -> Coded:
    """Keep the rows that have one value of either attribute, and which it is."""
    values = rows.has[:, [2 * kept, 2 * spurious]]
    one = (values ^ rows.has[:, [2 * kept + 1, 2 * spurious + 1]]).all(dim=1)
    return Coded(rows.x[one], rows.code[one], values[one])


def _debiased(train: Coded, test: Coded, W: Directions, counts: Sequence[int]) -> tuple[float, list[float]]:
    """Return how much more accurate a clean probe of the first attribute is than one of rows in which the second always
    agrees, and how much of that is gained by switching off the second's units, by their number."""
    if any(len(rows.has.unique(dim=0)) < 4 for rows in (train, test)):
        return 0.0, []
    kept, spurious = train.has.mT.double()[:, None]
    fair = even(kept, spurious)
    clean, blamed = (_probes(train.x, labels, fair) for labels in (kept, spurious))
    agree = (kept == spurious)[0]
    misled = _probes(train.x[agree], kept[:, agree], even(kept[:, agree]))
    effects = (_differences(train.code, spurious, fair) * (blamed[:, :-1] @ W.double().mT)).abs()
    judged, companion = test.has.mT.double()[:, None]
    weigh = even(judged, companion)

    def right(probe: Tensor, x: Tensor) -> float:
        return float(_accuracy(probe, x, judged, weigh))

    start = right(misled, test.x)
    erased = [_erased(test, W, effects, count)[0] for count in counts]
    return right(clean, test.x) - start, [right(misled, x) - start for x in erased]


def _probes(x: Rows, labels: PerRow, share: PerRow) -> Probes:
    """Fit logistic probes of the inputs, with a threshold as the last weight."""
    wide = _with_ones(x).expand(len(labels), -1, -1)
    return newton(wide, labels, share, steps=STEPS)


def _with_ones(x: Rows) -> Float[Tensor, "n width"]:
    return torch.cat([x.double(), torch.ones_like(x[:, :1], dtype=torch.float64)], dim=1)


def _differences(code: Code, labels: PerRow, share: PerRow) -> Effects:
    """Return the mean of each unit with a concept less that without it."""
    return 2 * ((2 * labels - 1) * share) @ code.double()


def _erased(test: Coded, W: Directions, effects: Effects, count: int) -> list[Rows]:
    """Return, for each concept, the rows without what its `count` units of largest effect add; a unit without an effect
    stays."""
    found = []
    for effect in effects:
        sizes, units = effect.topk(min(count, len(effect)))
        units = units[sizes > 0]
        found.append(test.x - test.code[:, units] @ W[units])
    return found


def _accuracy(probes: Probes, x: Rows, labels: PerRow, weigh: PerRow) -> Float[Tensor, " fits"]:
    right = (probes @ _with_ones(x).mT > 0) == (labels > 0)
    return (right * weigh).sum(dim=1)
