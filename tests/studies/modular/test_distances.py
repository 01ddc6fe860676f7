"""Distances, and how far two matrices of them agree."""

import numpy as np
import pytest

from assay.core.errors import UserError
from assay.studies.modular.metrics import distances as dist

N = 24


def random_distances(seed: int, N: int = N) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(N, 8))
    return np.linalg.norm(points[:, None] - points, axis=-1)


def test_similarities_become_the_distances_of_vectors() -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 4))
    apart = np.linalg.norm(vectors[:, None] - vectors, axis=-1)
    np.testing.assert_allclose(dist.inner_product_to_metric(vectors @ vectors.T), apart, atol=1e-7)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    apart = np.linalg.norm(units[:, None] - units, axis=-1)
    found = dist.cosine_similarity_to_metric(units @ units.T)
    np.testing.assert_allclose(found, apart, atol=1e-7)
    assert (np.diag(found) == 0).all()
    assert dist.cosine_similarity_to_metric(np.array([[1.0, 1.0 + 1e-9], [1.0 + 1e-9, 1.0]])).max() == 0
    np.testing.assert_array_equal(dist.divergence_to_metric(np.array([[-1e-17, 4.0], [4.0, 0.0]])), [[0, 2], [2, 0]])


def test_a_point_is_never_its_own_neighbour_even_with_ties() -> None:
    near = dist.get_knn_indices(np.zeros((5, 5)), 4)
    assert all(place not in row for place, row in enumerate(near))


@pytest.mark.parametrize("k", range(1, N))
def test_identical_matrices_agree_for_every_k(k: int) -> None:
    D = random_distances(0)
    for score in (
        dist.compute_knn_overlap,
        dist.compute_jaccard_index,
        dist.compute_trustworthiness,
        dist.compute_continuity,
    ):
        assert score(D, D, k) == 1


@pytest.mark.parametrize("k", range(1, N))
def test_unrelated_matrices_are_at_chance_for_every_k(k: int) -> None:
    pairs = [(random_distances(2 * i), random_distances(2 * i + 1)) for i in range(40)]
    trust = [dist.compute_trustworthiness(*pair, k) for pair in pairs]
    overlap = [dist.compute_knn_overlap(*pair, k) for pair in pairs]
    assert all(0 <= score <= 1 for score in trust)
    assert abs(dist.beyond_chance(float(np.mean(trust)), dist.chance_trustworthiness(N, k))) < 0.06
    assert abs(dist.beyond_chance(float(np.mean(overlap)), dist.chance_overlap(N, k))) < 0.06


@pytest.mark.parametrize("k", range(1, N))
def test_the_worst_is_zero_for_every_k(k: int) -> None:
    """In D2 the nearest are those that are farthest in D1."""
    D = random_distances(3)
    reversed_D = D.max() + 1 - D
    np.fill_diagonal(reversed_D, 0)
    assert dist.compute_trustworthiness(D, reversed_D, k) == pytest.approx(1.0 if k == N - 1 else 0.0, abs=1e-12)


@pytest.mark.parametrize("k", [1, 3, 7, 11])
def test_below_half_the_points_the_published_formula_holds(k: int) -> None:
    D1, D2 = random_distances(4), random_distances(5)
    penalty = 0
    for i in range(N):
        others = [j for j in range(N) if j != i]
        rank = {j: place for place, j in enumerate(sorted(others, key=lambda j: D1[i, j]), start=1)}
        penalty += sum(max(0, rank[j] - k) for j in sorted(others, key=lambda j: D2[i, j])[:k])
    assert dist.compute_trustworthiness(D1, D2, k) == pytest.approx(1 - 2 * penalty / (N * k * (2 * N - 3 * k - 1)))
    assert dist.compute_continuity(D1, D2, k) == dist.compute_trustworthiness(D2, D1, k)


def test_compare_metrics_has_the_keys_of_the_spec_and_drops_a_k_that_is_too_large() -> None:
    D1, D2 = random_distances(6), random_distances(7)
    found = dist.compare_metrics(D1, D2, name1="TN", name2="Activation")
    assert (found["name1"], found["name2"], found["k_values"]) == ("TN", "Activation", [1, 2, 3, 5, 10, 15, 20])
    for key in ("knn_overlap", "jaccard", "trustworthiness", "continuity", "knn_overlap_adjusted"):
        assert len(found[key]) == 7
    upper = np.triu_indices(N, 1)
    assert found["pearson"] == pytest.approx(np.corrcoef(D1[upper], D2[upper])[0, 1])
    alpha = (D1 * D2).sum() / (D2**2).sum()
    assert found["optimal_scale"] == pytest.approx(alpha)
    assert found["stress"] == pytest.approx(np.sqrt(((D1 - alpha * D2) ** 2).sum() / (D1**2).sum()))
    assert found["stress_unnorm"] == pytest.approx(np.sqrt(((D1 - D2) ** 2).sum() / (D1**2).sum()))


def test_a_scaled_copy_is_the_same_but_for_its_scale() -> None:
    D = random_distances(8)
    found = dist.compare_metrics(D, 4 * D)
    assert found["pearson"] == found["spearman"] == pytest.approx(1)
    assert found["optimal_scale"] == pytest.approx(0.25) and found["stress"] == pytest.approx(0, abs=1e-12)
    assert found["stress_unnorm"] == pytest.approx(3)


def test_distances_that_do_not_vary_give_numbers() -> None:
    flat = 1 - np.eye(N)
    found = dist.compare_metrics(flat, random_distances(9))
    assert found["pearson"] == 0 and np.isfinite(found["trustworthiness"]).all()


def test_other_points_and_impossible_k_are_refused() -> None:
    with pytest.raises(UserError, match="same 3 or more"):
        dist.compare_metrics(random_distances(0, 4), random_distances(0, 5))
    with pytest.raises(UserError, match="1 to 3 neighbours"):
        dist.get_knn_indices(random_distances(0, 4), 4)
