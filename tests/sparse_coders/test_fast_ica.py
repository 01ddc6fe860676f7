"""Independent components are principal components, scaled and rotated: a linear reader gets the same from both."""

import pytest
import torch

from assay.metrics import sparsity
from assay.nn.random import stream
from assay.sparse_coders import sparse_coders
from assay.vectors import vectors

D_CODE = 8


def dark() -> torch.Tensor:
    """Rows of uneven variance whose first input is always dark, of 10 dimensions in all."""
    rng = stream(0, "rows")
    x = torch.rand(600, 10, generator=rng) ** 2 @ torch.randn(10, 20, generator=rng)
    x[:, 0] = 0
    return x


def unexplained(coder: str, x: torch.Tensor, d_code: int) -> float:
    fitted = len(x) * 2 // 3
    code = sparse_coders.parse(coder).fit(x[:fitted], d_code, seed=0).encode(x[None])[0]
    decoder = sparsity.ridge_decoder(code[:fitted], x[:fitted])
    return sparsity.fraction_unexplained(x[fitted:], decoder.decode(code[fitted:]))


@pytest.mark.parametrize("coder", ["fast_ica", "fast_ica:rows=200", "fast_ica:iterations=1"])
@pytest.mark.parametrize("data", ["digits", "made"])
def test_independent_components_keep_what_principal_ones_do_with_a_dark_first_input(coder: str, data: str) -> None:
    """Of digits the first pixel is always dark, and signs that scikit-learn's own whitening takes from it are 0."""
    x, d_code = (vectors.parse("digits").load().train.x, 32) if data == "digits" else (dark(), D_CODE)
    assert not x[:, 0].any()
    assert unexplained(coder, x, d_code) == pytest.approx(unexplained("pca", x, d_code), rel=1e-3)


def test_components_have_one_variance_and_no_correlation() -> None:
    x = dark()
    code = sparse_coders.parse("fast_ica").fit(x, D_CODE, seed=0).encode(x[None])[0]
    torch.testing.assert_close(torch.cov(code.T, correction=0), torch.eye(D_CODE), rtol=0, atol=1e-3)


def test_units_beyond_what_varies_are_silent() -> None:
    x = dark()
    code = sparse_coders.parse("fast_ica").fit(x, 14, seed=0).encode(x[None])[0]
    assert sparsity.dead(code) == 4 and unexplained("fast_ica", x, 14) < 1e-6
