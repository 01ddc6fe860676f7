"""Certificates against closed forms: a share of the way from a guess to the goal, one-sided over paired seeds."""

import pytest
from scipy import stats

from assay.compare.certificate import STILL, Certificate, edge, more_seeds, trained


def test_the_bound_is_one_sided_student() -> None:
    half, whole = dict(enumerate([0.5, 0.6, 0.55])), dict(enumerate([0.52, 0.61, 0.58]))
    found = trained(half, whole, guess=0.1, goal=0.9)
    gains = [0.02 / 0.8, 0.01 / 0.8, 0.03 / 0.8]
    assert found.gain == pytest.approx(0.025)
    assert found.bound == pytest.approx(stats.ttest_1samp(gains, 0).confidence_interval(0.9).high)
    assert found.training == ("ok" if found.bound <= STILL else "still learning")


@pytest.mark.parametrize(("after", "word"), [(0.5, "certified"), (0.7, "still learning"), (0.3, "unstable")])
def test_what_longer_training_does(after: float, word: str) -> None:
    half = dict(enumerate([0.5, 0.501, 0.499]))
    assert trained(half, {seed: after + score - 0.5 for seed, score in half.items()}, guess=0.0, goal=1.0).word == word


def test_a_loss_falls_towards_its_goal() -> None:
    half = dict(enumerate([2.0, 2.001, 1.999]))
    better = {seed: loss - 0.5 for seed, loss in half.items()}
    assert trained(half, better, guess=5.0, goal=1.0).training == "still learning"
    assert trained(better, half, guess=5.0, goal=1.0).training == "unstable"


def test_a_goal_that_every_seed_reached_leaves_nothing_to_gain() -> None:
    whole = dict(enumerate([0.95, 0.97, 0.99]))
    assert trained({}, whole, guess=0.0, goal=1.0, reached=0.9).holds
    assert trained({}, {0: 2.01, 1: 2.0, 2: 1.9}, guess=5.0, goal=1.8, reached=2.0).word == "few seeds"


def test_too_few_seeds_say_nothing() -> None:
    assert trained({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}, guess=0.0, goal=1.0).word == "few seeds"


def test_the_first_word_that_is_not_ok_is_shown() -> None:
    assert Certificate("grid edge", "still learning", "ok").word == "grid edge"
    assert Certificate("ok", "ok", "ok").holds


def test_edges_and_more_seeds() -> None:
    assert edge(1e-3, [1e-3, 3e-3]) and not edge(3e-3, [1e-3, 3e-3, 1e-2]) and edge(1e-3, [1e-3])
    open_still = Certificate(training="still learning")
    assert (
        more_seeds(open_still, 0.05, 5) and not more_seeds(open_still, 0.01, 5) and not more_seeds(open_still, 0.05, 10)
    )
