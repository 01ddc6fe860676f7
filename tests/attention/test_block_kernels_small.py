"""The kernels by which blocks are chosen against the same written out: on a GPU, or by Triton's interpreter."""

import pytest
import torch

from assay.attention import attention, flex
from assay.attention.base import Budget
from assay.attention.curvature import CurvatureSelect
from assay.attention.layer import Layer, masked_attention
from triton_device import DEVICE, draw, needs_triton

pytestmark = needs_triton
SHAPES = [(16, 16, 2, 2, 100), (64, 32, 4, 2, 300), (48, 16, 2, 1, 150), (128, 16, 2, 1, 300), (256, 16, 2, 1, 600)]
"""Size of a block, of a head; heads, heads of keys; tokens, whose last block is cut short."""


by_token = pytest.mark.parametrize("by_token", [False, True], ids=["head by head", "token by token"])


def layers_of(d: int, heads: int, kv_heads: int, time: int, *, by_token: bool = False) -> tuple[Layer, Layer]:
    """A layer in 16 bits, its numbers in memory token by token as a model's projections leave them, or not; and the
    same numbers in 32."""
    q, k, v = (draw(2, h, time, d, seed=seed).half() for seed, h in enumerate((heads, kv_heads, kv_heads)))
    given = [x.transpose(1, 2).contiguous().transpose(1, 2) if by_token else x for x in (2 * q, k, v)]
    return Layer(*given), Layer(*(x.float() for x in given))


@pytest.mark.parametrize(("size", "d", "heads", "kv_heads", "time"), SHAPES)
@by_token
def test_attention_reads_the_listed_blocks(
    size: int, d: int, heads: int, kv_heads: int, time: int, by_token: bool
) -> None:
    from assay.attention import block_kernels

    narrow, wide = layers_of(d, heads, kv_heads, time, by_token=by_token)
    method = attention.parse(f"cab_v3:block_size={size}")
    assert isinstance(method, CurvatureSelect)
    chosen = method.chosen(wide, Budget(sparsity=0.4))
    earlier = chosen & torch.ones_like(chosen[0, 0]).tril(-1)
    found = block_kernels.attention(narrow, *flex.listed(earlier), size=size)
    exact = masked_attention(wide, method.keep(wide, Budget(sparsity=0.4)))
    assert found.stride() == narrow.q.stride()
    torch.testing.assert_close(found.float(), exact, rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize(("size", "d", "heads", "kv_heads", "time"), SHAPES)
@pytest.mark.parametrize("peaks", [2**26, 1], ids=["all heads at once", "a head at a time"])
@by_token
def test_weights_are_those_of_the_whole_matrix(
    size: int, d: int, heads: int, kv_heads: int, time: int, peaks: int, by_token: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.attention import block_kernels

    monkeypatch.setattr(block_kernels, "PEAKS", peaks)
    narrow, wide = layers_of(d, heads, kv_heads, time, by_token=by_token)
    exact = attention.parse(f"cab_v4:block_size={size}").magnitude(wide)
    tolerance = 2e-6 if DEVICE == "cpu" else 1e-3  # tensor cores sum in another order
    torch.testing.assert_close(block_kernels.weights(narrow, size=size), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("size", "queries", "heads", "time"), [(64, 16, 2, 300), (128, 32, 2, 700), (32, 16, 3, 96)])
@pytest.mark.parametrize("peaks", [2**26, 1], ids=["all heads at once", "a head at a time"])
def test_weights_of_the_last_queries_of_each_block(
    size: int, queries: int, heads: int, time: int, peaks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.attention import block_kernels

    monkeypatch.setattr(block_kernels, "PEAKS", peaks)
    narrow, wide = layers_of(16, heads, 1, time)
    exact = attention.parse(f"cab_v4:block_size={size}:queries={queries}").magnitude(wide)
    every = attention.parse(f"cab_v4:block_size={size}").magnitude(wide)
    found, tolerance = block_kernels.weights(narrow, size=size, queries=queries), 2e-6 if DEVICE == "cpu" else 1e-3
    torch.testing.assert_close(found, exact, rtol=tolerance, atol=tolerance)
    assert (exact <= every + 1e-6).all() and (exact < every - 1e-3).any()


@pytest.mark.parametrize(("size", "d", "heads", "kv_heads", "time"), SHAPES)
@by_token
def test_the_longest_vector_of_each_block(
    size: int, d: int, heads: int, kv_heads: int, time: int, by_token: bool
) -> None:
    from assay.attention import block_kernels

    narrow, wide = layers_of(d, heads, kv_heads, time, by_token=by_token)
    method = attention.parse(f"cab_v3:block_size={size}")
    assert isinstance(method, CurvatureSelect)
    for x in (narrow.q, narrow.k):
        assert torch.equal(block_kernels.longest(x, size=size).float(), method.longest(x.float(), wide))


def test_of_equally_long_vectors_the_first_is_taken() -> None:
    from assay.attention import block_kernels

    x = torch.zeros(1, 1, 192, 16, device=DEVICE, dtype=torch.float16)
    for place in (5, 70, 130):  # of each part of a block that is read at a time
        x[0, 0, place, place % 16] = 2.0
    found = block_kernels.longest(x, size=192)
    assert found[0, 0, 0].tolist() == x[0, 0, 5].tolist()
