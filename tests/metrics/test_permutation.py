"""Permutation tests: sizes that hold under the null, and what is there found."""

import numpy as np
import pytest

from assay.core.errors import UserError
from assay.metrics.permutation import contrast, mantel


def noise(N: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(N, N))
    return x + x.T


def test_mantel_finds_a_copy_and_not_noise() -> None:
    rng = np.random.default_rng(0)
    D = noise(12, 0)
    assert mantel(D, 2 * D + 1, rng=rng).r == pytest.approx(1) and mantel(D, -D, rng=rng).p == pytest.approx(0.001)
    assert mantel(D, noise(12, 1), rng=rng).p > 0.05


def test_mantel_p_is_that_of_all_permutations_of_a_small_matrix() -> None:
    from itertools import permutations

    one, other = noise(5, 2), noise(5, 3)
    upper = np.triu_indices(5, 1)
    r = [np.corrcoef(one[upper], other[np.ix_(o, o)][upper])[0, 1] for o in map(list, permutations(range(5)))]
    exact = np.mean(np.abs(r) >= abs(r[0]) - 1e-12)
    found = mantel(one, other, rng=np.random.default_rng(0), permutations=4000)
    assert found.r == pytest.approx(r[0]) and found.p == pytest.approx(exact, abs=0.03)


def test_p_values_of_noise_are_uniform() -> None:
    labels = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    found = [contrast(noise(9, s), labels, rng=np.random.default_rng(s), permutations=99) for s in range(200)]
    p = np.array([c.p for c in found if c is not None])
    assert 0.02 <= (p <= 0.1).mean() <= 0.19 and 0.4 < p.mean() < 0.6


def test_a_contrast_is_the_difference_of_means_over_pairs() -> None:
    S, groups = noise(6, 4), ["a", "a", "b", "b", "b", "c"]
    pairs = [(i, j) for i in range(6) for j in range(i)]
    within = np.mean([S[i, j] for i, j in pairs if groups[i] == groups[j]])
    between = np.mean([S[i, j] for i, j in pairs if groups[i] != groups[j]])
    found = contrast(S, groups, rng=np.random.default_rng(0))
    assert found is not None and found.difference == pytest.approx(within - between)


def test_blocks_are_found_and_pairs_can_be_left_out() -> None:
    groups = [0] * 6 + [1] * 6
    block = noise(12, 5) * 0.1 + np.equal.outer(groups, groups)
    found = contrast(block, groups, rng=np.random.default_rng(0))
    assert found is not None and found.p < 0.01
    everything = np.equal.outer(groups, groups)
    assert contrast(block, groups, rng=np.random.default_rng(0), ignore=everything) is None
    assert contrast(block, range(12), rng=np.random.default_rng(0)) is None, "no pair shares a group"


def test_two_models_are_too_few() -> None:
    with pytest.raises(UserError, match="3 or more"):
        mantel(noise(2, 0), noise(2, 0), rng=np.random.default_rng(0))
