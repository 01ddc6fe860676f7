import math
from itertools import combinations

import numpy as np
import pytest

from assay.core.errors import UserError
from assay.metrics.intervals import (
    Interval,
    bootstrap_difference,
    holm,
    letters,
    paired_difference,
    paired_p,
    share,
    student_t,
    wilson,
)


def t_tail(t, df):
    """P(T > t) by the trapezoid rule on Student's density."""
    x = np.linspace(0, t, 200_001)
    scale = math.gamma((df + 1) / 2) / math.sqrt(df * math.pi) / math.gamma(df / 2)
    return 0.5 - np.trapezoid(scale * (1 + x**2 / df) ** (-(df + 1) / 2), x)


@pytest.mark.parametrize(("n", "quantile"), [(2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262), (31, 2.042)])
def test_student_interval_has_the_tables_quantile(n, quantile):
    values = list(np.random.default_rng(n).normal(size=n))
    half = quantile * np.std(values, ddof=1) / math.sqrt(n)
    found = student_t(values)
    assert (found.low, found.high, found.n) == pytest.approx(
        (np.mean(values) - half, np.mean(values) + half, n), rel=1e-3
    )


def test_one_value_has_a_mean_and_no_interval():
    assert student_t([0.5]) == Interval(0.5, None, None, 1)


def test_identical_values_have_an_interval_of_no_width():
    assert student_t([0.5, 0.5, 0.5]) == Interval(0.5, 0.5, 0.5, 3)


def test_no_values_is_an_error_that_says_so():
    with pytest.raises(UserError, match="at least one value"):
        student_t([])


@pytest.mark.parametrize(("successes", "n"), [(0, 5), (5, 5), (3, 5), (17, 40), (1, 1)])
def test_wilson_bounds_solve_the_score_equation(successes, n):
    found, share = wilson(successes, n), successes / n
    assert 0 <= found.low <= share <= found.high <= 1
    for bound in (found.low, found.high):
        if bound != share:
            assert abs(share - bound) / math.sqrt(bound * (1 - bound) / n) == pytest.approx(1.959964, rel=1e-5)


def test_wilson_known_value():
    assert wilson(5, 5).low == pytest.approx(0.5655, abs=1e-4)


def test_an_impossible_count_is_refused():
    with pytest.raises(UserError):
        wilson(0, 0)


def test_paired_difference_uses_shared_seeds_only():
    a, b = {0: 1.0, 1: 2.0, 2: 4.0, 7: 100.0}, {0: 0.5, 1: 1.0, 2: 2.0, 9: -50.0}
    assert paired_difference(a, b) == student_t([0.5, 1.0, 2.0])
    with pytest.raises(UserError, match="no seed in common"):
        paired_difference({0: 1.0}, {1: 1.0})


@pytest.mark.parametrize("n", [2, 5, 12])
def test_paired_p_is_the_integral_of_the_density(n):
    rng = np.random.default_rng(n)
    a, b = (dict(enumerate(rng.normal(mean, 1, size=n))) for mean in (0.7, 0))
    gaps = [a[seed] - b[seed] for seed in a]
    t = abs(np.mean(gaps)) / (np.std(gaps, ddof=1) / math.sqrt(n))
    assert paired_p(a, b) == pytest.approx(2 * t_tail(t, n - 1), abs=1e-6)
    assert paired_p(a, b) == paired_p(b, a)


def test_p_values_of_degenerate_pairs():
    same = {0: 0.5, 1: 0.25, 2: 0.75}
    assert paired_p(same, same) == 1
    assert paired_p({0: 1.0}, {0: 2.0}) == 1
    assert paired_p({}, {0: 2.0}) == 1


def test_differences_of_one_size_are_not_told_apart_with_certainty():
    """p was 0 of two saturated rows, whatever the number of seeds; rounding made it 1e-31 instead."""
    same = {0: 0.5, 1: 0.25, 2: 0.75}
    assert paired_p(same, {seed: value - 0.125 for seed, value in same.items()}) == 0.25
    rounded = {seed: value - 0.1 for seed, value in same.items()}
    assert len({same[seed] - rounded[seed] for seed in same}) > 1, "these differ in their last bit"
    assert paired_p(same, rounded) == 0.25
    five = dict.fromkeys(range(5), 1.0)
    assert paired_p(five, dict.fromkeys(range(5), 0.0)) == 2**-4
    assert letters({"a": five, "b": dict.fromkeys(range(5), 0.0)}) == {"a": "a", "b": "a"}


def test_a_bootstrap_draws_the_seeds_of_both_sides_together():
    a, b = {0: 1.0, 1: 2.0, 2: 6.0}, {0: 0.0, 1: 1.0, 2: 2.0}
    means = sorted(np.mean([a[i] - b[i] for i in drawn]) for drawn in np.ndindex(3, 3, 3))
    interval, p = bootstrap_difference(a, b)
    assert interval.mean == 2 and interval.n == 3
    assert (interval.low, interval.high) == pytest.approx((means[1], means[25]))  # 2.5 % from either end of 27
    assert p == 0.25, "three signs that agree"
    assert bootstrap_difference(b, a)[1] == p and bootstrap_difference(a, a)[1] == 1


def test_seeds_without_a_value_widen_the_bootstrap_and_do_not_count_as_zero():
    a, b = {0: 10.0, 1: None, 2: 12.0, 3: None, 4: 11.0}, dict.fromkeys(range(5), 10.0)
    interval, p = bootstrap_difference(a, b)
    assert interval.mean == pytest.approx(1.0) and interval.low == 0 and interval.high == 2
    assert p >= 2**-4
    with pytest.raises(UserError, match="no value to compare"):
        bootstrap_difference({0: None}, {0: 1.0})


def test_many_seeds_are_drawn_and_give_the_same_interval_every_time():
    rng = np.random.default_rng(0)
    a, b = (dict(enumerate(rng.normal(mean, 1, size=12))) for mean in (2, 0))
    interval, p = bootstrap_difference(a, b)
    assert (interval, p) == bootstrap_difference(a, b) and 0 < interval.low < interval.mean < interval.high
    assert p == 2**-11


def slow_holm(p, key):
    """The smallest level at which the step-down procedure rejects `key`, searched on a fine grid of levels."""
    for level in np.linspace(0, 1, 20_001):
        rejected = set()
        for rank, name in enumerate(sorted(p, key=p.get)):
            if p[name] * (len(p) - rank) > level + 1e-12:
                break
            rejected.add(name)
        if key in rejected:
            return level
    return 1.0


def test_holm_is_the_step_down_procedure():
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": 0.6}
    assert holm(p) == pytest.approx({key: slow_holm(p, key) for key in p}, abs=1e-4)
    assert holm(p)["b"] == pytest.approx(holm(p)["c"]), "adjusted values never fall below an earlier one"
    assert holm({}) == {}


def assert_letters_match(scores):
    found = letters(scores)
    adjusted = holm({pair: paired_p(scores[pair[0]], scores[pair[1]]) for pair in combinations(scores, 2)})
    for (a, b), value in adjusted.items():
        assert bool(set(found[a]) & set(found[b])) == (value >= 0.05), (a, b, value, found)
    best = max(scores, key=lambda name: np.mean(list(scores[name].values())))
    assert found[best].startswith("a")
    return found


@pytest.mark.parametrize("seed", range(12))
def test_two_names_share_a_letter_exactly_if_not_told_apart(seed):
    rng = np.random.default_rng(seed)
    means = rng.uniform(0, 1, size=9)
    scores = {f"m{i}": dict(enumerate(rng.normal(mean, 0.12, size=6))) for i, mean in enumerate(means)}
    found = assert_letters_match(scores)
    assert len(set("".join(found.values()))) > 1


def test_a_chain_gives_overlapping_letters():
    wave = [0.0, 0.1, -0.1, 0.05, -0.05, 0.02]
    scores = {
        "z": {i: 0.50 + 1.9 * w for i, w in enumerate(wave)},
        "x": {i: 0.80 + 2 * w for i, w in enumerate(wave)},
        "y": {i: 0.65 - 2 * w for i, w in enumerate(wave)},
    }
    assert assert_letters_match(scores) == {"x": "a", "y": "ab", "z": "b"}


def test_clear_steps_are_lettered_from_the_best_down():
    jitter = [0.0, 0.01, -0.01, 0.02]
    scores = {
        name: {i: top + j * k for i, j in enumerate(jitter)}
        for k, (name, top) in enumerate([("low", 0.1), ("high", 0.9), ("mid", 0.5)], 1)
    }
    assert assert_letters_match(scores) == {"high": "a", "mid": "b", "low": "c"}


def test_degenerate_scores_share_a_letter():
    assert letters({"a": {0: 1.0}, "b": {0: 9.0}}) == {"a": "a", "b": "a"}
    assert letters({"a": {0: 1.0, 1: 1.0}, "b": {0: 1.0, 1: 1.0}}) == {"a": "a", "b": "a"}
    assert letters({"a": {}, "b": {0: 1.0, 1: 2.0}, "c": {5: 1.0}}) == {"a": "a", "b": "a", "c": "a"}
    assert letters({"a": {0: 1.0}}) == {"a": "a"} and letters({}) == {}


def test_sixty_distinct_rows_have_sixty_letters():
    found = letters({f"m{i}": {0: float(i), 1: i + 1e-9 * i, 2: float(i)} for i in range(60)})
    assert len(set(found.values())) == 60 and all(len(letter) == 1 for letter in found.values())


def test_a_share_stays_between_0_and_1() -> None:
    assert student_t([0.0, 0.9, 1.0]).high > 1 and share([0.0, 0.9, 1.0]).high == 1
    assert share([0.2, 0.0, 0.01]).low == 0 and share([0.5]).low is None
