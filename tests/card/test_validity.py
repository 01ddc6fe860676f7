"""Rank correlations of the battery with the language model: planted orders are found, noise is not."""

import random

from assay.card.protocol import ANCHORS, FAMILIES, FIELD
from assay.card.validity import _family, validities

NAMES = [word.partition(":")[0] for word in FIELD if ":conv" not in word and ":beta" not in word]


def test_a_question_that_ranks_as_the_language_model_does_is_told_from_noise() -> None:
    rng = random.Random(1)
    target = {name: rng.random() for name in NAMES}
    good = {name: value + 0.1 * rng.random() for name, value in target.items()}
    noise = {name: rng.random() for name in NAMES}
    found = {each.question: each for each in validities({"good": good, "noise": noise}, target)}
    assert found["good"].p < 0.01 and found["good"].rho.low is not None and found["good"].rho.low > 0.5
    assert found["noise"].p > 0.05
    one = dict.fromkeys(NAMES, 0.5) | {name: target[name] for name in NAMES if _family(name) == "delta"}
    hung = validities({"one family": one}, target)[0]
    assert hung.without[0] == 0.0 < hung.rho.mean, "it hangs on the one family whose scores differ"


def test_few_mixers_give_no_correlation() -> None:
    few = {name: float(place) for place, name in enumerate(NAMES[:5])}
    assert validities({"recall": few}, few) == []


def test_a_mixer_has_one_family_whatever_its_options() -> None:
    assert len(FIELD) == len(set(FIELD)) and set(ANCHORS) <= set(FIELD)
    for family, words in FAMILIES.items():
        assert {_family(word) for word in words} == {family}
    assert _family("delta_net:beta_max=2.0") == "delta" and _family("of_a_file") == "other"
