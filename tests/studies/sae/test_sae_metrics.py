"""The spec's metrics (its tests/test_metrics.py) where the answer is known."""

import math

import numpy as np
import pytest
import torch

from assay.metrics import sparsity
from assay.nn.random import stream
from assay.studies import sae


def test_dead_units_are_those_whose_variance_is_below_a_hundredth() -> None:
    a = torch.randn(100, 4, generator=stream(0, "a"))
    a[:, 1], a[:, 2] = 5.0, a[:, 2] * 0.05
    assert sae.dead_units(a) == 2 and isinstance(sae.dead_units(a), int)


def test_sparsity_is_a_pair_of_numbers() -> None:
    """The original's tests expected a number and its code gave a pair; the pair is what is documented."""
    a = torch.tensor([[0.0, 1.0, -1.0, 0.005], [0.0, 0.0, 0.0, 2.0]])
    assert sae.sparsity_l0(a) == (1.5, 0.375)
    assert sae.sparsity_l0(a, threshold=0.001) == (2.0, 0.5)


def test_effective_rank_counts_equal_singular_values() -> None:
    assert sae.effective_rank(torch.eye(5, 9)) == pytest.approx(5, rel=1e-5)
    assert sae.effective_rank(torch.ones(5, 9)) == pytest.approx(1, abs=1e-3)


def test_entropy_and_usage_of_uniform_responsibilities() -> None:
    r = torch.full((10, 64), 1 / 64)
    assert sae.responsibility_entropy(r) == pytest.approx(math.log(64), abs=1e-4)
    assert sae.usage_distribution(r).shape == (64,) and sae.usage_distribution(r).sum() == pytest.approx(1)


def test_reconstructions_with_the_encoders_own_weights() -> None:
    W, x = torch.eye(3), torch.randn(20, 3, generator=stream(0, "x"))
    assert sae.reconstruction_mse(x, x, W) == 0
    assert sae.normalized_reconstruction_mse(x, 7 * x, W) == pytest.approx(0, abs=1e-6), "scale does not matter"
    assert sae.reconstruction_mse(x, 7 * x, W) > 1


def test_matrices_have_ones_on_their_diagonals() -> None:
    W, a = torch.randn(4, 9, generator=stream(0, "W")), torch.randn(50, 4, generator=stream(0, "a"))
    for matrix in (sae.feature_similarity_matrix(W), sae.activation_correlation_matrix(a)):
        np.testing.assert_allclose(np.diag(matrix), 1, atol=1e-6)
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-7)


def test_all_metrics_are_seven_plain_numbers() -> None:
    W, x = torch.randn(4, 9, generator=stream(0, "W")), torch.rand(50, 9, generator=stream(0, "x"))
    a = (x @ W.T).relu()
    found = sae.compute_all_metrics(a, W, x, torch.softmax(-a, dim=1))
    assert set(found) == {
        "dead_units", "redundancy_score", "weight_redundancy", "effective_rank", "responsibility_entropy",
        "reconstruction_mse", "sparsity_l0",
    }  # fmt: skip
    assert all(isinstance(value, int | float) for value in found.values())


def test_the_probe_reads_separable_classes_perfectly_and_noise_by_chance() -> None:
    """The original died here on scikit-learn 1.9: it passed an argument that is gone."""
    y = torch.arange(200) % 4
    z = torch.nn.functional.one_hot(y, 4).float() + 0.01 * torch.randn(200, 4, generator=stream(0, "z"))
    assert sae.linear_probe_accuracy(z[:100], y[:100], z[100:], y[100:]) == 1
    noise = torch.randn(200, 4, generator=stream(0, "n"))
    assert sae.linear_probe_accuracy(noise[:100], y[:100], noise[100:], y[100:]) < 0.5


def test_the_probe_is_scikit_learns_whatever_the_scale_of_a_unit() -> None:
    """All of what tells the classes apart is in units ten thousand times smaller than the others."""
    linear_model, preprocessing = (
        pytest.importorskip("sklearn.linear_model"),
        pytest.importorskip("sklearn.preprocessing"),
    )
    rng = stream(0, "z")
    y = torch.randint(0, 4, (600,), generator=rng)
    z = torch.cat(
        [torch.nn.functional.one_hot(y, 4) + torch.randn(600, 4, generator=rng), torch.randn(600, 8, generator=rng)],
        dim=1,
    )
    z = z * torch.tensor([1e-4] * 4 + [1.0] * 8)
    scaler = preprocessing.StandardScaler().fit(z[:400].numpy())
    model = linear_model.LogisticRegression(max_iter=5000, tol=1e-8).fit(
        scaler.transform(z[:400].numpy()), y[:400].numpy()
    )
    expected = model.score(scaler.transform(z[400:].numpy()), y[400:].numpy())
    assert expected > 0.5
    assert sae.linear_probe_accuracy(z[:400], y[:400], z[400:], y[400:]) == expected


def test_entropy_of_a_large_code_is_the_log_of_its_silent_units() -> None:
    code = 1e4 * torch.randn(200, 16, generator=stream(0, "x")).relu()
    entropy = sae.responsibility_entropy(torch.softmax(-code, dim=1))
    assert entropy == pytest.approx(sparsity.log_inactive(code), abs=1e-3)
