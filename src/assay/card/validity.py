"""Rank correlations over shipped mixers say whether the synthetic questions predict a language model.

For every question but the language model: Spearman's rho of the mean score with how well text is predicted, all of its
bytes and those that recall would tell (the sign is such that 1 is perfect), a permutation p, Holm over the rows of a
tier, a percentile interval over mixers drawn with replacement, and the range of rho as one family of mixers after the
other is left out. Mixers are no sample of all mixers, and relatives are alike: the last two say how much of a rho hangs
on a few.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.card.battery import answer, battery
from assay.card.protocol import FAMILIES
from assay.card.question import Question
from assay.card.running import Runner
from assay.core.on_use import Later
from assay.core.seeds import derive
from assay.metrics.intervals import Interval, holm
from assay.metrics.ranks import spearman

numpy: Any = Later("numpy")
DRAWS = 10_000
LEAST = 8
"""Fewest mixers over which a correlation is given: of 7, half of all orders have a rho beyond .3 either way."""
LEFT = 5
"""Fewest mixers that a family leaves behind, for the rho without it."""
LANGUAGE = "language"
"""The question that the others are held against."""
TARGETS = {"bits per byte": "bits_per_byte", "of recalled bytes": "bits_per_byte_recalled"}
"""What a question is held against, and where it stands in the metrics of the language model."""

Scores = Mapping[str, float]
"""By mixer, larger being better."""
Point = tuple[str, float, float]


@dataclass(frozen=True)
class Validity:
    """How one question's scores rank with those of the language model."""

    question: str
    target: str
    mixers: int
    rho: Interval | None = None
    """None: there are too few mixers."""
    p: float | None = None
    """Of a permutation test, Holm over the rows."""
    without: tuple[float, float] | None = None
    """The least and the largest rho as one family is left out; None where too few mixers are left."""


def validities_of(runner: Runner) -> list[Validity]:
    """Return the correlations over the mixers whose records ship. As everywhere on a card, a mixer with a rate at the
    edge or a diverged run is not compared."""
    tier, asked = runner.tier, runner.field()
    found = battery(tier, asked, runner.only_shipped)

    def scores(question: Question) -> Scores:
        told = [answer(tier, question, mixer, found) for mixer in asked[question.name]]
        return {each.mixer: -question.loss(each.mean) for each in told if each.comparable}

    text = tier.question(LANGUAGE)
    targets = {name: scores(replace(text, metric=(metric,))) for name, metric in TARGETS.items()}
    return validities({q.name: scores(q) for q in tier.questions if q.name != LANGUAGE}, targets)


def validities(scores: Mapping[str, Scores], targets: Mapping[str, Scores]) -> list[Validity]:
    """Return the correlation of every question's scores with every target's."""
    rows = []
    for target, values in targets.items():
        for question, own in scores.items():
            points = [(name, own[name], values[name]) for name in sorted(own.keys() & values.keys())]
            found = Validity(question, target, len(points))
            rows.append(_correlated(found, points) if len(points) >= LEAST else found)
    adjusted = holm({place: row.p for place, row in enumerate(rows) if row.p is not None})
    return [replace(row, p=adjusted.get(place)) for place, row in enumerate(rows)]


def _correlated(row: Validity, points: Sequence[Point]) -> Validity:
    rng = numpy.random.default_rng(derive(0, "validity", row.question, row.target))
    xs, ys = (numpy.array([point[side] for point in points]) for side in (1, 2))
    rho, each, n = float(spearman(xs, ys)), numpy.arange(len(points)), len(points)
    beyond = abs(spearman(xs[None], rng.permuted(numpy.tile(ys, (DRAWS, 1)), axis=1))) >= abs(rho) - 1e-12
    drawn = rng.choice(each, (DRAWS, n))
    low, high = numpy.quantile(spearman(xs[drawn], ys[drawn]), (0.025, 0.975))
    rest = [[i for i in each if _family(points[i][0]) != family] for family in FAMILIES]
    apart = [float(spearman(xs[left], ys[left])) for left in rest if LEFT <= len(left) < n]
    return replace(
        row,
        rho=Interval(rho, float(low), float(high), n),
        p=(int(beyond.sum()) + 1) / (DRAWS + 1),
        without=(min(apart), max(apart)) if apart else None,
    )


def _family(mixer: str) -> str:
    """Return the family of a mixer of the field, whatever its options; others are `other`."""
    name = mixer.partition(":")[0]
    families = {word.partition(":")[0]: family for family, words in FAMILIES.items() for word in words}
    return families.get(name, "other")
