"""Capacity against curves whose crossing is known, and recalled bits against a channel written out in full."""

import math
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import UserError
from assay.studies.icl.k90 import (
    Capacity,
    Crossing,
    answered_bits,
    best_recalled_bits,
    capacity_interval,
    crossing,
    decreasing,
    recalled_bits,
)

SIZES = [4, 8, 16, 32, 64, 128, 256]
ABOVE, BELOW = Crossing(256.0, "above"), Crossing(4.0, "below")


def min_max(values, weights):
    """The definition: the smallest over starts of the largest over ends of the mean between them (Robertson 1988)."""

    def mean(a, b):
        return np.average(values[a:b], weights=weights[a:b])

    n = len(values)
    return [min(max(mean(a, b) for b in range(i + 1, n + 1)) for a in range(i + 1)) for i in range(n)]


def falling(k90, steep=0.05):
    """A straight line in log2 pairs, held at 1 and 0, that is at .9 for k90 pairs."""
    return [min(1.0, max(0.0, 0.9 - steep * (math.log2(size) - math.log2(k90)))) for size in SIZES]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 10)), min_size=1, max_size=9))
def test_the_fit_is_the_min_max_of_means(points):
    values, weights = (list(column) for column in zip(*points, strict=True))
    assert decreasing(values, weights) == pytest.approx(min_max(values, weights), abs=1e-9)
    assert decreasing(values) == pytest.approx(min_max(values, [1.0] * len(values)), abs=1e-9)


def test_no_other_falling_curve_is_nearer():
    rng = np.random.default_rng(0)
    values, weights = rng.random(6), rng.random(6) + 0.1
    fit = np.array(decreasing(list(values), list(weights)))
    assert (np.diff(fit) <= 0).all()
    others = -np.sort(-(fit + 0.2 * rng.normal(size=(5000, 6))), axis=1)
    assert ((weights * (fit - values) ** 2).sum() < (weights * (others - values) ** 2).sum(axis=1)).all()


def test_a_falling_curve_is_its_own_fit():
    assert decreasing([1.0, 0.9, 0.9, 0.2]) == [1.0, 0.9, 0.9, 0.2]


@pytest.mark.parametrize("k90", [4.0, 5.0, 16.0, 35.9, 100.0, 255.0])
def test_crossing_of_a_line_in_log_size_is_where_the_line_is_at_the_level(k90):
    found = crossing(SIZES, falling(k90))
    assert found.value == pytest.approx(k90) and found.censored == "no"


def test_the_docstrings_example():
    assert crossing(SIZES[:5], [1.0, 0.99, 0.97, 0.94, 0.70]).value == pytest.approx(32 * 2 ** (1 / 6))


def test_another_level_crosses_elsewhere():
    assert crossing(SIZES, falling(16), level=0.85).value == pytest.approx(32)


def test_a_rise_is_pooled_before_the_crossing():
    """.8 and .96 pool to .88, so the crossing lies before the 8 pairs, though 16 pairs were above the level."""
    found = crossing([4, 8, 16, 32], [1.0, 0.8, 0.96, 0.1])
    assert found.value == pytest.approx(4 * 2 ** ((1 - 0.9) / (1 - 0.88)))


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([1.0] * 7, ABOVE),
        ([1.0] * 6 + [0.9], ABOVE),
        ([0.89] * 7, BELOW),
        ([0.9] + [0.1] * 6, Crossing(4.0)),
    ],
)
def test_a_curve_that_never_crosses_is_censored_at_its_end(curve, expected):
    assert crossing(SIZES, curve) == expected


@pytest.mark.parametrize(
    ("sizes", "curve"), [([], []), ([4, 8], [1.0]), ([8, 4], [1.0, 0.5]), ([4, 4], [1.0, 0.5]), ([0, 4], [1.0, 0.5])]
)
def test_sizes_that_make_no_curve_are_refused(sizes, curve):
    with pytest.raises(UserError):
        crossing(sizes, curve)


def test_interval_is_students_on_the_logarithm():
    k90 = [40.0, 50.0, 57.0, 60.0, 75.0]
    found = capacity_interval(SIZES, [falling(k) for k in k90])
    logs = [math.log2(k) for k in k90]
    half = 2.776 * stdev(logs) / math.sqrt(5)
    # The curves are parallel lines around the level, so that their mean crosses at the geometric mean.
    assert found.point.value == pytest.approx(2 ** fmean(logs))
    assert (found.low.value, found.high.value) == pytest.approx(
        (2 ** (fmean(logs) - half), 2 ** (fmean(logs) + half)), rel=1e-3
    )
    assert [seed.value for seed in found.seeds] == pytest.approx(k90) and len(found.seeds) == 5
    assert str(found) == "55 [41, 74]"


def test_point_is_the_crossing_of_the_mean_curve_and_not_the_mean_of_crossings():
    curves = [[1.0, 1.0, 1.0, 0.0], [1.0, 0.4, 0.2, 0.0]]
    found = capacity_interval([4, 8, 16, 32], curves)
    assert found.point == crossing([4, 8, 16, 32], [1.0, 0.7, 0.6, 0.0])
    assert found.point.value < math.sqrt(found.seeds[0].value * found.seeds[1].value)


def test_seeds_censored_above_open_the_upper_bound_and_cannot_raise_the_lower_one():
    seeds = [180.0, 200.0, 220.0, 230.0]
    found = capacity_interval(SIZES, [*map(falling, seeds), [1.0] * 7])
    assert found.high == ABOVE and found.low.censored == "no"
    # The censored seed enters as the largest size, which is no more than it is.
    truncated = [math.log2(k) for k in [*seeds, 256.0]]
    half = 2.776 * stdev(truncated) / math.sqrt(5)
    assert found.low.value == pytest.approx(2 ** (fmean(truncated) - half), rel=1e-3)


def test_seeds_censored_below_open_the_lower_bound():
    found = capacity_interval(SIZES, [falling(4.5), falling(5.0), falling(5.5), falling(5.2), [0.88] * 7])
    assert found.low == BELOW and found.high.censored == "no" and 4.5 < found.high.value < 8


def test_seeds_censored_on_both_sides_open_both_bounds():
    found = capacity_interval(SIZES, [[1.0] * 7, [0.0] * 7, falling(32)])
    assert (found.low, found.high) == (BELOW, ABOVE)
    assert str(found) == "< 4 (< 4, >= 256)"


def test_a_bound_beyond_the_sizes_is_open_though_no_seed_is_censored():
    found = capacity_interval(SIZES, [falling(100.0), falling(250.0)])
    assert (found.low, found.high) == (BELOW, ABOVE)
    assert {seed.censored for seed in found.seeds} == {"no"}


def test_a_censored_point_opens_its_bound_though_no_seed_is_censored():
    """Half fall at the end, half dip before it: each fit ends below .9, but the mean is .9, .93 and stays above."""
    found = capacity_interval([4, 8, 16], [[1.0, 1.0, 0.88], [1.0, 0.8, 0.98]] * 5)
    assert found.point == found.high == Crossing(16.0, "above")
    assert {seed.censored for seed in found.seeds} == {"no"} and found.low.censored == "no"


@pytest.mark.parametrize(("curve", "expected", "text"), [([1.0] * 7, ABOVE, ">= 256"), ([0.1] * 7, BELOW, "< 4")])
def test_seeds_that_are_all_censored_are_one_inequality(curve, expected, text):
    found = capacity_interval(SIZES, [curve] * 3)
    assert (found.point, found.low, found.high) == (expected, expected, expected)
    assert str(found) == text


def test_one_seed_has_no_interval_and_none_is_an_error():
    found = capacity_interval(SIZES, [falling(57)])
    assert found.low is None and found.high is None and str(found) == "57"
    with pytest.raises(UserError, match="at least one seed"):
        capacity_interval(SIZES, [])


@pytest.mark.parametrize(
    ("point", "low", "high", "text"),
    [
        (Crossing(57.2), Crossing(41.0), Crossing(80.4), "57 [41, 80]"),
        (Crossing(181.0), Crossing(120.0), ABOVE, "181 [120, >= 256)"),
        (ABOVE, Crossing(180.0), ABOVE, ">= 256 [180, >= 256)"),
        (Crossing(5.23), BELOW, Crossing(9.12), "5.2 (< 4, 9.1]"),
        (Crossing(8.0), Crossing(8.0), Crossing(8.0), "8 [8, 8]"),
    ],
)
def test_a_table_prints_bounds_and_what_is_open(point, low, high, text):
    assert str(Capacity(point, low, high, (point, point))) == text


def mutual_information(joint):
    """Sum of p log2 p / (p_x p_y), entry by entry."""
    rows, columns = joint.sum(axis=1), joint.sum(axis=0)
    n = len(joint)
    cells = [(joint[x, y], rows[x] * columns[y]) for x in range(n) for y in range(n)]
    return sum(p * math.log2(p / independent) for p, independent in cells if p > 0)


def symmetric_channel(values, accuracy):
    joint = np.full((values, values), (1 - accuracy) / (values - 1))
    np.fill_diagonal(joint, accuracy)
    return joint / values


@pytest.mark.parametrize("vocab", [4, 6, 32])
@pytest.mark.parametrize("accuracy", [0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
def test_bits_are_the_information_of_the_symmetric_channel(vocab, accuracy):
    expected = mutual_information(symmetric_channel(vocab // 2, accuracy))
    assert recalled_bits(accuracy, 7, vocab) == pytest.approx(7 * expected, abs=1e-9)


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_bits_never_exceed_the_information_of_any_channel(values, seed):
    channel = np.random.default_rng(seed).dirichlet([0.3] * values, size=values) / values
    assert recalled_bits(float(np.trace(channel)), 1, 2 * values) <= mutual_information(channel) + 1e-9


def test_every_value_recalled_is_all_its_bits_and_chance_is_none():
    assert recalled_bits(1.0, 8, 8192) == 8 * 12
    for vocab in (6, 10, 8192):
        assert 0 <= recalled_bits(2 / vocab, 8, vocab) < 1e-12


def test_an_odd_vocabulary_gives_the_extra_token_to_the_values():
    assert recalled_bits(1.0, 1, 15) == 3  # values are [7, 15)


@pytest.mark.parametrize(("accuracy", "vocab"), [(1.1, 8), (-0.1, 8), (math.nan, 8), (1.0, 2)])
def test_what_is_no_accuracy_or_no_choice_is_refused(accuracy, vocab):
    with pytest.raises(UserError):
        recalled_bits(accuracy, 1, vocab)


def test_most_bits_may_be_recalled_past_the_capacity():
    sizes, accuracies = [4, 8, 16], [1.0, 0.95, 0.1]
    bits = [recalled_bits(a, k, 64) for k, a in zip(sizes, accuracies, strict=True)]
    assert best_recalled_bits(sizes, accuracies, 64) == bits[1] == max(bits)


def test_answered_bits_are_what_the_cross_entropy_leaves_of_the_values_bits():
    sure = answered_bits(0.0, 256, 8192)
    assert sure == 256 * 12 == recalled_bits(1.0, 256, 8192)
    assert answered_bits(math.log(4096), 256, 8192) == pytest.approx(0, abs=1e-9) and answered_bits(99.0, 4, 8192) == 0
    # A guess among the four values of the context is not nothing: it knows which values there are.
    assert answered_bits(math.log(4), 4, 8192) == pytest.approx(4 * 10)


@given(st.floats(0.01, 1), st.integers(2, 64))
def test_the_loss_of_a_channel_whose_errors_are_uniform_says_what_fano_says(accuracy, pairs):
    values = 128
    error = 1 - accuracy
    spread = error * math.log(values - 1) if error else 0.0
    loss = -(accuracy * math.log(accuracy) + (error * math.log(error) if error else 0.0)) + spread
    assert answered_bits(loss, pairs, 256) == pytest.approx(recalled_bits(accuracy, pairs, 256), abs=1e-6)
