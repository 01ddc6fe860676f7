"""May this machine be compared with shipped records? Two cheap mixers, the anchors, are trained again and must agree.

Each anchor is trained at its shipped rate with the seeds of the tier. Shipped rows of a question stand beside what was
trained here only if each anchor is shown to score as it shipped: two one-sided t tests reject, for every anchor, that
its mean is off by the question's margin, up or down. Where that is not shown, the rows are not ranked. A machine on
which every run of the anchors scores exactly as it shipped computes the same numbers, and needs no test.
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
    """An agreement says how far the anchors came out from their shipped scores, for one question."""

    question: str
    gaps: Mapping[str, float]
    """Trained here less shipped, means over seeds, by anchor."""
    p: float
    """Of a difference as large as the margin, the largest over the anchors."""

    @property
    def holds(self) -> bool:
        return self.p < LEVEL

    def __str__(self) -> str:
        told = ", ".join(f"{anchor} {gap:+.2f}" for anchor, gap in self.gaps.items())
        return f"{self.question} ({told or 'no anchor ships'})"


def anchor_trials(tier: Tier, answers: Mapping[str, Mapping[str, Answer]]) -> list[Trial]:
    """Return the anchors' runs: at their shipped rate, with the seeds of the tier."""
    return [
        Trial(question.name, anchor, answers[question.name][anchor].rate, seed, question.steps)
        for question in tier.questions
        for anchor in ANCHORS
        if anchor in answers[question.name]
        for seed in tier.seeds
    ]


def agreements(tier: Tier, answers: Mapping[str, Mapping[str, Answer]], compute: Compute) -> dict[str, Agreement]:
    """Train the anchors here and compare, question by question. `answers` has every shipped mixer's, by question."""
    trials = anchor_trials(tier, answers)
    again = compute(trials)
    found = {}
    for question in tier.questions:
        own: dict[str, list[float]] = {}
        for trial in trials:
            if trial.question == question.name:
                own.setdefault(trial.mixer, []).append(score(again[trial], question))
        found[question.name] = agreement(question.name, own, answers[question.name], question.margin)
    return found


def agreement(name: str, own: Mapping[str, Sequence[float]], answers: Mapping[str, Answer], margin: float) -> Agreement:
    """Compare the anchors' runs with their shipped ones; p is the largest of the anchors', 1 where one is missing."""
    gaps = {anchor: fmean(values) - answers[anchor].mean for anchor, values in own.items()}
    if len(gaps) == len(ANCHORS) and all(list(own[each]) == list(answers[each].scores.values()) for each in gaps):
        return Agreement(name, gaps, 0.0)  # bit for bit, seed by seed: how far seeds lie apart does not matter then
    deviation, freedom = pooled(list(answers.values())) if answers else (0.0, 0)
    if not freedom or len(gaps) < len(ANCHORS):
        return Agreement(name, gaps, 1.0)
    errors = {each: deviation * math.sqrt(1 / len(own[each]) + 1 / len(answers[each].scores)) for each in gaps}
    return Agreement(
        name, gaps, max(float(special.stdtr(freedom, (abs(gaps[each]) - margin) / errors[each])) for each in gaps)
    )
