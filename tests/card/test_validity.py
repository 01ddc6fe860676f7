"""Rank correlations of the battery with the language model: planted orders are found, noise is not."""

import random

import pytest

from assay.card.protocol import FIELD
from assay.card.validity import FAMILIES, _family, spearman, validities

NAMES = [word.partition(":")[0] for word in FIELD if ":conv" not in word and ":beta" not in word]


def test_spearman_agrees_with_scipy_ties_included() -> None:
    from scipy.stats import spearmanr

    rng = random.Random(0)
    xs, ys = ([rng.randrange(6) / 5 for _ in range(30)] for _ in range(2))
    assert spearman(xs, ys) == pytest.approx(float(spearmanr(xs, ys).statistic))
    assert spearman([1.0, 1.0], [0.0, 2.0]) == 0.0


def test_a_question_that_ranks_as_the_language_model_does_is_told_from_noise() -> None:
    rng = random.Random(1)
    target = {name: rng.random() for name in NAMES}
    good = {name: value + 0.1 * rng.random() for name, value in target.items()}
    noise = {name: rng.random() for name in NAMES}
    found = {each.question: each for each in validities({"good": good, "noise": noise}, target)}
    assert found["good"].p < 0.01 and found["good"].rho.low is not None and found["good"].rho.low > 0.5
    assert found["noise"].p > 0.05
    one = dict.fromkeys(NAMES, 0.5) | {name: target[name] for name in FAMILIES["delta"]}
    hung = validities({"one family": one}, target)[0]
    assert hung.without[0] == 0.0 < hung.rho.mean, "it hangs on the one family whose scores differ"


def test_few_mixers_give_no_correlation() -> None:
    few = {name: float(place) for place, name in enumerate(NAMES[:5])}
    assert validities({"recall": few}, few) == []


def test_every_mixer_of_the_field_has_a_family() -> None:
    members = {name for own in FAMILIES.values() for name in own}
    assert {word.partition(":")[0] for word in FIELD} <= members
    assert _family("delta_net:beta_max=2") == "delta"
