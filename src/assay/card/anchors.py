"""May this machine be compared with shipped records? Two cheap mixers, the anchors, are trained again and must agree.

Each anchor is trained at its shipped rate with the first seed of the tier. Shipped rows of a question are compared with
what was trained here if the anchors' mean difference is shown to be small: two one-sided t tests reject that it is as
large as the question's margin, up or down. Otherwise the rows are shown and not ranked.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from assay.card.battery import Answer, Compute, Trial, score
from assay.card.judge import LEVEL, pooled
from assay.card.protocol import ANCHORS, Tier
from assay.core.on_use import Later

special: Any = Later("scipy.special")


@dataclass(frozen=True)
class Agreement:
    """Of one question: how far the anchors came out from their shipped scores."""

    question: str
    gaps: Mapping[str, float]
    """Trained here less shipped, by anchor."""
    p: float
    """Of a difference as large as the margin."""

    @property
    def holds(self) -> bool:
        return self.p < LEVEL

    def __str__(self) -> str:
        told = ", ".join(f"{anchor} {gap:+.2f}" for anchor, gap in self.gaps.items())
        return f"{self.question} {told}"


def trials(tier: Tier, answers: Mapping[str, Mapping[str, Answer]]) -> list[Trial]:
    """Return the runs that are computed again."""
    return [
        Trial(question.name, anchor, answers[question.name][anchor].rate, tier.seeds[0], question.steps)
        for question in tier.questions
        for anchor in ANCHORS
    ]


def agreements(tier: Tier, answers: Mapping[str, Mapping[str, Answer]], compute: Compute) -> dict[str, Agreement]:
    """Train the anchors here and compare, question by question. `answers` has every shipped mixer's, by question."""
    again = compute(trials(tier, answers))
    found = {}
    for question in tier.questions:
        own = {trial.mixer: score(again[trial], question) for trial in again if trial.question == question.name}
        found[question.name] = agreement(question.name, own, answers[question.name], question.margin)
    return found


def agreement(name: str, own: Mapping[str, float], answers: Mapping[str, Answer], margin: float) -> Agreement:
    gaps = {anchor: value - answers[anchor].mean for anchor, value in own.items()}
    deviation, freedom = pooled(list(answers.values()))
    return Agreement(
        name, gaps, equivalent(list(gaps.values()), [answers[each] for each in own], deviation, freedom, margin)
    )


def equivalent(
    gaps: Sequence[float], shipped: Sequence[Answer], deviation: float, freedom: int, margin: float
) -> float:
    """Return the p of two one-sided t tests that the mean of the gaps, each of one run less a shipped mean, lies
    between -margin and margin."""
    if not freedom:
        return 1.0
    error = deviation * math.sqrt(sum(1 + 1 / len(each.scores) for each in shipped)) / len(gaps)
    return float(special.stdtr(freedom, (abs(fmean(gaps)) - margin) / error))
