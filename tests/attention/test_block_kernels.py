"""The Triton kernels over blocks of keys against the mask written out, in float32. They need a GPU."""

import pytest
import torch

from assay.attention import attention, flex
from assay.attention.base import Budget
from assay.attention.lanes import Lane, attend
from assay.attention.layer import Layer, masked_attention
from assay.nn.whole import has_kernels

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and has_kernels(torch.device("cuda"))), reason="needs CUDA and Triton"
)
SHAPES = [(16, 64, 4, 4), (64, 64, 8, 2), (128, 128, 4, 1), (192, 32, 2, 2), (256, 128, 4, 2)]
"""Size of a block, of a head; heads, heads of keys."""


def layer_of(d: int, heads: int, kv_heads: int, *, time: int = 1500, rows: int = 2) -> Layer:
    rng = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(rows, h, time, d, generator=rng, device="cuda") for h in (heads, kv_heads, kv_heads))
    return Layer(*(x.bfloat16() for x in (2 * q, k, v)))


def widened(layer: Layer) -> Layer:
    return Layer(layer.q.float(), layer.k.float(), layer.v.float())


@pytest.mark.parametrize(("size", "d", "heads", "kv_heads"), SHAPES)
def test_attention_reads_the_chosen_blocks_and_no_others(size: int, d: int, heads: int, kv_heads: int) -> None:
    layer, lane = layer_of(d, heads, kv_heads), Lane(attention.parse(f"cab_v3:block_size={size}"), Budget(sparsity=0.4))
    assert flex.takes_blocks(layer, size)
    with torch.no_grad():
        found = attend([lane], layer).float()
    chosen = lane.method.chosen(layer, lane.budget)
    kept = chosen.repeat_interleave(size, 2).repeat_interleave(size, 3)[..., :1500, :1500] & layer.causal
    assert 0.3 < kept.sum() / layer.causal.sum() / heads / 2 < 0.9
    exact = masked_attention(widened(layer), kept)
    assert (found - exact).norm() / exact.norm() < 5e-3
    assert (found - exact).norm(dim=-1).max() < 0.05 * exact.norm(dim=-1).mean(), "no query is left out"


@pytest.mark.parametrize(("size", "d", "heads", "kv_heads"), SHAPES)
def test_weights_of_blocks(size: int, d: int, heads: int, kv_heads: int) -> None:
    layer = layer_of(d, heads, kv_heads)
    found = flex.block_weights(layer, size)
    slow = attention.parse(f"cab_v4:block_size={size}").magnitude(widened(layer))
    assert found is not None and flex.block_weights(widened(layer), size) is None
    torch.testing.assert_close(found, slow, rtol=2e-2, atol=1e-5)


def test_narrow_blocks_with_a_gradient_are_masks_written_out() -> None:
    layer, lane = layer_of(64, 4, 2), Lane(attention.parse("cab_v3"), Budget(sparsity=0.4))
    leaf = layer.q.clone().requires_grad_()
    learning = Layer(leaf, layer.k, layer.v)
    assert flex.takes_blocks(layer, 64) and not flex.takes_blocks(learning, 64)
    out = attend([lane], learning)
    (slope,) = torch.autograd.grad(out.float().sum(), leaf)
    assert slope.isfinite().all() and slope.norm() > 0
    with torch.no_grad():
        assert (out - attend([lane], layer)).float().norm() / out.float().norm() < 5e-3
