"""Verdicts are never stronger than the seeds: level where they do not tell, and nothing without a certificate."""

import math
from dataclasses import replace

import pytest
from card_toys import TRIED
from scipy.stats import t, ttest_rel

from assay.card.battery import Answer, Bounds
from assay.card.judge import line, pooled
from assay.card.question import Question
from assay.card.wording import in_words

QUESTION = Question("recall", "recalls", "mqar")
BOUNDS = Bounds(0.1, 1.0)


def answered(
    name: str, *scores: float, longer: tuple[float, ...] = (), edge: bool = False, diverged: int = 0
) -> Answer:
    by_seed, more = dict(enumerate(scores)), dict(enumerate(longer))
    return Answer(
        name, QUESTION, by_seed, rate=1e-2, at_edge=edge, tried=TRIED, window=2, diverged=diverged, longer=more
    )


FIELD = [answered("a", 0.97, 0.99), answered("b", 0.50, 0.54), answered("c", 0.95, 0.96)]


def test_a_twin_is_in_its_twins_group() -> None:
    found = line(answered("twin", 0.97, 0.99), FIELD, BOUNDS)
    assert found.differences["a"].standing == "level" and found.differences["a"].interval.mean == 0
    assert found.differences["b"].standing == "above" and found.rank == "1-3 of 4"
    assert found.certified and [part.asked for part in found.parts] == [False, False, True], "the goal was reached"
    assert in_words([found]) == [
        "recalls with 2 of 2 seeds (2 layers, d=128, 1,500 steps); at equal training better than b; not told apart "
        "from a, c"
    ]


def test_a_weak_mixer_is_told_apart_and_says_so() -> None:
    found = line(answered("weak", 0.2, 0.22, longer=(0.21, 0.2)), FIELD, BOUNDS)
    assert [found.differences[name].standing for name in "abc"] == ["below"] * 3
    of_itself = "recalls with none of 2 seeds (2 layers, d=128, 1,500 steps), nor with twice the training"
    said = f"{of_itself}; at equal training worse than a, c, b"
    assert found.certified and in_words([found]) == [said] and found.rank == "4 of 4"


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (answered("mine", 0.2, 0.22, longer=(0.8, 0.8)), "not converged, no verdict on it alone"),
        (answered("mine", 0.2, 0.3, longer=(0.2, 0.98)), "not converged, no verdict on it alone"),
        (answered("mine", 0.86, 0.87, longer=(0.87, 0.89)), "not converged, no verdict on it alone"),
        (answered("mine", 0.2, 0.22, longer=(0.2, 0.2), edge=True), "is at the edge of those tried"),
        (answered("mine", 0.2, 0.22), "not converged, no verdict on it alone"),
        (answered("mine", 0.0, 0.0, longer=(0.0, 0.0), diverged=4), "4 runs diverged"),
    ],
    ids=[
        "twice the training moves it",
        "one seed left the plateau",
        "near the goal",
        "rate at an edge",
        "not trained longer",
        "diverged",
    ],
)
def test_nothing_is_said_without_a_certificate(mine: Answer, said: str) -> None:
    found = line(mine, FIELD, BOUNDS)
    assert not found.certified and said in found.verdict and "0 of 2 seeds" not in found.verdict


def test_a_doubled_run_that_ended_early_certifies_nothing() -> None:
    """It had solved the lengths it was trained on, so it was not trained twice as long."""
    mine = replace(answered("mine", 0.7, 0.7, longer=(0.7, 0.7)), stopped=True)
    found = line(mine, FIELD, BOUNDS)
    assert not found.certified and "not converged, no verdict on it alone: training ends" in found.verdict


def test_solved_rows_do_not_hide_how_far_seeds_lie_apart() -> None:
    """Rows at the ceiling vary by nothing; two mixers that learn with some seeds are not told apart for it."""
    solved = [answered(f"s{place}", 0.99, 0.99) for place in range(12)]
    bimodal = [answered(f"b{place}", 0.95, 0.15, longer=(0.95, 0.15)) for place in range(6)]
    found = line(
        answered("mine", 0.15, 0.16, longer=(0.2, 0.2)), [*solved, *bimodal, answered("luck", 0.95, 0.96)], BOUNDS
    )
    assert found.differences["luck"].standing == "level"


def test_seeds_that_disagree_tell_little_apart() -> None:
    found = line(answered("mine", 0.99, 0.2, longer=(0.99, 0.2)), FIELD, BOUNDS)
    assert all(each.standing == "level" for each in found.differences.values())
    assert not found.certified and "1 of 2 seeds" in found.verdict
    assert [str(part) for part in found.parts] == [
        "recipe: holds, the best rate, 0.01, is at no edge of those tried, 0.001 to 0.1",
        "doubled training: holds, 1 of 2 reach the goal with twice the training",
        "seeds: fails, 1 of 2 reach the goal",
    ]


def test_two_that_learn_with_some_seeds_are_judged_by_their_own_spread() -> None:
    quiet = [answered(str(place), 0.9, 0.91) for place in range(20)]
    found = line(answered("mine", 0.98, 0.9, longer=()), [*quiet, answered("luck", 0.98, 0.15)], BOUNDS)
    assert found.differences["luck"].standing == "level", "half of its seeds are as good"


@pytest.mark.parametrize("other", [answered("x", 0.1, 0.1, edge=True), answered("x", 0.0, 0.0, diverged=2)])
def test_rows_that_say_nothing_are_not_compared(other: Answer) -> None:
    assert line(FIELD[0], [other, FIELD[1]], BOUNDS).differences.keys() == {"b"}
    assert not line(other, FIELD, BOUNDS).differences


def test_the_deviation_is_never_below_the_sampling_error() -> None:
    deviation, freedom = pooled([answered("x", 0.5, 0.5), answered("y", 0.51, 0.51)])
    assert deviation == QUESTION.resolution and freedom == 2
    found = line(answered("x", 0.5, 0.5, longer=(0.5, 0.5)), [answered("y", 0.51, 0.51)], BOUNDS)
    assert found.differences["y"].standing == "level"


def test_an_interval_of_a_share_stays_between_0_and_1() -> None:
    found = line(answered("mine", 1.0, 0.9), FIELD, BOUNDS)
    assert found.interval.high is not None and found.interval.high <= 1


def test_one_seed_has_no_interval_and_no_rank() -> None:
    found = line(answered("mine", 0.95), [answered("other", 0.2)], BOUNDS)
    assert found.interval.low is None and not found.differences and found.rank == ""


def test_seeds_that_never_saw_the_size_that_is_scored_certify_nothing() -> None:
    mine = replace(answered("stuck", 0.2, 0.22, longer=(0.21, 0.2)), held_back=2)
    found = line(mine, FIELD, BOUNDS)
    told = in_words([found])[0]
    assert not found.certified and "2 of 2 seeds" in told and "never trained on the one that is scored" in told
    assert "at equal training worse than a, c, b" in told


def test_a_pair_that_varies_more_by_chance_keeps_the_pooled_deviation() -> None:
    alike = [answered(str(place), 0.5, 0.54) for place in range(12)]
    wide, far = answered("wide", 0.46, 0.55), answered("far", 0.1, 0.95)
    assert line(wide, alike, BOUNDS).differences["0"].deviation == line(wide, alike, BOUNDS).deviation
    assert line(far, alike, BOUNDS).differences["0"].deviation > 5 * line(wide, alike, BOUNDS).deviation


LOSS = Question("language", "bits", "text", lower=True, goal=None, resolution=0.001)
HARDER = (0.0, 0.3, -0.2, 0.1, 0.25)
"""What the text of each seed adds to every mixer's loss."""


def lost(name: str, *scores: float) -> Answer:
    return replace(answered(name, *(score + hard for score, hard in zip(scores, HARDER, strict=False))), question=LOSS)


def test_losses_are_compared_on_the_same_text() -> None:
    """A seed's text is harder or easier for every mixer, here by more than the mixers differ."""
    mine, other = lost("mine", 1.50, 1.51, 1.49, 1.50, 1.52), lost("other", 1.45, 1.47, 1.44, 1.43, 1.47)
    found = line(mine, [other], BOUNDS)
    assert found.differences["other"].standing == "below" and found.deviation > 0.1, "its own interval is of any text"
    assert found.differences["other"].p == pytest.approx(
        ttest_rel(*(list(x.scores.values()) for x in (mine, other))).pvalue
    )
    share = replace(QUESTION, resolution=LOSS.resolution)
    alone = line(replace(mine, question=share), [replace(other, question=share)], BOUNDS)
    assert alone.differences["other"].standing == "level", "shares of right answers are not paired"


def test_more_seeds_of_one_mixer_leave_the_others_paired() -> None:
    """`--seeds` adds seeds of the mixers that are asked for alone: those that both have are compared."""
    field = [lost(name, 1.45 + x, 1.47, 1.44 + x, 1.43, 1.47) for name, x in (("a", 0.0), ("b", 0.01), ("c", -0.02))]
    five = lost("mine", 1.45, 1.465, 1.43, 1.435, 1.475)
    seven = replace(five, scores={**five.scores, 5: 1.0, 6: 2.2})
    before, after = line(five, field, BOUNDS), line(seven, field, BOUNDS)
    assert before.paired and after.paired and after.differences == before.differences
    assert after.interval.n == 7 and "more seeds of both" in after.undecided(), "seeds of it alone would pair with none"


def test_an_interval_of_a_loss_covers_what_it_should() -> None:
    """Every seed draws one text for all mixers, so that they are not independent draws of how far seeds lie apart."""
    import numpy as np

    rng, covered, rounds = np.random.default_rng(0), 0, 400
    for _ in range(rounds):
        table = 1.5 + 0.033 * rng.standard_normal(5) + 0.005 * rng.standard_normal((12, 5))
        first, *others = [replace(answered(str(n), *row), question=LOSS) for n, row in enumerate(table.tolist())]
        found = line(first, others, BOUNDS).interval
        assert found.low is not None and found.high is not None
        covered += found.low <= 1.5 <= found.high
    assert 0.925 <= covered / rounds <= 0.99


def test_losses_that_share_few_seeds_are_not_paired() -> None:
    mine, field = lost("mine", 1.5, 1.5, 1.5, 1.5), [lost("other", 1.45, 1.45, 1.45, 1.45, 1.45)]
    assert line(mine, field, BOUNDS).differences["other"].standing == "level"


def test_a_field_too_small_to_pair_by_is_compared_by_means() -> None:
    """One degree of freedom tells next to nothing, two means of two seeds have two."""
    mine, other = lost("mine", 1.50, 1.51), lost("other", 1.45, 1.46)
    assert line(mine, [other], BOUNDS).differences["other"].deviation > 0.1


def test_what_is_left_of_a_field_s_losses_is_a_two_way_layout() -> None:
    """The slow way: least squares with a column for every mixer and every seed."""
    import numpy as np

    table = np.array([[1.5, 1.9, 1.2], [1.4, 1.7, 1.3], [1.1, 1.6, 0.9], [2.0, 2.4, 1.7]])
    mixers, seeds = (np.indices(table.shape)[axis].ravel() for axis in (0, 1))
    columns = np.concatenate([np.eye(4)[mixers], np.eye(3)[seeds]], axis=1)
    fitted = columns @ np.linalg.lstsq(columns, table.ravel(), rcond=None)[0]
    wanted = np.sqrt(((table.ravel() - fitted) ** 2).sum() / (table.size - np.linalg.matrix_rank(columns)))
    answers = [replace(answered(str(place), *row), question=LOSS) for place, row in enumerate(table.tolist())]
    assert pooled(answers, paired=True) == (pytest.approx(wanted), 6)


def test_some_seeds_that_reach_the_goal_say_so_and_what_twice_the_training_would_change() -> None:
    """One of two reaches it, both with twice the training; and one that did at a rate at the edge."""
    found = line(answered("mine", 0.95, 0.2, longer=(0.96, 0.97)), FIELD, BOUNDS)
    assert not found.certified and "recalls with 1 of 2 seeds" in found.verdict
    assert "; not converged: 2 of 2 reach the goal with twice the training" in found.verdict
    edge = line(answered("mine", 0.95, 0.2, longer=(0.95, 0.2), edge=True), FIELD, BOUNDS)
    assert "; not converged: the best rate, 0.01, is at the edge of those tried" in edge.verdict


def test_a_mixer_that_still_learns_what_it_is_trained_on_is_not_converged() -> None:
    """Its score, at sequences longer than those of training, has not moved yet."""
    mine = replace(answered("mine", 0.5, 0.5, longer=(0.51, 0.5)), learned_more=0.2)
    found = line(mine, FIELD, BOUNDS)
    told = "not converged, no verdict on it alone: twice the training still improves what is trained on, by up to +0.20"
    assert not found.certified and told in found.verdict
    assert line(replace(mine, learned_more=0.05), FIELD, BOUNDS).certified


def test_one_whose_seeds_disagree_is_compared_by_welch() -> None:
    """Two seeds far apart say little: their mean is no better known beside a mixer whose seeds agree."""
    alike = [answered(str(place), 0.84 + 0.01 * place, 0.86 + 0.01 * place) for place in range(12)]
    mine = answered("mine", 0.34, 0.56)
    found = line(mine, alike, BOUNDS).differences["11"]
    deviation, freedom = pooled([mine, *alike])
    spread, field = 0.22**2 / 2, deviation**2
    degrees = (spread / 2 + field / 2) ** 2 / ((spread / 2) ** 2 / 1 + (field / 2) ** 2 / freedom)
    half = t.ppf(0.975, degrees) * math.sqrt((spread + field) / 2)
    assert found.interval.low == pytest.approx(found.interval.mean - half) and found.standing == "level"
    assert half > 0.9 and degrees < 1.5, "of two seeds"
    agreed = line(answered("mine", 0.44, 0.46), alike, BOUNDS).differences["11"]
    assert agreed.standing == "below", "the same mean"


@pytest.mark.parametrize(
    ("seeds", "times", "least", "most"), [(2, 1, 0.0, 0.05), (2, 3, 0.05, 0.2), (2, 8, 0.05, 0.2), (5, 3, 0.0, 0.1)]
)
def test_how_often_a_mixer_is_told_from_one_that_is_no_better(
    seeds: int, times: float, least: float, most: float
) -> None:
    """As docs/card.md says it: rarely, but for a mixer of two seeds which vary several times as much as the field's."""
    import numpy as np

    rng, told, rounds = np.random.default_rng(0), 0, 200
    for _ in range(rounds):
        field = [answered(str(place), *(0.5 + 0.02 * rng.standard_normal(seeds))) for place in range(18)]
        mine = answered("mine", *(0.5 + 0.02 * times * rng.standard_normal(seeds)))
        told += any(each.standing != "level" for each in line(mine, field, BOUNDS).differences.values())
    assert least <= told / rounds <= most
