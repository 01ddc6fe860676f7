"""The kernels that choose blocks by curvature against the formulas of curvature.py: on a GPU, or by Triton's
interpreter."""

import pytest
import torch

from assay.attention import attention
from assay.attention.budget import highest
from assay.attention.curvature import CurvatureSelect, with_own
from assay.attention.layer import Layer
from triton_device import DEVICE, draw, needs_triton

pytestmark = needs_triton
COUNTS = [1, 5, 16, 37]
"""Blocks of a sequence: one, less than a program scales, as many, more and no multiple."""


def written_out(blocks: int) -> tuple[CurvatureSelect, Layer]:
    """A method, and a layer in 32 bits, which no kernel takes."""
    method = attention.parse("cab_v3:block_size=4")
    assert isinstance(method, CurvatureSelect)
    return method, Layer(*(draw(2, heads, 4 * blocks - 1, 8, seed=heads) for heads in (4, 2, 2)))


@pytest.mark.parametrize("blocks", COUNTS)
def test_affinity_and_curvature_are_those_of_the_formulas(blocks: int) -> None:
    from assay.attention import curvature_kernels

    method, layer = written_out(blocks)
    queries, keys = method.longest(layer.q, layer), method.longest(layer.k, layer).repeat_interleave(2, 1)
    exact = method.affinity(layer)
    found = curvature_kernels.affinity(queries @ keys.mT)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)
    assert found.min() >= 0 and found.max() == (1 if blocks > 1 else 0), "scaled to 0..1"
    torch.testing.assert_close(curvature_kernels.curvature(exact, exact @ exact, 0.3), method.curvature(layer))


@pytest.mark.parametrize("blocks", COUNTS)
@pytest.mark.parametrize("equal", [False, True], ids=["all different", "many equal"])
def test_the_blocks_of_highest_score(blocks: int, equal: bool) -> None:
    from assay.attention import curvature_kernels

    score = draw(2, 3, blocks, blocks)
    score = score.round() if equal else score
    among = torch.ones(blocks, blocks, dtype=torch.bool, device=DEVICE).tril().expand(2, 1, -1, -1)
    count = (1 + among.sum(-1, keepdim=True) // 3)[:1].expand(2, -1, -1, -1)
    exact = highest(with_own(score), count, among)
    assert torch.equal(curvature_kernels.highest(score, count, among), exact)
    assert (exact.sum(-1) == count[..., 0]).all()
    hidden = among & (draw(2, 1, blocks, blocks, seed=1) > 0)  # what a model's mask lets a block see
    assert torch.equal(curvature_kernels.highest(score, count, hidden), highest(with_own(score), count, hidden))
