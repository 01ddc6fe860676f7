"""Intervals over clusters."""

import math
import random

import torch

from assay.metrics import bootstrap
from assay.metrics.bootstrap import LEAST, ratio, ratio_difference, ratio_difference_p


def clusters(n, *, spread, seed=0):
    draw = random.Random(seed)
    counts = [float(draw.randint(50, 150)) for _ in range(n)]
    return [c * (3 + draw.gauss(0, spread)) for c in counts], counts


def test_the_interval_has_the_width_that_the_clusters_say():
    totals, counts = clusters(200, spread=0.5)
    found = ratio(totals, counts)
    mean = sum(totals) / sum(counts)
    residuals = [(t - mean * c) for t, c in zip(totals, counts, strict=True)]
    # The standard error of a ratio of sums, by linearisation.
    error = math.sqrt(sum(r * r for r in residuals)) / sum(counts)
    assert math.isclose(found.mean, mean) and found.n == 200
    assert abs((found.high - found.low) / (2 * 1.96 * error) - 1) < 0.1


def test_about_95_of_100_intervals_cover():
    covered = [ratio(*clusters(40, spread=0.3, seed=seed)) for seed in range(200)]
    assert 0.87 <= sum(one.low <= 3 <= one.high for one in covered) / 200 <= 0.99


def test_what_two_things_share_cancels():
    totals, counts = clusters(50, spread=1.0)
    worse = [t + 0.01 * c for t, c in zip(totals, counts, strict=True)]
    found = ratio_difference(worse, counts, totals, counts)
    assert math.isclose(found.mean, 0.01, abs_tol=1e-12) and found.high - found.low < 1e-9
    assert ratio(totals, counts).high - ratio(totals, counts).low > 0.2


def test_too_few_clusters_have_no_interval():
    found = ratio(*clusters(LEAST - 1, spread=0.5))
    assert found.low is None and found.high is None and found.mean > 0
    assert ratio(*clusters(LEAST, spread=0.5)).low is not None


def test_the_same_clusters_give_the_same_interval():
    assert ratio(*clusters(30, spread=0.5)) == ratio(*clusters(30, spread=0.5))


def test_a_p_value_says_what_the_interval_says():
    rng = torch.Generator().manual_seed(0)
    count = torch.randint(10, 100, (40,), generator=rng).double()
    noise, told = torch.randn(40, generator=rng).double(), []
    for shift in (0.0, 0.1, 0.2, 0.4, 1.0):
        sums = [(count * (noise + shift)).tolist(), count.tolist(), [0.0] * 40, count.tolist()]
        found, p = ratio_difference(*sums), ratio_difference_p(*sums)
        assert (p < 0.05) == (found.low > 0 or found.high < 0)
        told.append(p)
    assert told[-1] < 1e-3 < told[0], "both kinds occur"
    same = [count.tolist()] * 4
    assert ratio_difference_p(*same) == 1.0 and ratio_difference_p(*[[1.0] * 5] * 4) == 1.0


def test_what_tables_and_files_both_ask_for_is_drawn_once(monkeypatch):
    drawn = []
    whole = bootstrap._drawn_differences
    monkeypatch.setattr(bootstrap, "_drawn_differences", lambda sums: drawn.append(1) or whole(sums))
    total, count = [1.5 + n for n in range(30)], [2.0] * 30
    first, again = (bootstrap.ratio_difference(total, count, count, total) for _ in range(2))
    one, other = (bootstrap.ratio_difference_p(total, count, count, total) for _ in range(2))
    assert first == again and one == other and len(drawn) == 2


def test_quantiles_are_those_of_torch_to_the_last_bit():
    rng = torch.Generator().manual_seed(0)
    for count in (1, 2, 3, 40, 4000):
        values = torch.randn(count, generator=rng, dtype=torch.float64)
        levels = [0.0, 0.025, 0.05, 0.5, 0.95, 0.975, 1.0]
        assert bootstrap.quantiles(values, *levels) == torch.quantile(values, torch.tensor(levels).double()).tolist()


def test_clusters_that_all_differ_by_one_amount_do_not_give_certainty():
    """p was 0, which Holm over any number of pairs leaves at 0."""
    ones, tens = [1.0] * LEAST, [10.0] * LEAST
    assert ratio_difference_p(tens, ones, ones, ones) == 2.0 ** (1 - LEAST)
    assert ratio_difference_p(tens, ones, tens, ones) == 1
