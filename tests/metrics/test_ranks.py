"""The rank correlation is scipy's, ties included."""

import random

import pytest

from assay.metrics.ranks import spearman


def test_spearman_agrees_with_scipy_ties_included() -> None:
    from scipy.stats import spearmanr

    rng = random.Random(0)
    xs, ys = ([rng.randrange(6) / 5 for _ in range(30)] for _ in range(2))
    assert spearman(xs, ys) == pytest.approx(float(spearmanr(xs, ys).statistic))
    assert spearman([1.0, 1.0], [0.0, 2.0]) == 0.0
