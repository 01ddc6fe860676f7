"""Anchors say whether this machine may be compared with shipped records: two cheap mixers, trained again, must agree.

Each anchor is trained at its shipped rate with the seeds of the tier. Shipped rows of a question stand beside what was
trained here only if each anchor is shown to score as it shipped: two one-sided t tests reject, for every anchor, that
its mean is off by the question's margin, up or down. Where that is not shown, the rows are not ranked. A machine on
which every run of the anchors scores exactly as it shipped computes the same numbers, and needs no test.

The anchors would take a third of a card, so the tests are sequential: the first seed of each anchor is trained, and the
others only where it did not decide. A question in which one seed cannot decide, since seeds lie far apart, has all of
them at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from assay.card.battery import Answer, Compute, Records, Trial, score
from assay.card.judge import LEVEL, by_seed, pooled
from assay.card.protocol import ANCHORS
from assay.card.question import Question, Tier
from assay.core.on_use import Later

special: Any = Later("scipy.special")
FIRST = 0.005
"""The level of the tests after one seed; those of all seeds have what is left of LEVEL, so that both looks together
admit a machine that is off by the margin at most once in twenty times."""
Answers = Mapping[str, Mapping[str, Answer]]
"""Every shipped mixer's answers, by question and mixer."""


@dataclass(frozen=True)
class Agreement:
    """An agreement says how far the anchors came out from their shipped scores, for one question."""

    question: str
    gaps: Mapping[str, float]
    """Trained here less shipped, means over the same seeds, by anchor."""
    p: float
    """Of a difference as large as the margin, the largest over the anchors."""
    level: float = LEVEL
    """What p has to be below."""
    exact: bool = False
    """Whether every run of the anchors came out bit for bit, so that nothing of a difference is the machine's."""

    @property
    def holds(self) -> bool:
        return self.p < self.level

    def __str__(self) -> str:
        told = ", ".join(f"{anchor} {gap:+z.2f}" for anchor, gap in self.gaps.items())
        told += ", every run the same" * self.exact
        return f"{self.question} ({told or 'no anchor ships'})"


def first_trials(tier: Tier, answers: Answers) -> list[Trial]:
    """Return the runs of the anchors that are trained first, at their shipped rate: one seed of each where it may
    decide, otherwise all."""
    early = _decided_by_one(tier, answers)
    return [
        trial
        for question in tier.questions
        for trial in _trials(question, answers, tier.seeds[:1] if question.name in early else tier.seeds)
    ]


def agreements(tier: Tier, answers: Answers, compute: Compute) -> dict[str, Agreement]:
    """Train the anchors here and compare, question by question."""
    early = _decided_by_one(tier, answers)
    again = dict(compute(first_trials(tier, answers)))
    found = {q.name: _compared(q, again, answers, FIRST if q.name in early else LEVEL) for q in tier.questions}
    if left := [question for name, question in early.items() if not found[name].holds]:
        again |= compute([trial for question in left for trial in _trials(question, answers, tier.seeds[1:])])
        found |= {question.name: _compared(question, again, answers, LEVEL - FIRST) for question in left}
    return found


def _decided_by_one(tier: Tier, answers: Answers) -> dict[str, Question]:
    """Return the questions, by name, that the first seed of each anchor decides if it scores as it shipped."""
    found = {}
    for question in tier.questions if len(tier.seeds) > 1 else ():
        told, first = answers[question.name], tier.seeds[0]
        own = {anchor: {first: told[anchor].scores[first]} for anchor in ANCHORS if anchor in told}
        if agreement(question.name, own, told, question.margin, level=FIRST).holds:
            found[question.name] = question
    return found


def _trials(question: Question, answers: Answers, seeds: Sequence[int]) -> list[Trial]:
    told = answers[question.name]
    there = [anchor for anchor in ANCHORS if anchor in told]
    return [Trial(question.name, each, told[each].rate, seed, question.steps) for each in there for seed in seeds]


def _compared(question: Question, again: Records, answers: Answers, level: float) -> Agreement:
    own: dict[str, dict[int, float]] = {}
    for trial, record in again.items():
        if trial.question == question.name:
            own.setdefault(trial.mixer, {})[trial.seed] = score(record, question)
    return agreement(question.name, own, answers[question.name], question.margin, level=level)


def agreement(
    name: str,
    own: Mapping[str, Mapping[int, float]],
    answers: Mapping[str, Answer],
    margin: float,
    *,
    level: float = LEVEL,
) -> Agreement:
    """Compare the anchors' scores by seed with their shipped ones of the same seeds; p is the largest of the anchors',
    1 where one is missing. Runs of one seed lie no further apart than two of any seeds, whose deviation is used; of a
    question that is paired by seed, without what a seed adds to the scores of all."""
    there = {anchor: [answers[anchor].scores[seed] for seed in scores] for anchor, scores in own.items()}
    gaps = {anchor: fmean(scores.values()) - fmean(there[anchor]) for anchor, scores in own.items()}
    if len(gaps) == len(ANCHORS) and all(own[anchor] == answers[anchor].scores for anchor in gaps):
        # Bit for bit, seed by seed: how far seeds lie apart does not matter then.
        return Agreement(name, gaps, 0.0, level, exact=True)
    told = list(answers.values())
    deviation, freedom = pooled(told, paired=by_seed(told)) if told else (0.0, 0)
    if not freedom or len(gaps) < len(ANCHORS):
        return Agreement(name, gaps, 1.0, level)
    errors = {anchor: deviation * math.sqrt(2 / len(own[anchor])) for anchor in gaps}
    p = max(float(special.stdtr(freedom, (abs(gaps[each]) - margin) / errors[each])) for each in gaps)
    return Agreement(name, gaps, p, level)
