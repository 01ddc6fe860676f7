"""Permutation tests: sizes that hold under the null, and what is there found."""

from typing import Any

import numpy as np
import pytest

from assay.core.errors import UserError
from assay.studies.modular.metrics.permutation import beyond_strengths, contrast, largest_step, mantel


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
    found = [contrast(noise(9, s), labels, rng=np.random.default_rng(s), permutations=99) for s in range(120)]
    p = np.array([c.p for c in found if c is not None])
    assert 0.02 <= (p <= 0.1).mean() <= 0.19 and 0.4 < p.mean() < 0.6


def test_a_contrast_is_the_difference_of_means_over_pairs() -> None:
    S, groups = noise(6, 4), ["a", "a", "b", "b", "b", "c"]
    pairs = [(i, j) for i in range(6) for j in range(i)]
    within = np.mean([S[i, j] for i, j in pairs if groups[i] == groups[j]])
    between = np.mean([S[i, j] for i, j in pairs if groups[i] != groups[j]])
    found = contrast(S, groups, rng=np.random.default_rng(0))
    assert found is not None and (found.within, found.between) == (pytest.approx(within), pytest.approx(between))
    rest = beyond_strengths(S)
    inside, outside = (
        np.mean([rest[i, j] for i, j in pairs if (groups[i] == groups[j]) == wanted]) for wanted in (True, False)
    )
    assert found.beyond == pytest.approx(inside - outside)


STRENGTHS = np.repeat(np.linspace(0.1, 0.9, 12), 3)  # 12 widths of 3 seeds, each stronger than the one before
WIDTHS = list(np.repeat(np.arange(12), 3))
QUARTERS = [width // 3 for width in WIDTHS]


@pytest.mark.parametrize("form", [np.multiply.outer, np.add.outer, lambda u, v: 1 - np.multiply.outer(u, v)])
def test_what_strength_alone_explains_is_no_contrast(form: Any) -> None:
    S = form(STRENGTHS, STRENGTHS)
    for groups, units in ((WIDTHS, None), (QUARTERS, WIDTHS)):
        found = contrast(S, groups, units=units, rng=np.random.default_rng(0))
        assert found is not None and found.p == 1 and abs(found.beyond) < 1e-9


def test_under_strengths_and_noise_p_is_uniform() -> None:
    p = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        S = np.outer(STRENGTHS, STRENGTHS) + 0.05 * noise(36, seed)
        tests = [contrast(S, g, units=u, rng=rng, permutations=99) for g, u in ((WIDTHS, None), (QUARTERS, WIDTHS))]
        p.append([test.p for test in tests if test])
    assert (np.mean(np.array(p) <= 0.1, axis=0) <= 0.22).all() and (np.abs(np.mean(p, axis=0) - 0.5) < 0.12).all()


def test_what_widths_share_beyond_strength_is_found() -> None:
    S = np.outer(STRENGTHS, STRENGTHS) + 0.02 * noise(36, 0)
    own = S + 0.1 * np.equal.outer(WIDTHS, WIDTHS)
    blocks = S + 0.1 * np.equal.outer(QUARTERS, QUARTERS)
    width = contrast(own, WIDTHS, rng=np.random.default_rng(0))
    quarter = contrast(blocks, QUARTERS, units=WIDTHS, rng=np.random.default_rng(0))
    assert width is not None and width.p <= 0.002 and width.beyond == pytest.approx(0.1, abs=0.03)
    assert quarter is not None and quarter.p <= 0.01 and 0.05 < quarter.beyond < 0.11


def test_seeds_of_a_width_are_no_evidence_for_quarters() -> None:
    """Each width has a place of its own, shared by its seeds: with models permuted one by one p is far too small."""
    p = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        place = np.repeat(rng.normal(size=(12, 4)), 3, axis=0)
        found = contrast(place @ place.T, QUARTERS, units=WIDTHS, rng=rng, permutations=99)
        p.append(found.p if found else 0)
    assert np.mean(np.array(p) <= 0.1) <= 0.25 and 0.35 < np.mean(p) < 0.65


def test_blocks_are_found_and_pairs_can_be_left_out() -> None:
    groups = [0] * 6 + [1] * 6
    block = noise(12, 5) * 0.1 + np.equal.outer(groups, groups)
    found = contrast(block, groups, rng=np.random.default_rng(0))
    assert found is not None and found.p < 0.01
    assert contrast(block, groups, rng=np.random.default_rng(0), units=groups) is None, "no pair of a group is left"
    assert contrast(block, range(12), rng=np.random.default_rng(0)) is None, "no pair shares a group"


def test_two_models_are_too_few() -> None:
    with pytest.raises(UserError, match="3 or more"):
        mantel(noise(2, 0), noise(2, 0), rng=np.random.default_rng(0))


ORDERED = np.arange(32)
PLANTED = {
    "four blocks": (0.2 * np.equal.outer(ORDERED // 8, ORDERED // 8), 0.2),
    "a block of wide models": (0.2 * np.logical_and.outer(ORDERED >= 16, ORDERED >= 16), 0.1),
    "a narrow and a wide block": (0.2 * np.equal.outer(ORDERED >= 12, ORDERED >= 12), 0.2),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_blocks_make_a_step_of_their_size(name: str) -> None:
    planted, size = PLANTED[name]
    matrices = [0.3 + planted + 0.02 * noise(32, seed) for seed in range(3)]
    found = largest_step(matrices, window=8, rng=np.random.default_rng(0), permutations=199)
    assert np.mean(found.sizes) == pytest.approx(size, abs=0.04) and found.p == pytest.approx(1 / 200)


@pytest.mark.parametrize(
    "form", [np.multiply.outer, np.add.outer, lambda u, v: np.exp(-np.abs(np.subtract.outer(u, v)))]
)
def test_what_grows_or_falls_slowly_is_no_step(form: Any) -> None:
    """Strengths that rise with the width from 0.1 to 0.5, and similarity that falls slowly with the distance."""
    S = form(np.linspace(0.1, 0.5, 32), np.linspace(0.1, 0.5, 32))
    (size,) = largest_step([S], window=4, rng=np.random.default_rng(0), permutations=1).sizes
    assert size < 0.1 * (S.max() - S.min())


def test_a_step_is_the_obvious_difference_of_means_at_its_best_border() -> None:
    S = noise(9, 6)

    def mean(rows: range, columns: range) -> float:
        return float(np.mean([S[i, j] for i in rows for j in columns if i != j]))

    steps = [
        (mean(before, before) + mean(after, after)) / 2 - mean(before, after)
        for before, after in ((range(c - 3, c), range(c, c + 3)) for c in range(3, 7))
    ]
    found = largest_step([S], window=3, rng=np.random.default_rng(0), permutations=1)
    assert found.sizes == [pytest.approx(max(steps))]
    with pytest.raises(UserError, match="2 to 4"):
        largest_step([S], window=5, rng=np.random.default_rng(0))


def test_steps_of_noise_have_uniform_p() -> None:
    p = [largest_step([noise(16, s)], window=3, rng=np.random.default_rng(s), permutations=59).p for s in range(80)]
    assert 0.4 < np.mean(p) < 0.6 and np.mean(np.array(p) <= 0.1) <= 0.2
