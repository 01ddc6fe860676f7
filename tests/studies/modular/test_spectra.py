"""Eigenvalues, effective ranks and Jensen-Shannon divergence against the obvious."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from assay.core.errors import UserError
from assay.nn.random import initialised_from
from assay.studies.modular.bilinear import constructive_model, init_model
from assay.studies.modular.metrics.spectra import (
    JS_divergence,
    _outermost,
    components_for_variance_threshold,
    cumulative_explained_variance,
    eigendecomposition,
    entropy_effective_rank,
    interaction_eigenvalues,
    interaction_matrices,
    js_divergence_matrix,
    ratio_effective_rank,
)


def laws(*shape: int) -> np.ndarray:
    values = np.random.default_rng(0).exponential(size=shape)
    return values / values.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("width", [1, 3, 20])
def test_eigenvalues_are_those_of_the_whole_forms(width: int) -> None:
    model = init_model(6, width).double()
    whole = torch.einsum("hi,hj,ph->pij", model.w_l, model.w_r, model.w_p).detach()
    exact = torch.linalg.eigvalsh((whole + whole.mT) / 2)
    found = interaction_eigenvalues(model)
    assert found.shape == (6, min(2 * width, 12))
    padded = torch.cat([found, torch.zeros(6, 12 - found.shape[1], dtype=torch.float64)], dim=1)
    torch.testing.assert_close(padded.sort(dim=1).values, exact, rtol=0, atol=1e-10)
    assert (found.abs().diff(dim=1) <= 0).all()


def test_effective_ranks_count_equal_eigenvalues_of_either_sign() -> None:
    values = torch.tensor([[2.0, -2.0, 2.0, 0.0], [5.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(entropy_effective_rank(values), torch.tensor([3.0, 1.0, 0.0]))
    torch.testing.assert_close(ratio_effective_rank(values), torch.tensor([3.0, 1.0, 0.0]))


def test_a_form_of_the_constructive_model_has_rank_four() -> None:
    """cos(a + b - r) is a matrix of rank two in (a, b), once above and once below the diagonal."""
    values = interaction_eigenvalues(constructive_model(16))
    torch.testing.assert_close(
        entropy_effective_rank(values), torch.full((16,), 4.0, dtype=torch.float64), rtol=1e-5, atol=0
    )


def test_divergence_is_scipys_and_within_its_bounds() -> None:
    p, q = laws(2, 40, 9)
    np.testing.assert_allclose(JS_divergence(p, q), jensenshannon(p, q, axis=-1) ** 2, atol=1e-12)
    apart = JS_divergence([1.0, 0.0], [0.0, 1.0])
    assert apart == pytest.approx(math.log(2)) and JS_divergence(p[0], p[0]) == 0
    assert ((JS_divergence(p, q) >= 0) & (JS_divergence(p, q) <= math.log(2))).all()


def test_the_root_of_the_divergence_keeps_the_triangle_inequality() -> None:
    p, q, r = laws(3, 500, 6)
    x, y, z = np.sqrt([JS_divergence(p, q), JS_divergence(q, r), JS_divergence(p, r)])
    assert (z <= x + y + 1e-12).all()


def test_the_matrix_sums_over_remainders() -> None:
    given = laws(5, 4, 7)
    loop = [[JS_divergence(x, y).sum() for x in given] for y in given]
    np.testing.assert_allclose(js_divergence_matrix(given), loop, atol=1e-12)


def test_an_eigendecomposition_gives_the_forms_back() -> None:
    with initialised_from(0, "eigen"):
        models = [init_model(6, width).double() for width in (2, 9)]
    for model in models:
        values, vectors = eigendecomposition(model)
        assert vectors.shape == (6, 12, min(12, 2 * model.config.width))
        back = torch.einsum("rik,rk,rjk->rij", vectors, values, vectors)
        torch.testing.assert_close(back, interaction_matrices(model), rtol=0, atol=1e-12)
        torch.testing.assert_close(values, interaction_eigenvalues(model), rtol=0, atol=1e-12)


def test_components_are_counted_until_the_threshold() -> None:
    values = torch.tensor([[1.0, -3.0, 0.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(cumulative_explained_variance(values)[0], torch.tensor([0.9, 1.0, 1.0]))
    assert components_for_variance_threshold(values, 0.85).tolist() == [1, 3, 1]
    assert components_for_variance_threshold(values, 1.0)[1] == 3
    with pytest.raises(UserError, match="threshold"):
        components_for_variance_threshold(values, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_pairs_alone_are_those_of_all(dtype: torch.dtype) -> None:
    with initialised_from(1, "eigen"):
        models = [init_model(11, width) for width in (9, 20)]
    four = constructive_model(20)  # four equal eigenvalues and many zeros: splits the tridiagonal matrix
    for model in (*models, four):
        values, vectors = eigendecomposition(model, dtype, largest=1)
        forms = interaction_matrices(model).to(dtype)
        torch.testing.assert_close(
            values.abs(), interaction_eigenvalues(model)[:, :1].abs().to(dtype), rtol=1e-4, atol=1e-6
        )
        torch.testing.assert_close(forms @ vectors, vectors * values[:, None], rtol=0, atol=1e-5)
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones_like(values))


def test_outermost_pairs_are_torchs() -> None:
    x = torch.randn(5, 24, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[3] = 0
    x[4] = torch.diag(torch.arange(24.0, dtype=torch.float64) // 3)
    matrices = x + x.mT
    values, vectors = _outermost(matrices, 3)
    every = torch.linalg.eigvalsh(matrices)
    torch.testing.assert_close(values, torch.cat([every[:, :3], every[:, -3:]], dim=1), rtol=0, atol=1e-10)
    torch.testing.assert_close(matrices @ vectors, vectors * values[:, None], rtol=0, atol=1e-10)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(6).double().expand(5, 6, 6), rtol=0, atol=1e-10)
