"""May this machine be compared with shipped records? Two cheap mixers, the anchors, are trained again and must agree.

Each anchor is trained at its shipped rate with the first seed of the tier, and compared with the shipped run of that
seed. Shipped rows of a question stand beside what was trained here if the mean difference is shown to be small: two
one-sided t tests reject that it is as large as the question's margin, up or down. Otherwise they are not ranked.
"""

import math
from collections.abc import Mapping
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
        if anchor in answers[question.name]
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
    """Compare one run of each anchor with the shipped run of its seed, the first; p is that of two one-sided t tests
    that the mean difference lies between -margin and margin."""
    gaps = {anchor: value - next(iter(answers[anchor].scores.values())) for anchor, value in own.items()}
    deviation, freedom = pooled(list(answers.values())) if answers else (0.0, 0)
    if not freedom or not gaps:
        return Agreement(name, gaps, 1.0)
    error = deviation * math.sqrt(2 / len(gaps))  # as if nothing but the recipe were the same
    return Agreement(name, gaps, float(special.stdtr(freedom, (abs(fmean(gaps.values())) - margin) / error)))
