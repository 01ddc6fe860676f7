"""Products of matrices have the same bits alone and beside others: what a model learns depends on itself."""

import pytest
import torch

from assay.nn.random import stream

SIZES = (1, 3, 8, 16, 64, 100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_has_the_bits_that_it_has_beside_others(dtype: torch.dtype) -> None:
    """Of vectors too, for which a library may have another program."""
    rng = stream(0, "products")
    for rows in SIZES:
        for inner in (8, 32, 256):
            for columns in SIZES:
                a, b = (torch.randn(3, *size, generator=rng, dtype=dtype) for size in ((rows, inner), (inner, columns)))
                alone = torch.cat([torch.bmm(x[None], y[None]) for x, y in zip(a, b, strict=True)])
                assert torch.equal(torch.bmm(a, b), alone), (rows, inner, columns)
